"""Two layouts, term by term: where their time and memory differ, and what of the layout makes the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import CODED, SCHEDULES, Column, Layouts, usual_set
from costmodel.memory import neediest
from costmodel.passes import passes_of
from costmodel.problem import Problem
from hardware.errors import InputError
from search.assignment import Assignment, by_set, closed_form
from search.fitting import data_degree, usual_schedule
from search.placement import spans
from search.possible import ALL_RANKS, possible_values, recompute_codes
from search.rule import violations
from search.rules import rules
from search.space import SearchSpace

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
    def same_stages(self) -> bool:
        """Whether both were given the same stages."""
        given = [one and (one.chunks, one.mtp, one.recompute) for one in self.stages]
        return given[0] is not None and given[0] == given[1]

    @property
    def headroom(self) -> tuple[float, float]:
        return float(self.costs[0].memory_headroom[0]), float(self.costs[1].memory_headroom[0])


def compare(
    problem: Problem, before: Layouts, after: Layouts, space: SearchSpace, stages: Stages = (None, None)
) -> Comparison:
    """The one row of `after` against the one row of `before`; `space` gives the rules that `after` may break."""
    rows = tuple(zip((before, after), stages, strict=True))
    costs = [estimate(problem, layout, given.table if given else None) for layout, given in rows]
    row = after.row(0) | {"memory_headroom": costs[1].memory_headroom[0]}
    known = [rule for rule in rules(problem, space) if rule.name != "memory_floor"]
    facts = zip(*(_facts(problem, layout, given) for layout, given in rows), strict=True)
    return Comparison(
        problem=problem,
        before=before,
        after=after,
        costs=(costs[0], costs[1]),
        time=_differences("s", (costs[0].time, costs[1].time), next(facts), float(costs[0].step_time[0])),
        memory=_differences("B", (costs[0].memory, costs[1].memory), next(facts), float(costs[0].memory_total[0])),
        broken=tuple(violations(known, row)),
        stages=stages,
    )


def compare_alike(
    problem: Problem, before: Layouts, after: Layouts, space: SearchSpace, given: Assignment | None
) -> Comparison:
    """`compare` where the stages of `after` come about as those of `before`: balanced by CP-SAT if these are `given`,
    else by the closed form."""
    it = compare(problem, before, after, space, (given, None))
    if given is None or any(rule != "memory" for rule, _ in it.broken):
        return it
    from search.balance import balance  # CP-SAT's, which a search loads only to balance

    found = balance(problem, after)
    return compare(problem, before, after, space, (given, found.assignment)) if found and found.chosen else it


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
    ranks; DP takes up the rest. Where the stages of the layout are `given`, those of its neighbours are balanced, too;
    of recompute sets such stages have their own choice.
    """
    found, steps = [], list(_steps(problem, layout))
    for done, (axis, value) in enumerate(steps, 1):
        if progress:
            progress(done, len(steps))
        try:
            other = changed(problem, layout, {axis: value})
        except InputError:
            continue
        it = compare_alike(problem, layout, other, space, given)
        if any(rule in ("schedule", "rank_order") for rule, _ in it.broken):
            continue  # virtual stages and the interleaved schedule go together, two axes; or it is the same layout
        if axis.startswith("recompute") and it.same_stages:
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
            because = _because(*(fact.get(part.name, {}) for fact in facts))
            found.append(Difference(part.name, unit, before, after, because))
    return tuple(sorted(found, key=lambda one: -abs(one.more)))


Facts = dict[str, str]
"""What of a layout a term comes from: a name and its value, in words."""


def _because(before: Facts, after: Facts) -> str:
    """The facts that differ, "TP 8 -> 4"; those that there are where none does."""
    differ = [f"{name} {before[name]} -> {after[name]}" for name in after if before[name] != after[name]]
    return ", ".join(differ or [f"{name} {value}" for name, value in after.items()])


