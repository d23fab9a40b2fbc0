"""SearchSpace: the values that each axis may take, for one problem.

A candidate is one tuple of axis values whose TP x PP x CP x DP is the number of GPUs. What the profile cannot launch
is not in the space; what the rules reject is in it, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np

from costmodel.layouts import AXES, CODED, RANK_ORDERS, SCHEDULES, Column
from costmodel.problem import Problem
from costmodel.recompute import RecomputeSet
from hardware.errors import InputError
from hardware.reader import Table
from hardware.spelling import did_you_mean

SKELETON_AXES: tuple[str, ...] = ("tp", "pp", "cp", "dp", "ep", "etp")
"""The axes that CP-SAT enumerates; their product with the others is NumPy's."""
WORLD: tuple[str, ...] = SKELETON_AXES[:4]
"""Degrees whose product is the number of GPUs."""
INNER_AXES: tuple[str, ...] = tuple(axis for axis in AXES if axis not in SKELETON_AXES)
ALL_RANKS = 0
"""In `dp_shard`: all dp * cp ranks, whatever their number."""

_DATA = Path(__file__).parent / "spaces"
_WORDS: dict[str, tuple[str, ...]] = {"dp_shard": ("all", "nodes", "divisors")} | dict.fromkeys(
    ("tp", "pp", "dp", "cp", "ep", "etp"), ("divisors",)
)
_WORDS |= {"micro_batch": ("divisors",), "recompute_layers": ("every",)}
_LISTED = ("zero_stage", "recompute", "sequence_parallel", *CODED)
"""Axes whose values a profile lists."""
_WORDS |= dict.fromkeys(_LISTED, ("profile",)) | {"recompute": ("profile", "modules")}


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
    fixed = {axis: _limit(problem, axis, values, possible[axis], strict) for axis, values in wanted.items()}
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
        values = _nearest(space.limits[axis][0], sorted(set(found.tolist())))
        near += [f"{axis} {' or '.join(map(str, values))}"] if values else []
    asked = " x ".join(f"{axis} {_some(space.limits[axis])}" for axis in degrees) or f"space {space.name}"
    nearest = f"; nearest: {'; or '.join(near)}" if near else ""
    if len(degrees) == 1 and degrees[0] != "dp":
        return f"{asked}: does not divide {gpus} GPUs{nearest}"
    return f"{asked}: no tp x pp x cp x dp makes {gpus} GPUs{nearest}"


def possible_values(problem: Problem) -> dict[str, tuple[int, ...]]:
    """For each axis, every value that does not contradict the problem by itself; rising."""
    model, profile, workload = problem.model, problem.profile, problem.workload
    gpus = divisors(workload.gpus)
    interleaved = "interleaved" in profile.schedules
    cp = [n for n in gpus if n == 1 or workload.seq_len % (2 * n) == 0]
    experts = set(divisors(model.experts)) if model.is_moe else {1}
    etp = [n for n in gpus if model.expert_ffn_hidden % n == 0]
    split = model.is_moe and profile.tensor_parallel and profile.expert_tensor_parallel
    return {
        "tp": tuple(n for n in gpus if model.heads % n == 0) if profile.tensor_parallel else (1,),
        "pp": tuple(n for n in gpus if n <= model.layers) if profile.pipeline_parallel else (1,),
        "vpp": tuple(range(1, model.layers + 1)) if interleaved else (1,),
        "dp": gpus,
        "dp_shard": (ALL_RANKS, *gpus) if profile.shard_groups else (ALL_RANKS,),
        "cp": tuple(cp) if profile.context_parallel else (1,),
        "ep": tuple(n for n in gpus if n in experts),
        "etp": tuple(etp) if split else (1,),
        "zero_stage": tuple(sorted(profile.zero_stages)),
        "micro_batch": divisors(workload.global_batch),
        "recompute": recompute_codes(problem, free=True),
        "recompute_layers": tuple(range(model.layers + 1)),
        "sequence_parallel": (0, 1) if profile.sequence_parallel else (0,),
        "schedule": tuple(code for code, known in enumerate(SCHEDULES) if known in profile.schedules),
        "rank_order": tuple(code for code, known in enumerate(RANK_ORDERS) if known in profile.rank_orders),
    }


def recompute_codes(problem: Problem, *, free: bool = False) -> tuple[int, ...]:
    """Codes of the profile's recompute sets that differ on this model, with `free` also of those that its free modules
    make; of equal sets the recommended one stays, else the first."""
    chosen: dict[tuple[str, ...], int] = {}
    for code, choice in enumerate(problem.profile.recompute):
        if not (choice.declared or free):
            continue
        key = ("full",) if choice.full else _applicable(problem, choice)
        if key not in chosen or (key and choice.name == problem.profile.selective):
            chosen[key] = code
    return tuple(sorted(chosen.values()))


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, rising."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


