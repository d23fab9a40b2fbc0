"""What to change so that a request has a layout: the nearest layouts, one input, the number of GPUs.

A fix is never assumed: its layout keeps every rule and fits by the estimate, on the problem that the fix describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from math import ceil, lcm

import numpy as np

from costmodel.estimate import estimate
from costmodel.layouts import AXES, Layouts
from costmodel.params import total
from costmodel.problem import Problem
from costmodel.states import state_bytes
from hardware.errors import InputError
from search.conflict import Candidates, Witness
from search.expansion import Table
from search.rule import Rule, violations
from search.rules import rules
from search.space import ALL_RANKS, SearchSpace, load_space, no_world_size

FOLLOWERS = ("dp", "dp_shard")
"""Axes that follow tp, pp and cp: their own change counts only where none of these changes."""
LEADERS = ("tp", "pp", "cp")
MOST_CHANGES = 3
MOST_LAYOUTS = 6
WIDEST = 8
SHORTEST = 512
"""Tokens below which a sequence is not cut."""

Change = Mapping[str, tuple[object, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A change of axes (codes) and inputs, (from, to) each, and the fastest layout met under it, a table of one row.

    `from` of an axis is a tuple: the values that the request allows.
    """

    change: Change
    problem: Problem
    layout: Layouts
    memory_headroom: float
    mfu: float


def fixes(problem: Problem, space: SearchSpace, core: Sequence[tuple[Rule, Witness]]) -> list[Fix]:
    """Every fix found: layouts with the fewest changed axes, then one input, then the fewest whole nodes of GPUs.

    If none is to be had under the limits of the request, the fewest GPUs without them.
    """
    found = [*nearest_layouts(problem, space), *_inputs(problem, space, core), *fewest_gpus(problem, space)]
    return found or fewest_gpus(problem, replace(space, limits={}), space)


# -- layouts


def nearest_layouts(problem: Problem, space: SearchSpace) -> list[Fix]:
    """Layouts off the limits of `space` on as few axes as possible: for each such set of axes the nearest, nearest
    first. Near is a count of steps along an axis's values, then a high MFU.
    """
    if not space.limits:
        return []
    free = load_space(problem, space.name, tp_across_domains=space.tp_across_domains)
    axes = {axis: tuple(sorted({*free.axes[axis], *space.axes[axis]})) for axis in AXES}
    candidates = Candidates(problem, replace(free, axes=axes))
    limited = [axis for axis in AXES if axis in space.limits]
    for count in range(1, min(MOST_CHANGES, len(limited)) + 1):
        sets = [chosen for chosen in combinations(limited, count) if not _follows(chosen)]
        found = [fix for chosen in sets for fix in [_nearest(candidates, space, chosen)] if fix]
        if found:
            return [fix for _, fix in sorted(found, key=lambda item: (item[0], -item[1].mfu))][:MOST_LAYOUTS]
    return []


def _follows(axes: Sequence[str]) -> bool:
    """Whether a set names an axis that follows another one of it."""
    return ("dp" in axes and any(axis in axes for axis in LEADERS)) or (
        "dp_shard" in axes and any(axis in axes for axis in (*LEADERS, "dp"))
    )


def _nearest(candidates: Candidates, space: SearchSpace, changed: Sequence[str]) -> tuple[int, Fix] | None:
    """The nearest layout that is off the limits on the axes `changed` and those that follow them, and its steps."""
    wide = candidates.space.axes
    loose = {axis for axis in FOLLOWERS if _follows((axis, *changed))}
    fixed = {axis: values for axis, values in space.limits.items() if axis not in {*loose, *changed}}
    view = candidates.within(fixed)
    if next(view.fitting(view.legal), None) is None:
        return None
    steps = {axis: _steps(wide[axis], space.limits[axis]) for axis in changed}
    for values in sorted(product(*steps.values()), key=lambda each: sum(far for far, _ in each)):
        one = view.within({axis: (value,) for axis, (_, value) in zip(changed, values, strict=True)})
        table = next(one.fitting(one.legal), None)
        if table is not None:
            return sum(far for far, _ in values), _fix(one, table, space, {})
    return None


def _steps(values: Sequence[int], allowed: Sequence[int]) -> list[tuple[int, int]]:
    """(steps to the nearest allowed value, value) of every value that is not allowed."""
    places = [values.index(value) for value in allowed]
    off = [(min(abs(place - at) for at in places), value) for place, value in enumerate(values) if value not in allowed]
    return sorted(off)


# -- inputs


def _inputs(problem: Problem, space: SearchSpace, core: Sequence[tuple[Rule, Witness]]) -> Iterator[Fix]:
    """For each input that the rules in conflict look at, the first of its nearest values that has a layout."""
    names = {rule.name for rule, _ in core}
    for name, values in _inputs_to_try(problem, names, [witness.row for _, witness in core]):
        before = getattr(problem.workload, name)
        for value in values:
            changed = replace(problem, workload=replace(problem.workload, **{name: value}))  # type: ignore[arg-type]
            fix = _first(changed, space, {name: (before, value)})
            if fix:
                yield fix
                break
    if "tp_domain" in names:
        fix = _first(problem, replace(space, tp_across_domains=True), {"any_domain": (False, True)})
        if fix:
            yield fix