def _facts(problem: Problem, layout: Layouts, given: Assignment | None) -> tuple[dict[str, Facts], dict[str, Facts]]:
    """What each term of time and of memory of the one row of `layout` comes from."""
    stages = (given or closed_form(problem, layout)).table
    slowest = stages.only(int(passes_of(problem, layout, stages).slowest[0])).kind(0, stages.rows(layout))
    neediest_ = neediest(problem, layout, stages)
    how = {"stages": "balanced by CP-SAT" if given else "as the closed form has them"}
    base = 0 if given and not given.own else int(usual_set(layout)[0])
    return (
        _time_facts(problem, layout, _on_stage(problem, base, slowest, "slowest"), how),
        _memory_facts(problem, layout, _on_stage(problem, base, neediest_, "neediest")),
    )


def _on_stage(problem: Problem, base: int, stage: Mapping[str, Column], name: str) -> tuple[Facts, Facts]:
    """The layers of a stage, and the recompute sets that they have."""
    names = [part for part in stage if f"mirror_{part}" in stage]
    count = {part: int(stage[part][0] + stage[f"mirror_{part}"][0]) for part in names}
    counts = by_set(count, base, len(problem.profile.recompute))
    used = [(found, choice.name) for found, choice in zip(counts, problem.profile.recompute, strict=True) if found]
    again = used[0][1] if len(used) == 1 else ", ".join(f"{found} {choice}" for found, choice in used) or "no layer"
    return {f"layers of the {name} stage": f"{count['dense'] + count['moe']}"}, {"recompute": again}


def _work(problem: Problem, layout: Layouts) -> tuple[Facts, Facts]:
    """How many micro-batches there are, and their size."""
    row = layout.row(0)
    tokens = row["micro_batch"] * problem.workload.seq_len // row["cp"]
    batches = {"micro-batches": f"{problem.workload.global_batch / (row['dp'] * row['micro_batch']):g}"}
    return batches, {"tokens of a micro-batch": f"{tokens:,}"}


def _states(problem: Problem, layout: Layouts) -> Facts:
    row = layout.row(0)
    zero = {"ZeRO": f"{row['zero_stage']} over {row['dp_shard']} ranks"}
    return {axis.upper(): f"{row[axis]}" for axis in ("tp", "pp", "ep")[: 2 + problem.model.is_moe]} | zero


def _time_facts(problem: Problem, layout: Layouts, stage: tuple[Facts, Facts], how: Facts) -> dict[str, Facts]:
    row, first, links = layout.row(0), problem.links.levels[0].name, spans(problem, layout)
    (batches, size), (layers, again), states = _work(problem, layout), stage, _states(problem, layout)
    work = batches | size | layers | {"TP": f"{row['tp']}"}
    where = {axis: {span.axis: span.said(first)} for axis, span in links.items()}
    schedule = {"schedule": SCHEDULES[row["schedule"]], "PP": f"{row['pp']}", "VPP": f"{row['vpp']}"}
    return dict.fromkeys(("gemm", "attention"), work) | {
        "elementwise": work | _parallel(row),
        "kernel_gaps": batches | layers,
        "recompute": again | work,
        "tensor_parallel": where["tp"] | batches | size | layers,
        "context_parallel": where["cp"] | size | layers,
        "expert_parallel": where.get("ep", {}) | size | layers,
        "pipeline_send": where["pp"] | batches | {"VPP": f"{row['vpp']}"},
        "data_parallel": where["dp"] | states | layers,
        "bubble": schedule | batches | how,
        "optimizer": states | layers,
        "overhead": {"a share of": "the rest"},
    }


def _memory_facts(problem: Problem, layout: Layouts, stage: tuple[Facts, Facts]) -> dict[str, Facts]:
    row, (_, size), (layers, again) = layout.row(0), _work(problem, layout), stage
    schedule = {"schedule": SCHEDULES[row["schedule"]], "PP": f"{row['pp']}", "VPP": f"{row['vpp']}"}
    parallel, split = _parallel(row), {"TP": f"{row['tp']}"}
    return dict.fromkeys(("weights", "gradients", "optimizer", "gathered"), _states(problem, layout) | layers) | {
        "activations": schedule | size | layers | again | parallel,
        "recompute_buffer": size | again,
        "logits": size | split,
        "buffers": size | split | parallel,
        "fragmentation": {"a share of": "the rest"},
    }


def _parallel(row: Mapping[str, int]) -> Facts:
    return {"sequence parallelism": "on" if row["sequence_parallel"] else "off"}
