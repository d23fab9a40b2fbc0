"""A layout's stages as CP-SAT balances them, beside the closed-form split; and so for a search's whole frontier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import AXES, Layouts
from costmodel.problem import Problem
from search.assignment import Assignment, Balanced, closed_form, closed_form_of
from search.engine import SearchResult
from search.limits import neighbouring
from search.possible import possible_values, recompute_choices
from search.rule import violations
from search.rules import rules
from search.stages import assign

T = TypeVar("T")
CLIMB = 16
"""Steps from the fastest balanced layout to a faster neighbour at most."""


Known = dict[tuple[object, ...], Assignment | None]
"""What was found for layouts, whatever recompute set they start from."""


def balance(problem: Problem, layout: Layouts, *, own: bool = False, known: Known | None = None) -> Balanced | None:
    """The balanced stages of the one row of `layout`, with `own` of its layers alone, each stage computing again what
    the layout says; None if no assignment fits into memory. What is `known` is not sought again, and added to."""
    usual, known = estimate(problem, layout), {} if known is None else known
    row = layout.row(0)
    fixed = [value for axis, value in row.items() if own or not axis.startswith("recompute")]
    key = own, *fixed, recompute_choices(problem, row["recompute"])
    if key not in known:
        known[key] = assign(problem, layout, own=own)
    found = known[key]
    closed, fits = closed_form_of(problem, row, np.nan), _fits(problem, usual)
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


def _fits(problem: Problem, cost: Estimate) -> bool:
    """Whether one layout's memory is within the limit."""
    return problem.cluster.gpu.usable_memory - float(cost.memory_headroom[0]) <= problem.memory_limit


@dataclass(frozen=True, slots=True)
class Tally:
    """How many layouts were balanced, how many of them gained, the largest gain of step time, and the largest gap of a
    slowest stage to what is proven; shares of these times."""

    layouts: int
    gained: int
    most: float
    gap: float

    def said(self) -> str:
        """In one line."""
        gain, proof = "none of them gains", "proven of every slowest stage"
        if self.gained:
            gain = f"{self.gained} of them gain, {self.most:.1%} of the step at most"
        if self.gap >= 1e-5:
            proof = f"slowest stages within {self.gap:.1%} of a bound"
        near = "the layouts of the frontier and, from the fastest on, the next vpp and micro-batches"
        return f"balanced {self.layouts:,} layouts, {near}: {gain}; {proof}"


class _Balancing:
    """Layouts of a search as they are balanced, with what they cost before and after."""

    def __init__(self, result: SearchResult) -> None:
        self.result, self.known = result, Known()
        self.rules = [rule for rule in rules(result.problem, result.space) if not rule.name.startswith("memory")]
        self.rows: list[Layouts] = []
        self.costs: list[Estimate] = []
        self.found: list[Balanced | None] = []
        self.done: dict[tuple[int, ...], Balanced | None] = {}

    def add(self, layout: Layouts) -> None:
        """Balance a layout, and keep it as it was, if it fits, beside it."""
        problem = self.result.problem
        it = balance(problem, layout, known=self.known)
        self.done[tuple(layout.row(0).values())] = it
        usual = it.usual if it else estimate(problem, layout)
        if _fits(problem, usual):
            self._keep(layout, usual, None)
        if it and it.chosen:
            self._keep(layout, it.cost, it)

    def _keep(self, layout: Layouts, cost: Estimate, how: Balanced | None) -> None:
        self.rows.append(layout)
        self.costs.append(cost)
        self.found.append(how)

    def climb(self) -> None:
        """From the fastest layout to the next values of vpp and micro-batch, until none is faster."""
        for _ in range(CLIMB):
            fastest = min(range(len(self.rows)), key=lambda at: (float(self.costs[at].step_time[0]), at))
            new = [one for one in self._near(self.rows[fastest]) if tuple(one.row(0).values()) not in self.done]
            for layout in new:
                self.add(layout)
            if not new:
                return

    def _near(self, layout: Layouts) -> Iterator[Layouts]:
        """The layouts that rules allow with the next vpp or micro-batch, up and down, among those that the user asked
        for, else among all that are possible."""
        row, space = layout.row(0), self.result.space
        for axis in ("vpp", "micro_batch"):
            asked = axis in space.limits or space.name.endswith(".toml")
            values = space.axes[axis] if asked else possible_values(self.result.problem)[axis]
            for value in neighbouring(row[axis], values):
                other = row | {axis: value}
                if not violations(self.rules, other):
                    yield Layouts.of(**other)

    def tally(self) -> Tally:
        """What balancing came to."""
        known = [it for it in self.done.values() if it]
        gains = [it.gain for it in known if it.gain > 0.0]
        return Tally(
            len(self.done), len(gains), max(gains, default=0.0), max((it.assignment.gap for it in known), default=0.0)
        )


def balance_frontier(
    result: SearchResult, top: int = 0, progress: Callable[[int, int], None] | None = None
) -> tuple[SearchResult, Tally]:
    """The result with every layout of its frontier balanced, and the frontier rebuilt from both: what balancing makes
    of a layout, and the layout as it was. Where the search kept every feasible layout, the `top` fastest of these are
    balanced, too: one that is not on the frontier may come to be. So may the neighbours of the fastest one."""
    work, wanted = _Balancing(result), _wanted(result, top)
    for index, layout in enumerate(wanted):
        work.add(layout)
        if progress:
            progress(index + 1, len(wanted))
    work.climb()
    best = _frontier(work.rows, work.costs)
    layouts = Layouts.from_columns({axis: [int(getattr(work.rows[at], axis)[0]) for at in best] for axis in AXES})
    merged = _joined([work.costs[at] for at in best])
    found = tuple(work.found[at] for at in best)
    return replace(result, frontier=layouts, estimate=merged, balanced=found), work.tally()


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
