"""Two layouts, term by term: where their time and memory differ, and what of the layout makes the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.problem import Problem
from hardware.errors import InputError
from search.assignment import closed_form
from search.fitting import data_degree, usual_schedule
from search.placement import spans
from search.rule import violations
from search.rules import rules
from search.space import SearchSpace, possible_values

LEAST = 0.002
"""Share of the step or of the memory below which a difference is not told."""


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

    @property
    def slower(self) -> float:
        """Step time of the second over the first, less 1."""
        return float(self.costs[1].step_time[0] / self.costs[0].step_time[0]) - 1.0

    @property
    def headroom(self) -> tuple[float, float]:
        return float(self.costs[0].memory_headroom[0]), float(self.costs[1].memory_headroom[0])


def compare(problem: Problem, before: Layouts, after: Layouts, space: SearchSpace) -> Comparison:
    """The one row of `after` against the one row of `before`; `space` gives the rules that `after` may break."""
    costs = (estimate(problem, before), estimate(problem, after))
    row = after.row(0) | {"memory_headroom": costs[1].memory_headroom[0]}
    known = [rule for rule in rules(problem, space) if rule.name != "memory_floor"]
    facts = tuple(_facts(problem, layout) for layout in (before, after))
    return Comparison(
        problem=problem,
        before=before,
        after=after,
        costs=costs,
        time=_differences("s", (costs[0].time, costs[1].time), facts, float(costs[0].step_time[0])),
        memory=_differences("B", (costs[0].memory, costs[1].memory), facts, float(costs[0].memory_total[0])),
        broken=tuple(violations(known, row)),
    )


def changed(problem: Problem, layout: Layouts, changes: Mapping[str, int]) -> Layouts:
    """The one row of `layout` with some axes changed, DP taking up the rest where it is not among them.

    What follows from them follows: the shard group where it was whole, sequence parallelism from TP, the schedule from
    PP and VPP. Raises InputError if the degrees do not multiply to the GPUs.
    """
    row = layout.row(0)
    whole = row["dp_shard"] == row["dp"] * row["cp"]
    row |= changes
    row["dp"] = data_degree(problem, {axis: row[axis] for axis in ("tp", "pp", "cp")} | dict(changes))
    if whole and "dp_shard" not in changes:
        row["dp_shard"] = row["dp"] * row["cp"]
    if "tp" in changes and "sequence_parallel" not in changes:
        row["sequence_parallel"] = int(row["tp"] > 1 and problem.profile.sequence_parallel)
    if row["pp"] == 1 and "vpp" not in changes:
        row["vpp"] = 1
    moved = "vpp" in changes or ("pp" in changes and (row["pp"] == 1) != (layout.pp[0] == 1))
    if moved and "schedule" not in changes:
        row["schedule"] = usual_schedule(problem.profile, row["pp"], row["vpp"])
    return Layouts.of(**row)


def neighbours(problem: Problem, layout: Layouts, space: SearchSpace) -> list[tuple[str, Comparison]]:
    """The layouts one step along one axis, as ("tp 8 -> 4", comparison), the fastest first, those that cannot be last.

    A step is the next value below or above that the problem allows, any other recompute set or schedule; DP takes up
    the rest.
    """
    found = []
    for axis, value in _steps(problem, layout):
        try:
            other = changed(problem, layout, {axis: value})
        except InputError:
            continue
        it = compare(problem, layout, other, space)
        if any(rule == "schedule" for rule, _ in it.broken):
            continue  # virtual stages and the interleaved schedule go together: two axes
        found.append((f"{axis} {shown(problem, axis, layout.row(0)[axis])} -> {shown(problem, axis, value)}", it))
    return sorted(found, key=lambda pair: (bool(pair[1].broken), pair[1].slower))


def shown(problem: Problem, axis: str, value: int) -> str:
    """A value of an axis as it is typed."""
    names = {"recompute": [choice.name for choice in problem.profile.recompute], "schedule": list(SCHEDULES)}
    return names[axis][value] if axis in names else str(value)


def _steps(problem: Problem, layout: Layouts) -> Iterator[tuple[str, int]]:
    row, possible = layout.row(0), possible_values(problem)
    possible["dp_shard"] = tuple(n for n in possible["dp_shard"] if n > 0 and row["dp"] * row["cp"] % n == 0)
    for axis in row:
        values = [value for value in possible[axis] if value != row[axis]]
        if axis == "dp":
            continue
        if axis in ("recompute", "schedule"):
            yield from ((axis, value) for value in values)
            continue
        below, above = [n for n in values if n < row[axis]], [n for n in values if n > row[axis]]
        yield from ((axis, value) for value in (*below[-1:], *above[:1]))


def _differences(
    unit: str, trees: tuple[Any, Any], facts: tuple[dict[str, Facts], ...], whole: float
) -> tuple[Difference, ...]:
    """The terms that differ by more than LEAST of the whole."""
    found = []
    for part in fields(trees[0]):
        before, after = (float(getattr(tree, part.name)[0]) for tree in trees)
        if abs(after - before) > LEAST * whole:
            because = _because(*(fact.get(part.name, {}) for fact in facts))
            found.append(Difference(part.name, unit, before, after, because))
    return tuple(sorted(found, key=lambda one: -abs(one.more)))


Facts = dict[str, str]
"""What of a layout a term comes from: a name and its value, in words."""


def _because(before: Facts, after: Facts) -> str:
    """The facts that differ, "TP 8 -> 4"; those that there are where none does."""
    differ = [f"{name} {before[name]} -> {after[name]}" for name in after if before[name] != after[name]]
    return ", ".join(differ or [f"{name} {value}" for name, value in after.items()])


def _facts(problem: Problem, layout: Layouts) -> dict[str, Facts]:
    """What each term of the one row of `layout` comes from."""
    row, first, links = layout.row(0), problem.links.levels[0].name, spans(problem, layout)
    tokens = row["micro_batch"] * problem.workload.seq_len // row["cp"]
    again = {"recompute": problem.profile.recompute[row["recompute"]].name}
    batches = {"micro-batches": f"{problem.workload.global_batch / (row['dp'] * row['micro_batch']):g}"}
    size = {"tokens of a micro-batch": f"{tokens:,}"}
    layers = {"layers of the fullest stage": f"{max(closed_form(problem, layout).layers)}"}
    work = batches | size | layers | {"TP": f"{row['tp']}"}
    schedule = {"schedule": SCHEDULES[row["schedule"]], "PP": f"{row['pp']}", "VPP": f"{row['vpp']}"}
    zero = {"ZeRO": f"{row['zero_stage']} over {row['dp_shard']} ranks"}
    states = {axis.upper(): f"{row[axis]}" for axis in ("tp", "pp", "ep")[: 2 + problem.model.is_moe]} | zero
    where = {axis: {span.axis: span.said(first)} for axis, span in links.items()}
    parallel = {"sequence parallelism": "on" if row["sequence_parallel"] else "off"}
    return dict.fromkeys(("gemm", "attention"), work) | {
        "elementwise": work | parallel,
        "kernel_gaps": batches | layers,
        "recompute": again | work,
        "tensor_parallel": where["tp"] | batches | size | layers,
        "context_parallel": where["cp"] | size | layers,
        "expert_parallel": where.get("ep", {}) | size | layers,
        "pipeline_send": where["pp"] | batches | {"VPP": f"{row['vpp']}"},
        "data_parallel": where["dp"] | states,
        "bubble": schedule | batches,
        "optimizer": states,
        "weights": states,
        "gradients": states,
        "gathered": states,
        "activations": schedule | size | layers | again | parallel,
        "recompute_buffer": size | again,
        "logits": size | {"TP": f"{row['tp']}"},
        "buffers": size | {"TP": f"{row['tp']}"} | parallel,
        "fragmentation": {"a share of": "the rest"},
        "overhead": {"a share of": "the rest"},
    }
