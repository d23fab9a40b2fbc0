"""Where a layout's groups lie: which link level each axis spans, and how many ranks of a group share a domain.

Ranks fill the machine TP innermost, then CP, DP, PP outermost, or PP before DP; experts have their own grid on the same
ranks, ETP innermost, then EP.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.collectives import Runs, members
from costmodel.estimate import estimate
from costmodel.layouts import RANK_ORDERS, Layouts, stages_inside
from costmodel.problem import Problem
from costmodel.split import StageTable
from search.rules_shape import expert_order


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
    inside = bool(stages_inside(layout)[0])
    groups = {"tp": (tp, 1), "cp": (cp, tp), "dp": (dp * cp, tp), "pp": (row["pp"], tp * cp * (1 if inside else dp))}
    if problem.model.is_moe:
        groups |= {"etp": (row["etp"], 1), "ep": (row["ep"], row["etp"])}
    runs = {"dp": Runs(np.array([float(cp)]), np.array([float(row["pp"])]))} if inside else {}
    return {axis: _span(problem, axis, size, stride, runs.get(axis)) for axis, (size, stride) in groups.items()}


def order(problem: Problem, layout: Layouts) -> str:
    """The links that each axis with more than one rank spans, in one line."""
    first = problem.links.levels[0].name
    said = [f"{span.axis} {span.said(first)}" for span in spans(problem, layout).values() if span.size > 1]
    return "; ".join(said) or "one rank a group"


def orders(problem: Problem, layout: Layouts, stages: StageTable | None = None) -> dict[str, float]:
    """Step time [s] of the one row of `layout` under each order of the ranks that it can have, the fastest first, its
    own of equals; `stages` as in `estimate`."""
    row, found = layout.row(0), {}
    fits, own = expert_order(problem), row["rank_order"]
    for code in sorted(range(len(RANK_ORDERS)), key=lambda code: code != own):
        other = row | {"rank_order": code}
        if code == own or fits.ok(*(np.array(other[axis]) for axis in fits.columns)):
            found[RANK_ORDERS[code]] = float(estimate(problem, Layouts.of(**other), stages).step_time[0])
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def _span(problem: Problem, axis: str, size: int, stride: int, runs: Runs | None) -> Span:
    levels, group = problem.links.levels, (np.array([float(size)]), np.array([float(stride)]), runs)
    found = [int(members(level, *group)[0]) for level in levels]
    level = next(level.name for level, inside in zip(levels, found, strict=True) if inside >= size)
    return Span(axis.upper(), size, stride, found[0], level)
