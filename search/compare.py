"""Two layouts, term by term: where their time and memory differ, and what of the layout makes the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import CODED, Layouts
from costmodel.problem import Problem
from hardware.errors import InputError
from search.assignment import Assignment
from search.facts import Facts, because_of, facts_of
from search.fitting import data_degree, usual_schedule
from search.possible import ALL_RANKS, possible_values, recompute_codes
from search.rule import Rule, violations
from search.rules import rules
from search.space import SearchSpace

LEAST = 0.002
"""Share of the step or of the memory below which a difference is not told."""
NOISE = 5e-4
"""Share of both below which a neighbour is not told."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A term of both layouts [s or B], and what of each layout it comes from."""

    name: str
    unit: str
    before: float
    after: float
    because: str

    @property
    def more(self) -> float:
        return self.after - self.before


Stages = tuple[Assignment | None, Assignment | None]
"""The stages of two layouts where they are not the closed form's."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A layout against another: their estimates, and the terms that differ, the largest difference first."""

    problem: Problem
    before: Layouts
    after: Layouts
    costs: tuple[Estimate, Estimate]
    time: tuple[Difference, ...]
    memory: tuple[Difference, ...]
    broken: tuple[tuple[str, str], ...]
    stages: Stages

    @property
    def slower(self) -> float:
        """Step time of the second over the first, less 1."""
        return float(self.costs[1].step_time[0] / self.costs[0].step_time[0]) - 1.0

    @property
    def same(self) -> bool:
        """Whether both are the same layout with the same stages."""
        given = [one and (one.chunks, one.mtp, one.recompute) for one in self.stages]
        return self.before.row(0) == self.after.row(0) and given[0] == given[1]

    @property
    def alike(self) -> bool:
        """Whether nobody would notice the difference, neither in the step nor in memory."""
        memory = [float(cost.memory_total[0]) for cost in self.costs]
        return not self.broken and abs(self.slower) < NOISE and abs(memory[1] / memory[0] - 1.0) < NOISE

    @property
    def driving(self) -> tuple[Difference, ...]:
        """The term that makes the step slower or faster most, then the largest one against it if that is larger."""
        with_it = [one for one in self.time if (one.more > 0.0) == (self.slower > 0.0)]
        least = abs(with_it[0].more) if with_it else 0.0
        against = [one for one in self.time if one not in with_it and abs(one.more) > least]
        return (*with_it[:1], *against[:1])

    @property
    def headroom(self) -> tuple[float, float]:
        return float(self.costs[0].memory_headroom[0]), float(self.costs[1].memory_headroom[0])


@dataclass(frozen=True, slots=True)
class Side:
    """A layout that is compared: its stages if they are not the closed form's, its estimate, and what its terms of time
    and of memory come from."""

    layout: Layouts
    stages: Assignment | None
    cost: Estimate
    facts: tuple[dict[str, Facts], dict[str, Facts]]

    @classmethod
    def of(cls, problem: Problem, layout: Layouts, stages: Assignment | None) -> Side:
        """The one row of `layout`."""
        cost = estimate(problem, layout, stages.table if stages else None)
        return cls(layout, stages, cost, facts_of(problem, layout, stages))


def compare(
    problem: Problem, before: Layouts, after: Layouts, space: SearchSpace, stages: Stages = (None, None)
) -> Comparison:
    """The one row of `after` against the one row of `before`; `space` gives the rules that `after` may break."""
    sides = (Side.of(problem, *side) for side in zip((before, after), stages, strict=True))
    return _compared(problem, next(sides), next(sides), space)


def _compared(problem: Problem, before: Side, after: Side, space: SearchSpace) -> Comparison:
    row = after.layout.row(0) | {"memory_headroom": after.cost.memory_headroom[0]}
    (step, whole), facts = (
        (before.cost.step_time, before.cost.memory_total),
        zip(before.facts, after.facts, strict=True),
    )
    return Comparison(
        problem=problem,
        before=before.layout,
        after=after.layout,
        costs=(before.cost, after.cost),
        time=_differences("s", (before.cost.time, after.cost.time), next(facts), float(step[0])),
        memory=_differences("B", (before.cost.memory, after.cost.memory), next(facts), float(whole[0])),
        broken=tuple(violations(_decisive(problem, space), row)),
        stages=(before.stages, after.stages),
    )


def _decisive(problem: Problem, space: SearchSpace) -> list[Rule]:
    return [rule for rule in rules(problem, space) if rule.name != "memory_floor"]


def compare_alike(
    problem: Problem, before: Layouts, after: Layouts, space: SearchSpace, given: Assignment | None
) -> Comparison:
    """`compare` where the stages of `after` come about as those of `before`: balanced by CP-SAT if these are `given`,
    else by the closed form."""
    return _alike(problem, Side.of(problem, before, given), after, space)


def _alike(problem: Problem, before: Side, after: Layouts, space: SearchSpace) -> Comparison:
    """`compare_alike` with a layout that is known."""
    stages = None
    if before.stages is not None and not violations(_decisive(problem, space), after.row(0)):  # but for memory
        from search.balance import balance  # CP-SAT's, which a search loads only to balance

        found = balance(problem, after)
        stages = found.assignment if found and found.chosen else None
    return _compared(problem, before, Side.of(problem, after, stages), space)