def _inputs_to_try(
    problem: Problem, names: set[str], rows: Iterable[Mapping[str, int]]
) -> Iterator[tuple[str, list[int] | list[str] | list[float]]]:
    work, found = problem.workload, list(rows)
    if names & {"global_batch", "micro_batch", "micro_batches"}:
        units = [row["dp"] * row["micro_batch"] * more for row in found for more in (1, row["pp"], 2 * row["pp"])]
        yield "global_batch", _multiples(work.global_batch, units)
    if names & {"sequence", "sequence_split", "fp8_tokens"}:
        units = [lcm(2 * row["cp"], row["cp"] * row["tp"], 16) for row in found]
        yield "seq_len", _multiples(work.seq_len, units)
    if "memory" in names:
        yield "headroom", [0.0] if work.headroom else []
        yield "memory_margin", [0.5] if work.memory_margin > 0.5 else []
        for name in ("grad_dtype", "moments_dtype"):
            yield name, ["bf16"] if getattr(work, name) == "fp32" else []
        halves = (work.seq_len >> times for times in range(1, work.seq_len.bit_length()))
        yield "seq_len", [length for length in halves if length >= SHORTEST]


def _multiples(number: int, units: Iterable[int]) -> list[int]:
    """The multiples of each unit next below and above a number, nearest first."""
    found = {number // unit * unit + more for unit in units for more in (0, unit)} - {0, number}
    return sorted(found, key=lambda value: (abs(value - number), value))


# -- GPUs


def fewest_gpus(problem: Problem, space: SearchSpace, asked: SearchSpace | None = None) -> list[Fix]:
    """The smallest number of GPUs, in whole nodes, that has a layout under the limits of `space`; [] if none has.

    dp, and with it dp_shard, follows the number of GPUs. Nodes are tried one by one, from as many as hold the states
    to WIDEST times as many or as were asked for. `asked` is the request if `space` has lost its limits.
    """
    node, usable, gpus = problem.cluster.gpus_per_node, problem.memory_limit, problem.workload.gpus
    per = state_bytes(problem)
    states = (per.weight + per.gradient + per.optimizer) * total(problem.model)
    least = max(1, ceil(states / (usable * node)))
    most = min(problem.cluster.max_gpus // node, WIDEST * max(least, ceil(gpus / node)))
    limits = {axis: values for axis, values in space.limits.items() if axis not in FOLLOWERS}
    free = replace(space, limits=limits)

    def sized(nodes: int) -> Fix | None:
        other = replace(problem, workload=replace(problem.workload, gpus=nodes * node))
        change = {"gpus": (gpus, nodes * node)} if nodes * node != gpus else {}
        return _first(other, free, change, asked or space)

    doubled = (nodes for nodes in (least << times for times in range(32)) if nodes <= most)
    first = next((nodes for nodes in doubled if sized(nodes)), 0)
    return list(islice(filter(None, map(sized, range(least, first + 1))), 1))


# -- what is common


def _first(problem: Problem, space: SearchSpace, change: Change, asked: SearchSpace | None = None) -> Fix | None:
    """A fix under another problem or space; None if it has no layout. `asked` holds the limits of the request."""
    try:
        loaded = load_space(problem, space.name, space.limits, tp_across_domains=space.tp_across_domains, strict=False)
    except InputError:
        return None
    if no_world_size(problem, loaded):
        return None
    candidates = Candidates(problem, loaded)
    table = next(candidates.fitting(candidates.legal), None)
    return None if table is None else _fix(candidates, table, asked or space, change)


def _fix(candidates: Candidates, table: Table, asked: SearchSpace, change: Change) -> Fix:
    """The fastest row of a table of feasible layouts. Raises RuntimeError if the rules disagree."""
    layouts = Layouts.from_columns(table)
    cost = estimate(candidates.problem, layouts)
    best = int(np.argmax(cost.mfu))
    row, headroom = layouts.row(best), float(cost.memory_headroom[best])
    judged = row | {"memory_headroom": cost.memory_headroom[best]}
    broken = violations(rules(candidates.problem, candidates.space), judged)
    if broken:
        raise RuntimeError(f"a fix that is none: {broken}")
    axes = {axis: (values, row[axis]) for axis, values in asked.limits.items() if not _allows(values, axis, row)}
    return Fix(
        change={**change, **axes},
        problem=candidates.problem,
        layout=layouts.take([best]),
        memory_headroom=headroom,
        mfu=float(cost.mfu[best]),
    )


def _allows(values: Sequence[int], axis: str, row: Mapping[str, int]) -> bool:
    whole = axis == "dp_shard" and row["dp_shard"] == row["dp"] * row["cp"]
    return row[axis] in values or (whole and ALL_RANKS in values)
