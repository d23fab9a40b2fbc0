"""Where a layout's groups lie: which link level each axis spans, and how many ranks of a group share a domain.

Ranks fill the machine TP innermost, then CP, DP, PP outermost, or PP before DP; experts have their own grid on the same
ranks, ETP innermost, then EP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.collectives import members
from costmodel.estimate import estimate
from costmodel.layouts import Column, Layouts
from costmodel.problem import RANK_ORDERS, Problem
from costmodel.split import StageTable

WORTH = 0.005
"""Share of a step's time from which another order of the ranks is worth a word."""


@dataclass(frozen=True, slots=True)
class Span:
    """The groups of an axis: `size` ranks, `stride` apart, `inside` of them in a domain of the innermost level; `level`
    is the outermost that they need."""

    axis: str
    size: int
    stride: int
    inside: int
    level: str

    def said(self, first: str) -> str:
        """In words; `first` is the innermost level."""
        if self.size == 1:
            return "1"
        if self.inside >= self.size:
            return f"{self.size} inside {first}"
        nics = "one NIC" if self.inside == 1 else f"{self.inside} NICs"
        return f"{self.size} over {self.level} ({nics} of each {first} domain)"


def spans(problem: Problem, layout: Layouts) -> dict[str, Span]:
    """The groups of the one row of `layout`, by axis: tp, cp, dp (with CP, which shares its states), pp, etp, ep."""
    row = layout.row(0)
    tp, cp, dp = row["tp"], row["cp"], row["dp"]
    inside = problem.stages_inside
    groups = {"tp": (tp, 1), "cp": (cp, tp), "dp": (dp * cp, tp * (row["pp"] if inside else 1))}
    groups["pp"] = (row["pp"], tp * cp * (1 if inside else dp))
    if problem.model.is_moe:
        groups |= {"etp": (row["etp"], 1), "ep": (row["ep"], row["etp"])}
    return {axis: _span(problem, axis, size, stride) for axis, (size, stride) in groups.items()}


def order(problem: Problem, layout: Layouts) -> str:
    """The links that each axis with more than one rank spans, in one line."""
    first = problem.links.levels[0].name
    said = [f"{span.axis} {span.said(first)}" for span in spans(problem, layout).values() if span.size > 1]
    return "; ".join(said) or "one rank a group"


def orders(problem: Problem, layout: Layouts, stages: StageTable | None = None) -> dict[str, float]:
    """Step time [s] of the one row of `layout` under each order of the ranks, the fastest first, the job's own of
    equals; `stages` as in `estimate`."""
    own = problem.workload.rank_order
    found = {}
    for name in sorted(RANK_ORDERS, key=lambda name: name != own):
        other = replace(problem, workload=replace(problem.workload, rank_order=name))
        found[name] = float(estimate(other, layout, stages).step_time[0])
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def faster_order(problem: Problem, layouts: Layouts, step_time: Column) -> str:
    """Which other order of the ranks makes some of these layouts faster than `step_time` [s], and by how much."""
    for name in RANK_ORDERS:
        other = replace(problem, workload=replace(problem.workload, rank_order=name))
        gain = 1.0 - estimate(other, layouts).step_time / step_time
        faster = int(np.count_nonzero(gain > WORTH))
        if faster:
            some = f"{faster:,} of the {len(layouts):,} layouts"
            return f"--rank-order {name} makes {some} faster, by {float(gain.max()):.1%} at most"
    return ""


def _span(problem: Problem, axis: str, size: int, stride: int) -> Span:
    levels = problem.links.levels
    found = [int(members(level, np.array([float(size)]), np.array([float(stride)]))[0]) for level in levels]
    level = next(level.name for level, inside in zip(levels, found, strict=True) if inside >= size)
    return Span(axis.upper(), size, stride, found[0], level)