def changed(problem: Problem, layout: Layouts, changes: Mapping[str, int]) -> Layouts:
    """The one row of `layout` with some axes changed, DP taking up the rest where it is not among them.

    What follows from them follows: the shard group where it was whole, sequence parallelism from TP, the schedule from
    PP and VPP. Raises InputError if the degrees do not multiply to the GPUs.
    """
    row = layout.row(0)
    whole = row["dp_shard"] == row["dp"] * row["cp"]
    row |= changes
    row["dp"] = data_degree(problem, {axis: row[axis] for axis in ("tp", "pp", "cp")} | dict(changes))
    if changes.get("dp_shard", ALL_RANKS if whole else row["dp_shard"]) == ALL_RANKS:
        row["dp_shard"] = row["dp"] * row["cp"]
    if "tp" in changes and "sequence_parallel" not in changes:
        row["sequence_parallel"] = int(row["tp"] > 1 and problem.profile.sequence_parallel)
    if row["pp"] == 1 and "vpp" not in changes:
        row["vpp"] = 1
    moved = "vpp" in changes or ("pp" in changes and (row["pp"] == 1) != (layout.pp[0] == 1))
    if moved and "schedule" not in changes:
        row["schedule"] = usual_schedule(problem.profile, row["pp"], row["vpp"])
    if "recompute_layers" not in changes:
        row["recompute_layers"] = _count(problem, row)
    return Layouts.of(**row)


def _count(problem: Problem, row: Mapping[str, int]) -> int:
    """The row's count of recomputed layers, 0 where these are all of every stage or nothing is computed again."""
    if not row["recompute"] or row["pp"] > problem.model.layers:
        return 0
    most = max(problem.split([row["pp"]]).split(row["pp"], row["vpp"]))
    return row["recompute_layers"] * (row["recompute_layers"] < most)


def neighbours(
    problem: Problem, layout: Layouts, space: SearchSpace, given: Assignment | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, Comparison]]:  # fmt: skip
    """The layouts one step along one axis, as ("tp 8 -> 4", comparison), the fastest first, those that cannot be last.

    A step is the next value below or above that the problem allows, any other recompute set, schedule or order of the
    ranks; DP takes up the rest. Where the stages of the layout are `given`, those of its neighbours are balanced, too,
    and choose their recompute sets. Neighbours that differ by less than NOISE are left out.
    """
    steps = [(axis, value) for axis, value in _steps(problem, layout) if not (given and axis.startswith("recompute"))]
    found, here = [], Side.of(problem, layout, given)
    for done, (axis, value) in enumerate(steps, 1):
        if progress:
            progress(done, len(steps))
        try:
            other = changed(problem, layout, {axis: value})
        except InputError:
            continue
        it = _alike(problem, here, other, space)
        if any(rule in ("schedule", "rank_order") for rule, _ in it.broken):
            continue  # virtual stages and the interleaved schedule go together, two axes; or it is the same layout
        if it.alike:
            continue
        found.append((f"{axis} {shown(problem, axis, layout.row(0)[axis])} -> {shown(problem, axis, value)}", it))
    return sorted(found, key=lambda pair: (bool(pair[1].broken), pair[1].slower))


def shown(problem: Problem, axis: str, value: int) -> str:
    """A value of an axis as it is typed."""
    names = {**CODED, "recompute": tuple(choice.name for choice in problem.profile.recompute)}
    return names[axis][value] if axis in names else str(value)


def _steps(problem: Problem, layout: Layouts) -> Iterator[tuple[str, int]]:
    row, possible = layout.row(0), possible_values(problem)
    possible["dp_shard"] = tuple(n for n in possible["dp_shard"] if n > 0 and row["dp"] * row["cp"] % n == 0)
    for axis in row:
        values = [value for value in possible[axis] if value != row[axis]]
        if axis == "dp":
            continue
        if axis == "recompute_layers":
            yield from ((axis, value) for value in _counts(problem, row))
            continue
        if axis == "recompute":
            values = [code for code in recompute_codes(problem) if code != row[axis]]
        if axis in ("recompute", *CODED):
            yield from ((axis, value) for value in values)
            continue
        below, above = [n for n in values if n < row[axis]], [n for n in values if n > row[axis]]
        yield from ((axis, value) for value in (*below[-1:], *above[:1]))


def _counts(problem: Problem, row: Mapping[str, int]) -> list[int]:
    """One layer of each stage less and one more that the recompute set holds for; 0 is all of them."""
    if not row["recompute"]:
        return []
    most = max(problem.split([row["pp"]]).split(row["pp"], row["vpp"]))
    now = min(row["recompute_layers"] or most, most)
    return [count % most for count in (now - 1, now + 1) if 0 < count <= most]


def _differences(
    unit: str, trees: tuple[Any, Any], facts: tuple[dict[str, Facts], ...], whole: float
) -> tuple[Difference, ...]:
    """The terms that differ by more than LEAST of the whole."""
    found = []
    for part in fields(trees[0]):
        before, after = (float(getattr(tree, part.name)[0]) for tree in trees)
        if abs(after - before) > LEAST * whole:
            because = because_of(*(fact.get(part.name, {}) for fact in facts))
            found.append(Difference(part.name, unit, before, after, because))
    return tuple(sorted(found, key=lambda one: -abs(one.more)))
