"""Runs as verdicts: those that ran bound from above what must fit, those that went out of memory from below."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.predict import batches, stages_of, with_rates
from costmodel.calibration.runs import Run
from costmodel.memory import memory
from costmodel.rates import MemoryRates

SHARPNESS = 0.02
"""ln(need / usable) on the wrong side of the limit that counts as much as a residual of the fit's scale."""


def judged(runs: Sequence[Run]) -> list[Run]:
    """Runs whose verdict is known, their recomputation stated, if some went out of memory and some did not."""
    known = [run for run in runs if run.recompute_stated and run.trust != "low" and (run.oom or run.step_time)]
    return known if len({run.oom for run in known}) > 1 else []


class Verdicts:
    """ln(need / usable) of runs on the wrong side of the limit, under any rates; 0 where the verdict is right."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self.batches = batches(self.runs)
        self.oom = np.array([run.oom for run in runs], dtype=bool)

    def __call__(self, rates: MemoryRates) -> NDArray[np.float64]:
        over = np.empty(len(self.runs))
        for batch in self.batches:
            problem = with_rates(batch.problem, rates)
            need = memory(problem, batch.layouts, stages_of(problem, batch.layouts)).total
            over[batch.rows] = np.log(need / problem.cluster.gpu.usable_memory)
        wrong: NDArray[np.float64] = np.where(self.oom, np.minimum(over, 0.0), np.maximum(over, 0.0))
        return wrong
