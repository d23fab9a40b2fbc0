"""A user's value of an axis -> its number, or the error that names what could stand in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from costmodel.layouts import CODED
from costmodel.problem import Problem
from hardware.errors import InputError
from hardware.spelling import did_you_mean
from search.possible import ALL_RANKS, applicable, recompute_codes, recomputes

LISTED = ("zero_stage", "recompute", "sequence_parallel", *CODED)
"""Axes whose values a profile lists."""
WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "etp", "micro_batch"), ("divisors",)),
    **dict.fromkeys(LISTED, ("profile",)),
    "dp_shard": ("all", "nodes", "divisors"),
    "recompute": ("profile", "modules"),
    "recompute_layers": ("every",),
}
"""Words that stand for values of an axis."""


def limit(
    problem: Problem, axis: str, wanted: Mapping[str, Sequence[int | str]], possible: tuple[int, ...], strict: bool
) -> tuple[int, ...]:
    """The user's values of an axis, checked one by one; `wanted` are those of every axis."""
    values = wanted[axis]
    numbers = [number_of(problem, axis, value) for value in values]
    loose = not strict and axis not in LISTED and not _ruled_out(problem, axis)
    codes = {value if loose and value > 0 else _checked(problem, axis, value, possible, wanted) for value in numbers}
    if not codes:
        raise InputError(f"{axis}: no value is given")
    if axis == "recompute":  # of sets that come to the same on this model, the first one typed
        codes = set({recomputes(problem, code): code for code in reversed(numbers)}.values())
    return tuple(sorted(codes))


def number_of(problem: Problem, axis: str, value: object) -> int:
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
        words = ", ".join(WORDS.get(axis, ())) or "none"
        raise InputError(f"{axis} {value!r}: expected whole numbers (words: {words})")
    return value


def _checked(
    problem: Problem, axis: str, value: int, possible: tuple[int, ...], wanted: Mapping[str, Sequence[int | str]]
) -> int:
    """A user's value, or the InputError that says what could stand in its place."""
    profile = problem.profile
    if axis == "recompute" and 0 <= value < len(profile.recompute):
        choice = profile.recompute[value]
        if choice.full or not choice.modules or applicable(problem, choice):
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
    if axis == "recompute_layers":
        possible = tuple(n for n in possible if n < _fullest(problem, wanted))  # these are all, which 0 stands for
    usable = [n for n in possible if _usable(problem, axis, n, wanted)]
    found = [str(n) for n in neighbouring(value, usable or possible)] or ["0 (all)"]
    nearest = "nearest"
    if 0 < len(usable) < len(possible):
        others = dict.fromkeys(other for group in TOGETHER if axis in group for other in group if other != axis)
        given = [f"{other} {some(wanted[other])}" for other in others if tuple(wanted.get(other, (1,))) != (1,)]
        nearest += f" with {', '.join(given)}"
    nearest += f" {'are' if len(found) > 1 else 'is'} {' and '.join(found)}"
    raise InputError(f"{axis} {value}: not possible on {_why(problem, axis)}; {nearest}")


TOGETHER = (("tp", "pp", "cp", "dp"), ("pp", "ep", "etp"))
"""Axes whose product divides the GPUs: those of a layer, and those of an expert."""


def _usable(problem: Problem, axis: str, value: int, wanted: Mapping[str, Sequence[int | str]]) -> bool:
    """Whether a value goes together with some of those that are asked of other axes."""
    gpus = problem.workload.gpus
    return all(
        any(
            all(isinstance(n, int) and n > 0 for n in others) and gpus % (value * prod(map(int, others))) == 0
            for others in product(*(wanted[other] for other in group if other != axis and wanted.get(other)))
        )
        for group in TOGETHER
        if axis in group
    )


def _fullest(problem: Problem, wanted: Mapping[str, Sequence[int | str]]) -> int:
    """Layers of the fullest stage of the fewest stages that are asked for."""
    stages = [n for n in wanted.get("pp", ()) if isinstance(n, int) and 0 < n <= problem.model.layers]
    return -(-problem.model.layers // min(stages, default=1))


def neighbouring(value: int, values: Sequence[int]) -> list[int]:
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


def some(values: Sequence[int | str]) -> str:
    """The values, eight of them at most."""
    return ", ".join(map(str, values[:8])) + (" ..." if len(values) > 8 else "")
