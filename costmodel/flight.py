"""Micro-batches in flight: how many a stage of the pipeline holds the activations of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.layouts import SCHEDULES, Column, Layouts
from costmodel.schedule import is_dual


def in_flight(layouts: Layouts, rank: Column, micro_batches: Column) -> Column:
    """Micro-batches whose activations stage r = `rank` of the pipeline holds at most; float64.

    1F1B and zero-bubble (ZB1P) min(P - r, m); interleaved min(2(P-r-1) + (V-1)P + 1, mV) chunks of 1/V of the
    stage (Megatron-LM schedules.py), P + (P-1)/V at the first; DualPipe runs half of the micro-batches from
    either end, min(P - r, m/2) for each of the two stages on a rank, P + 1 in all (DualPipe README).
    """
    return Flight.of(layouts, micro_batches).at(rank)


@dataclass(frozen=True, slots=True)
class Flight:
    """Micro-batches in flight: `first` at the first stage, `step` fewer at each later one, `most` at most."""

    first: Column
    step: Column
    most: Column

    @classmethod
    def of(cls, layouts: Layouts, micro_batches: Column) -> Flight:
        """Of these pipelines, each with so many micro-batches a step."""
        pp, vpp = layouts.pp.astype(np.float64), layouts.vpp.astype(np.float64)
        chunks = layouts.schedule == SCHEDULES.index("interleaved")
        dual = is_dual(layouts)
        return cls(
            first=pp + chunks * (((vpp + 1.0) * pp - 1.0) / vpp - pp),
            step=1.0 + chunks * (2.0 / vpp - 1.0),
            most=micro_batches * (1.0 - 0.5 * dual) if dual.any() else micro_batches,
        )

    def at(self, rank: Column) -> Column:
        """At this stage."""
        held: Column = np.minimum(self.first - self.step * rank, self.most)
        return held