def _applicable(problem: Problem, choice: RecomputeSet) -> tuple[str, ...]:
    """The modules of a recompute set that the model has, those left out that others hold."""
    model = problem.model
    has = {
        "mla_up_proj": model.attention == "mla",
        "moe_act": model.is_moe,
        "moe": model.is_moe,
        "shared_experts": model.shared_experts > 0,
        "mlp": model.dense_layers > 0,
    }
    return tuple(sorted(module for module in choice.outermost if has.get(module, True)))


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
            if isinstance(entry, str) and entry in _WORDS.get(axis, ()):
                found = _word(problem, axis, entry, possible[axis])
                values |= {value for value in found if ceiling is None or value <= ceiling}
            else:
                values |= {code for code in [_code(problem, axis, entry, own)] if code in possible[axis]}
        if not values:
            raise own.error(axis, f"no value fits the problem; possible are {_some(possible[axis])}")
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
        return _number(problem, axis, value)
    except InputError as error:
        raise table.error(axis, str(error)) from None


def _limit(
    problem: Problem, axis: str, values: Iterable[int | str], possible: tuple[int, ...], strict: bool
) -> tuple[int, ...]:
    """The user's values of an axis, checked one by one."""
    numbers = [_number(problem, axis, value) for value in values]
    loose = not strict and axis not in _LISTED and not _ruled_out(problem, axis)
    codes = {value if loose and value > 0 else _checked(problem, axis, value, possible) for value in numbers}
    if not codes:
        raise InputError(f"{axis}: no value is given")
    return tuple(sorted(codes))


def _number(problem: Problem, axis: str, value: object) -> int:
    """A value, name or code of an axis -> its number. Raises InputError with the known names."""
    if axis == "recompute" and isinstance(value, str):
        return problem.profile.recompute_code(value)
    if axis in CODED and isinstance(value, str):
        names = CODED[axis]
        if value in names:
            return names.index(value)
        raise InputError(f"unknown {axis} {value!r}{did_you_mean(value, names) or ';'} known: {', '.join(names)}")
    if axis == "dp_shard" and value == "all":
        return ALL_RANKS
    if isinstance(value, bool) or not isinstance(value, int):
        words = ", ".join(_WORDS.get(axis, ())) or "none"
        raise InputError(f"{axis} {value!r}: expected whole numbers (words: {words})")
    return value


def _checked(problem: Problem, axis: str, value: int, possible: tuple[int, ...]) -> int:
    """A user's value, or the InputError that says what could stand in its place."""
    profile = problem.profile
    if axis == "recompute" and 0 <= value < len(profile.recompute):
        choice = profile.recompute[value]
        if choice.full or not choice.modules or _applicable(problem, choice):
            return value
        raise InputError(f"recompute {choice.name}: {problem.model.name} has no {' or '.join(choice.modules)}")
    if value in possible:
        return value
    names = {**CODED, "recompute": tuple(choice.name for choice in profile.recompute)}.get(axis)
    possible = recompute_codes(problem) if axis == "recompute" else possible
    if names or axis in ("zero_stage", "sequence_parallel") or _ruled_out(problem, axis):
        known = ", ".join(names[code] if names else "all" if axis == "dp_shard" else str(code) for code in possible)
        shown = names[value] if names and 0 <= value < len(names) else value
        raise InputError(f"{axis} {shown}: {_who(problem, axis)} has {known}")
    found = [str(n) for n in _nearest(value, possible)]
    nearest = f"nearest {'are' if len(found) > 1 else 'is'} {' and '.join(found)}"
    raise InputError(f"{axis} {value}: not possible on {_why(problem, axis)}; {nearest}")


def _nearest(value: int, values: Sequence[int]) -> list[int]:
    """The next positive value below and the next one above, where there are such."""
    below, above = [n for n in values if 0 < n < value], [n for n in values if n > value]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def _ruled_out(problem: Problem, axis: str) -> bool:
    """Whether the profile, or a model without experts, leaves the axis one value whatever the number of GPUs."""
    profile, moe = problem.profile, problem.model.is_moe
    return not {
        "tp": profile.tensor_parallel,
        "pp": profile.pipeline_parallel,
        "vpp": "interleaved" in profile.schedules,
        "dp_shard": profile.shard_groups,
        "cp": profile.context_parallel,
        "ep": moe,
        "etp": moe and profile.tensor_parallel and profile.expert_tensor_parallel,
    }.get(axis, True)


def _who(problem: Problem, axis: str) -> str:
    """What rules a value out altogether."""
    if axis in ("ep", "etp") and not problem.model.is_moe:
        return f"{problem.model.name} (no experts)"
    return f"profile {problem.profile.name}"


def _why(problem: Problem, axis: str) -> str:
    """The numbers that a value has to agree with."""
    model, workload = problem.model, problem.workload
    gpus = f"{workload.gpus} GPUs"
    return {
        "tp": f"{gpus} with {model.heads} heads",
        "pp": f"{gpus} with {model.layers} layers",
        "vpp": f"{model.layers} layers",
        "recompute_layers": f"{model.layers} layers",
        "cp": f"{gpus} with sequences of {workload.seq_len} tokens in 2 x cp parts",
        "ep": f"{gpus} with {model.experts} experts",
        "etp": f"{gpus} with experts of width {model.expert_ffn_hidden}",
        "micro_batch": f"a global batch of {workload.global_batch}",
    }.get(axis, gpus)


def _some(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values[:8])) + (" ..." if len(values) > 8 else "")
