"""What to change so that a request has a layout: the nearest layouts, the nearest value of one input or of the GPUs.

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
from hardware.cluster import Cluster
from hardware.errors import InputError
from hardware.units import parse
from search.conflict import Candidates, Witness, leaner
from search.expansion import Table
from search.possible import ALL_RANKS
from search.rule import Rule, violations
from search.rules import rules
from search.space import SearchSpace, load_space, no_world_size

FOLLOWERS = ("dp", "dp_shard")
"""Axes that follow tp, pp and cp: their own change counts only where none of these changes."""
LEADERS = ("tp", "pp", "cp")
MOST_CHANGES = 3
MOST_LAYOUTS = 6
WIDEST = 8
TRIED = 32
"""Numbers of GPUs, nearest first, that are looked at one by one."""
SHORTEST, TOKENS = 512, 16
"""Tokens below which a sequence is not cut, and in whose multiples it is."""
TENTH = parse("0.1 GiB")
"""Bytes in whose multiples the headroom is given up."""

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
    """Every fix found: layouts with the fewest changed axes, then one input, then the nearest number of GPUs.

    If none is to be had under the limits of the request, the nearest number of GPUs without them.
    """
    fewer = {rule.name for rule, _ in core} != {"memory"}
    found = [*nearest_layouts(problem, space), *_inputs(problem, space, core)]
    found += nearest_gpus(problem, space, fewer=fewer)
    return found or nearest_gpus(problem, replace(space, limits={}), space, fewer=fewer)


# -- layouts


def nearest_layouts(problem: Problem, space: SearchSpace) -> list[Fix]:
    """Layouts off the limits of `space` on as few axes as possible: for each such set of axes the nearest, nearest
    first. Near is a count of steps along an axis's values, then a high MFU.
    """
    if not space.limits:
        return []
    free, asked = leaner(load_space(problem, space.name, tp_across_domains=space.tp_across_domains)), leaner(space)
    axes = {axis: tuple(sorted({*free.axes[axis], *asked.axes[axis]})) for axis in AXES}
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
    if "memory" in names:
        yield from _memory_given_up(problem, space)
    for name, values in _inputs_to_try(problem, names, [witness.row for _, witness in core]):
        tried = (_with(problem, space, name, value) for value in values)
        yield from islice(filter(None, tried), 1)
    if "memory" in names:
        yield from _shorter(problem, space)
    if "tp_domain" in names:
        fix = _first(problem, replace(space, tp_across_domains=True), {"any_domain": (False, True)})
        if fix:
            yield fix


def _inputs_to_try(
    problem: Problem, names: set[str], rows: Iterable[Mapping[str, int]]
) -> Iterator[tuple[str, list[int] | list[str]]]:
    work, found = problem.workload, list(rows)
    if names & {"global_batch", "micro_batch", "micro_batches"}:
        units = [row["dp"] * row["micro_batch"] * more for row in found for more in (1, row["pp"], 2 * row["pp"])]
        yield "global_batch", _multiples(work.global_batch, units)
    if names & {"sequence", "sequence_split", "fp8_tokens"}:
        units = [lcm(2 * row["cp"], row["cp"] * row["tp"], 16) for row in found]
        yield "seq_len", _multiples(work.seq_len, units)
    if "memory" in names:
        for name in ("grad_dtype", "moments_dtype"):
            yield name, ["bf16"] if getattr(work, name) == "fp32" else []


def _multiples(number: int, units: Iterable[int]) -> list[int]:
    """The multiples of each unit next below and above a number, nearest first."""
    found = {number // unit * unit + more for unit in units for more in (0, unit)} - {0, number}
    return sorted(found, key=lambda value: (abs(value - number), value))


def _memory_given_up(problem: Problem, space: SearchSpace) -> Iterator[Fix]:
    """The largest headroom, to a tenth of a GiB, and the largest margin, to a hundredth, with which anything fits."""
    work, candidates = problem.workload, Candidates(problem, leaner(space))
    leanest = candidates.leanest(candidates.legal)
    if leanest is None:
        return
    tenths, hundredths = int(work.headroom / TENTH), int(work.memory_margin * 100)
    steps = {
        "headroom": [tenth * TENTH for tenth in range(tenths, -1, -1)],
        "memory_margin": [hundredth / 100 for hundredth in range(hundredths, 49, -1)],
    }
    for name, values in steps.items():
        for value in values:
            less = replace(problem, workload=replace(work, **{name: value}))  # type: ignore[arg-type]
            if value < getattr(work, name) and leanest.need <= less.memory_limit:
                yield from filter(None, [_with(problem, space, name, value)])
                break


def _shorter(problem: Problem, space: SearchSpace) -> Iterator[Fix]:
    """The longest sequence below the one asked for that has a layout, in multiples of TOKENS, by bisection.

    Of the lengths between its ends the middle one divides by the most powers of two: what splits another one that is
    longer splits it, too, and needs less.
    """
    asked, longest, found = problem.workload.seq_len, 0, None
    for bit in reversed(range(TOKENS.bit_length() - 1, (asked - 1).bit_length())):
        length = longest + (1 << bit)
        if SHORTEST <= length < asked and (fix := _with(problem, space, "seq_len", length)):
            longest, found = length, fix
    yield from filter(None, [found])


# -- GPUs


def nearest_gpus(
    problem: Problem, space: SearchSpace, asked: SearchSpace | None = None, *, fewer: bool = True
) -> list[Fix]:
    """The number of GPUs nearest the one asked for, a part of a node or whole nodes, that has a layout under the limits
    of `space`; [] if none has. Without `fewer` none below is looked at: what lacks memory needs more.

    dp, and with it dp_shard, follows the number of GPUs where no number goes with their limits. The number asked for
    counts if `space` has lost the limits of the request, which is `asked` then. Looked at are the TRIED nearest numbers
    from as many as hold the states, and beyond them halvings and doublings, to WIDEST times as many as those or as were
    asked for.
    """
    gpus, per = problem.workload.gpus, state_bytes(problem)
    least = ceil((per.weight + per.gradient + per.optimizer) * total(problem.model) / problem.memory_limit)
    sizes = [size for size in _sizes(problem.cluster, WIDEST * max(least, gpus)) if size >= least]
    sizes = [size for size in sizes if size > gpus or (fewer and size < gpus) or (asked and size == gpus)]
    free = {axis: kept for axis, kept in space.limits.items() if axis not in FOLLOWERS}

    def sized(size: int, limits: Mapping[str, tuple[int, ...]]) -> Fix | None:
        other, change = replace(problem, workload=replace(problem.workload, gpus=size)), {"gpus": (gpus, size)}
        return _first(other, replace(space, limits=limits), change if size != gpus else {}, asked or space)

    nearest = sorted(sizes, key=lambda size: (abs(size - gpus), size))
    ends = {*_doublings(sizes, max(least, gpus)), *_halvings(sizes, gpus)} - {*nearest[:TRIED]}
    tried = [*nearest[:TRIED], *(size for size in nearest if size in ends)]
    each = (sized(size, limits) for limits in (space.limits, free)[free == space.limits :] for size in tried)
    return list(islice(filter(None, each), 1))


def _sizes(cluster: Cluster, most: int) -> list[int]:
    """Numbers of GPUs that a job can have: parts of a node and whole nodes."""
    node = cluster.gpus_per_node
    return [*range(1, node), *range(node, min(most, cluster.max_gpus) + 1, node)]


def _doublings(sizes: Sequence[int], first: int) -> Iterator[int]:
    """Of the rising sizes the first not below 1, 2, 4 ... times `first`."""
    for times in range(WIDEST.bit_length()):
        yield from islice((size for size in sizes if size >= first << times), 1)


def _halvings(sizes: Sequence[int], last: int) -> Iterator[int]:
    """Of the rising sizes the last not above 1, 1/2, 1/4 ... of `last`."""
    for times in range(last.bit_length()):
        yield from islice((size for size in reversed(sizes) if size <= last >> times), 1)


# -- what is common


def _with(problem: Problem, space: SearchSpace, name: str, value: int | float | str) -> Fix | None:
    """A fix by another value of an input."""
    changed = replace(problem, workload=replace(problem.workload, **{name: value}))  # type: ignore[arg-type]
    return _first(changed, space, {name: (getattr(problem.workload, name), value)})


def _first(problem: Problem, space: SearchSpace, change: Change, asked: SearchSpace | None = None) -> Fix | None:
    """A fix under another problem or space; None if it has no layout. `asked` holds the limits of the request."""
    try:
        loaded = load_space(problem, space.name, space.limits, tp_across_domains=space.tp_across_domains, strict=False)
    except InputError:
        return None
    if no_world_size(problem, loaded):
        return None
    candidates = Candidates(problem, leaner(loaded))
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
