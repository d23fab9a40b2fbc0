"""SearchSpace: the values that each axis may take, for one problem.

A candidate is one tuple of axis values whose TP x PP x CP x DP is the number of GPUs. What the profile cannot launch
is not in the space; what the rules reject is in it, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np

from costmodel.layouts import AXES, Column
from costmodel.problem import Problem
from hardware.errors import InputError
from hardware.reader import Table
from hardware.spelling import did_you_mean
from search.limits import WORDS, limit, neighbouring, number_of, some
from search.possible import ALL_RANKS, divisors, possible_values, recompute_codes

SKELETON_AXES: tuple[str, ...] = ("tp", "pp", "cp", "dp", "ep", "etp")
"""The axes that CP-SAT enumerates; their product with the others is NumPy's."""
WORLD: tuple[str, ...] = SKELETON_AXES[:4]
"""Degrees whose product is the number of GPUs."""
INNER_AXES: tuple[str, ...] = tuple(axis for axis in AXES if axis not in SKELETON_AXES)

_DATA = Path(__file__).parent / "spaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Rising values of every axis (codes where it has names; ALL_RANKS in dp_shard for all of them).

    `limits` are the axes that the user restricted, `tp_across_domains` lifts the rule that tensor-parallel groups
    stay within the fast links.
    """

    name: str
    axes: Mapping[str, tuple[int, ...]]
    limits: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tp_across_domains: bool = False

    def shard_choices(self, ranks: Column) -> Column:
        """How many different values dp_shard takes, where dp * cp is `ranks`."""
        groups = np.array([value for value in self.axes["dp_shard"] if value != ALL_RANKS], dtype=np.int64)
        if ALL_RANKS not in self.axes["dp_shard"]:
            return np.full(len(ranks), len(groups), dtype=np.int64)
        same = np.isin(ranks, groups).astype(np.int64)
        return 1 + len(groups) - same

    def grid(self, gpus: int) -> dict[str, Column]:
        """Every skeleton tuple whose tp * pp * cp * dp is `gpus`, as int64 columns sorted by SKELETON_AXES."""
        rows = [
            (tp, pp, cp, gpus // (tp * pp * cp))
            for tp, pp, cp in product(self.axes["tp"], self.axes["pp"], self.axes["cp"])
            if gpus % (tp * pp * cp) == 0
        ]
        quads = np.array(rows, dtype=np.int64).reshape(-1, 4)
        quads = quads[np.isin(quads[:, 3], self.axes["dp"])]
        pairs = np.array(list(product(self.axes["ep"], self.axes["etp"])), dtype=np.int64)
        table = np.hstack([np.repeat(quads, len(pairs), axis=0), np.tile(pairs, (len(quads), 1))])
        return {axis: np.ascontiguousarray(table[:, i]) for i, axis in enumerate(SKELETON_AXES)}


def space_names() -> tuple[str, ...]:
    """Names of the shipped spaces, sorted."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.toml")))


def describe_spaces() -> dict[str, str]:
    """One line about each shipped space."""
    return {name: Table.load(_DATA / f"{name}.toml").text("summary") for name in space_names()}


def load_space(
    problem: Problem,
    name: str = "default",
    limits: Mapping[str, Iterable[int | str]] | None = None,
    *,
    tp_across_domains: bool = False,
    strict: bool = True,
) -> SearchSpace:
    """The space of a shipped name or a TOML file for this problem, each axis in `limits` restricted to its values.

    Limits take numbers, `all` for dp_shard, and names (or codes) for recompute, schedule and rank_order. Without
    `strict` they may hold degrees and sizes that the rules reject: for those who ask why.
    Raises InputError for an unknown space or axis, a value that no candidate of the problem can have (it names the
    nearest that can), one that the profile cannot launch, and, if `strict`, degrees that never multiply to the GPUs.
    """
    wanted = {axis: tuple(values) for axis, values in (limits or {}).items() if values is not None}
    for axis in wanted:
        if axis not in AXES:
            raise InputError(f"unknown axis {axis!r}{did_you_mean(axis, AXES) or ';'} known: {', '.join(AXES)}")
    table = Table.load(_find(name))
    possible = possible_values(problem)
    fixed = {axis: limit(problem, axis, wanted, possible[axis], strict) for axis in wanted}
    axes = _read(table, problem, possible) | fixed
    space = SearchSpace(name=name, axes=axes, limits=fixed, tp_across_domains=tp_across_domains)
    if strict and (because := no_world_size(problem, space)):
        raise InputError(because)
    return space


