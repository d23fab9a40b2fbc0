"""A layout's stages as CP-SAT balances them, beside the closed-form split; and so for a search's whole frontier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import AXES, Layouts
from costmodel.problem import Problem
from search.assignment import Balanced, closed_form, closed_form_of
from search.engine import SearchResult
from search.stages import assign

T = TypeVar("T")


def balance(problem: Problem, layout: Layouts, *, own: bool = False) -> Balanced | None:
    """The balanced stages of the one row of `layout`, with `own` of its layers alone, each stage computing again what
    the layout says; None if no assignment fits into memory."""
    usual, found = estimate(problem, layout), assign(problem, layout, own=own)
    closed = closed_form_of(problem, layout.row(0), np.nan)
    fits = problem.cluster.gpu.usable_memory - float(usual.memory_headroom[0]) <= problem.memory_limit
    if found is not None:
        cost = estimate(problem, layout, found.table)
        better = (-cost.step_time[0], cost.memory_headroom[0]) > (-usual.step_time[0], usual.memory_headroom[0])
        same = (found.chunks, found.mtp, found.recompute) == (closed.chunks, closed.mtp, closed.recompute)
        if (better and not (same and cost.step_time[0] == usual.step_time[0])) or not fits:
            return Balanced(assignment=found, cost=cost, usual=usual, chosen=True)
    if not fits:
        return None
    closed = closed_form(problem, layout)
    if found is not None:
        closed = replace(closed, bound=min(found.bound, closed.seconds), optimal=found.optimal)
    return Balanced(assignment=closed, cost=usual, usual=usual, chosen=False)


def balance_frontier(
    result: SearchResult, top: int = 0, progress: Callable[[int, int], None] | None = None
) -> SearchResult:
    """The result with every layout of its frontier balanced, and the frontier rebuilt from both: what balancing makes
    of a layout, and the layout as it was. Where the search kept every feasible layout, the `top` fastest of these are
    balanced, too: one that is not on the frontier may come to be."""
    rows: list[Layouts] = []
    costs: list[Estimate] = []
    found: list[Balanced | None] = []
    wanted = _wanted(result, top)
    for index, layout in enumerate(wanted):
        balanced = balance(result.problem, layout)
        usual = balanced.usual if balanced else estimate(result.problem, layout)
        kept: list[tuple[Estimate, Balanced | None]] = [(usual, None)]
        if balanced and balanced.chosen:
            kept.append((balanced.cost, balanced))
        for cost, how in kept:
            rows, costs, found = [*rows, layout], [*costs, cost], [*found, how]
        if progress:
            progress(index + 1, len(wanted))
    best = _frontier(rows, costs)
    layouts = Layouts.from_columns({axis: [int(getattr(rows[at], axis)[0]) for at in best] for axis in AXES})
    merged = _joined([costs[at] for at in best])
    return replace(result, frontier=layouts, estimate=merged, balanced=tuple(found[at] for at in best))


def _wanted(result: SearchResult, top: int) -> list[Layouts]:
    """The layouts of the frontier, then the fastest of all that are not among them."""
    tables = [result.frontier, *([] if result.feasible is None else [result.feasible.take(slice(top))])]
    rows = {tuple(one.row(0).values()): one for table in tables for one in (table.take([n]) for n in range(len(table)))}
    return list(rows.values())


def _frontier(rows: Sequence[Layouts], costs: Sequence[Estimate]) -> list[int]:
    """Places of the frontier, ranked: MFU falling, headroom rising; of equals the first layout, not balanced first."""
    keys = [
        (-float(c.mfu[0]), -float(c.memory_headroom[0]), *r.row(0).values()) for r, c in zip(rows, costs, strict=True)
    ]
    kept, best = [], -np.inf
    for at in sorted(range(len(rows)), key=lambda at: (keys[at], at)):
        if costs[at].memory_headroom[0] > best:
            kept.append(at)
            best = costs[at].memory_headroom[0]
    return kept


def _joined(trees: Sequence[T]) -> T:
    """One table of equal trees of columns, row after row."""
    parts = {}
    for part in fields(trees[0]):  # type: ignore[arg-type]
        values = [getattr(tree, part.name) for tree in trees]
        parts[part.name] = np.concatenate(values) if isinstance(values[0], np.ndarray) else _joined(values)
    return type(trees[0])(**parts)
