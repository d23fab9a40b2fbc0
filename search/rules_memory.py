"""Rules about memory: the lower bound that a skeleton implies, and what an estimate says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from costmodel.floor import activation_floor, dense_floor, expert_floor, fixed_floor
from costmodel.layouts import Column
from costmodel.problem import Problem
from hardware.units import format_bytes
from search.rule import Rule

MEGABYTE = 1e6
MOST = 1e18
"""Bytes beyond which a bound says nothing more: CP-SAT's sums stay whole numbers."""


@dataclass(frozen=True, slots=True)
class Floor:
    """A part of the lower bound on memory: whole MB, rounded down, from a few skeleton columns."""

    name: str
    columns: tuple[str, ...]
    megabytes: Callable[..., Column]


def floors(problem: Problem) -> tuple[Floor, ...]:
    """The parts of the lower bound on memory; their sum never exceeds what a layout of the skeleton needs."""

    def whole(values: Column) -> Column:
        return np.floor(np.minimum(np.asarray(values, dtype=np.float64), MOST) / MEGABYTE).astype(np.int64)

    fixed = int(fixed_floor(problem) // MEGABYTE)
    return (
        Floor("fixed", (), lambda: np.asarray(fixed)),
        Floor("dense", ("tp", "pp"), lambda tp, pp: whole(dense_floor(problem, tp, pp))),
        Floor("experts", ("pp", "ep", "etp"), lambda pp, ep, etp: whole(expert_floor(problem, pp, ep, etp))),
        Floor("activations", ("tp", "cp", "pp"), lambda tp, cp, pp: whole(activation_floor(problem, tp, cp, pp))),
    )


def memory_budget(problem: Problem) -> int:
    """Memory that a layout may need in whole MB, rounded down."""
    return int(problem.memory_limit // MEGABYTE)


def memory_floor(problem: Problem) -> Rule:
    parts, budget, usable = floors(problem), memory_budget(problem), problem.cluster.gpu.usable_memory
    columns = ("tp", "pp", "cp", "ep", "etp")

    def need(*values: Column) -> dict[str, Column]:
        table = dict(zip(columns, map(np.asarray, values), strict=True))
        return {part.name: part.megabytes(*(table[name] for name in part.columns)) for part in parts}

    def because(*values: int) -> str:
        found = {name: int(np.ravel(amount)[0]) for name, amount in need(*map(np.atleast_1d, values)).items()}
        shown = " + ".join(f"{name} {_size(amount)}" for name, amount in found.items() if amount)
        least = f"needs at least {_size(sum(found.values()))} ({shown})"
        free = kept_free(problem, sum(found.values()) * MEGABYTE)
        return f"{least} of {format_bytes(usable)} usable{free}"

    return Rule("memory_floor", columns, lambda *values: sum(need(*values).values()) <= budget, because)


def memory_rule(problem: Problem) -> Rule:
    """Memory within the problem's limit; the rule's column is the estimate's memory_headroom in bytes."""
    usable = problem.cluster.gpu.usable_memory
    least = usable - problem.memory_limit
    return Rule(
        "memory",
        ("memory_headroom",),
        lambda headroom: headroom >= least,
        lambda headroom: (
            f"needs {format_bytes(usable - headroom)} of {format_bytes(usable)} usable"
            + kept_free(problem, usable - headroom)
        ),
    )


def kept_free(problem: Problem, need: float = 0.0) -> str:
    """What stands after the usable memory where a headroom is demanded, or a margin that decides about this need."""
    work = problem.workload
    free = f", {format_bytes(work.headroom)} to stay free" if work.headroom else ""
    if work.memory_margin == 0.5 or need > problem.cluster.gpu.usable_memory - work.headroom:
        return free
    return f"{free}, to fit with probability {work.memory_margin:g} at most {format_bytes(problem.memory_limit)}"


def _size(megabytes: int) -> str:
    return format_bytes(megabytes * MEGABYTE)