def no_world_size(problem: Problem, space: SearchSpace) -> str:
    """Why no degrees of the space multiply to the GPUs, with the nearest that do; empty if some do."""
    gpus, degrees = problem.workload.gpus, [axis for axis in WORLD if axis in space.limits]
    alone = replace(space, axes={**space.axes, "ep": (1,), "etp": (1,)})
    if len(alone.grid(gpus)["tp"]):
        return ""
    near, possible = [], possible_values(problem)
    for axis in degrees:
        found = replace(alone, axes={**alone.axes, axis: possible[axis]}).grid(gpus)[axis]
        values = neighbouring(space.limits[axis][0], sorted(set(found.tolist())))
        near += [f"{axis} {' or '.join(map(str, values))}"] if values else []
    asked = " x ".join(f"{axis} {some(space.limits[axis])}" for axis in degrees) or f"space {space.name}"
    nearest = f"; nearest: {'; or '.join(near)}" if near else ""
    if len(degrees) == 1 and degrees[0] != "dp":
        return f"{asked}: does not divide {gpus} GPUs{nearest}"
    return f"{asked}: no tp x pp x cp x dp makes {gpus} GPUs{nearest}"


def _find(name: str) -> Path:
    path = _DATA / f"{name}.toml"
    if path.is_file() and name in space_names():
        return path
    if not name.endswith(".toml"):
        names = space_names()
        raise InputError(f"unknown space {name!r}{did_you_mean(name, names) or ';'} known: {', '.join(names)}")
    return Path(name)


def _read(table: Table, problem: Problem, possible: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Every axis of a space file, or of the default space where it is left out, within what the problem allows."""
    table.text("summary", default="no summary")
    usual, axes = Table.load(_DATA / "default.toml"), {}
    for axis in AXES:
        own = _holder(table, usual, "axes", axis)
        most = _holder(table, table if own.file == table.file else usual, "at_most", axis)
        ceiling = most.optional_integer(axis, minimum=1)
        raw = own.raw(axis)
        values: set[int] = set()
        for entry in raw if isinstance(raw, list) else [raw]:
            if isinstance(entry, str) and entry in WORDS.get(axis, ()):
                found = _word(problem, axis, entry, possible[axis])
                values |= {value for value in found if ceiling is None or value <= ceiling}
            else:
                values |= {code for code in [_code(problem, axis, entry, own)] if code in possible[axis]}
        if not values:
            raise own.error(axis, f"no value fits the problem; possible are {some(possible[axis])}")
        axes[axis] = tuple(sorted(values))
    table.finish()
    return axes


def _holder(table: Table, usual: Table, part: str, axis: str) -> Table:
    """The part (axes, at_most) of a space file that holds an axis, else that of `usual`; empty if there is none."""
    for file in (table, usual):
        found = file.optional_table(part)
        if found is not None and found.has(axis):
            return found
    return Table({}, usual.file, part)


def _word(problem: Problem, axis: str, word: str, possible: tuple[int, ...]) -> tuple[int, ...]:
    """The values that a word stands for on this axis."""
    if word == "all":
        return (ALL_RANKS,)
    if axis == "recompute" and word == "profile":
        return recompute_codes(problem)
    if word == "every":
        return possible[1:]
    gpus, node = problem.workload.gpus, problem.cluster.gpus_per_node
    if axis == "dp_shard":
        groups = divisors(gpus) if word == "divisors" else tuple(node << i for i in range(gpus.bit_length()))
        return tuple(n for n in groups if 1 < n <= gpus and n in possible)
    if possible == (1,) or axis not in ("tp", "cp", "etp"):
        return possible
    ceiling = gpus if axis == "cp" else problem.model.heads
    return tuple(n for n in divisors(gpus) if n <= ceiling)


def _code(problem: Problem, axis: str, value: object, table: Table) -> int:
    """One value of a space file as a number; names become codes."""
    try:
        return number_of(problem, axis, value)
    except InputError as error:
        raise table.error(axis, str(error)) from None
