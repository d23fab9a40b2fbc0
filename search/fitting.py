"""Which neighbours of a layout fit: the fewest stages or ranks, the largest micro-batch, by the cost model's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from costmodel.layouts import SCHEDULES, Layouts
from costmodel.memory import memory
from costmodel.problem import Problem
from costmodel.profile import Profile
from hardware.errors import InputError
from search.possible import divisors, possible_values
from search.scored import Scored

LARGEST_MICRO_BATCH = 64


def usual_schedule(profile: Profile, pp: int, vpp: int = 1) -> int:
    """Code of the schedule that is taken when none is named: interleaved with virtual stages, else the profile's."""
    usual = "interleaved" if vpp > 1 else "1f1b" if pp == 1 else profile.default_schedule
    return SCHEDULES.index(usual)


def data_degree(problem: Problem, row: Mapping[str, int]) -> int:
    """DP of a layout: its own, or what TP, PP and CP leave. Raises InputError if they do not multiply to the GPUs."""
    gpus, named = problem.workload.gpus, [axis for axis in ("tp", "pp", "cp", "dp") if axis in row]
    degrees, made = " x ".join(f"{axis} {row[axis]}" for axis in named), prod(row[axis] for axis in named)
    if "dp" in row and made != gpus:
        raise InputError(f"{degrees} = {made}, not the {gpus} GPUs of the job")
    if gpus % made:
        raise InputError(f"{degrees} = {made} does not divide the {gpus} GPUs of the job")
    return row["dp"] if "dp" in row else gpus // made


def usual_etp(problem: Problem, tp: int, cp: int, ep: int) -> int:
    """Degree inside an expert that is taken when none is named: 1, or tp where the profile cannot launch 1."""
    bound = problem.model.is_moe and problem.profile.ep_spans_cp_tp
    return tp if bound and (ep == 1 or ep % (cp * tp)) else 1


def needs(problem: Problem, rows: Sequence[Mapping[str, int]]) -> list[float]:
    """Bytes that must fit, for each of some layouts."""
    if not rows:
        return []
    layouts = Layouts.from_columns({axis: [row[axis] for row in rows] for axis in rows[0]})
    return [float(need) for need in memory(problem, layouts, problem.split(np.unique(layouts.pp).tolist())).total]


def fewest(it: Scored, axis: str) -> int | None:
    """The smallest `tp` or `pp` at which the layout fits if DP takes up the difference; None if it never does."""
    row = it.layout.row(0)
    degrees = [_with(it.problem, row, axis, degree) for degree in divisors(it.problem.workload.gpus)]
    return min((found[axis] for found in degrees if found and _fits(it, found)), default=None)


def largest_micro_batch(it: Scored) -> int | None:
    """The largest power of two up to 64 that divides a rank's sequences and fits; None if not even 1 does."""
    row, batch = it.layout.row(0), it.problem.workload.global_batch
    sizes = [1 << power for power in range(LARGEST_MICRO_BATCH.bit_length())]
    rows = [row | {"micro_batch": size} for size in sizes if batch % (row["dp"] * size) == 0]
    return max((found["micro_batch"] for found in rows if _fits(it, found)), default=None)


def _fits(it: Scored, row: Mapping[str, int]) -> bool:
    """Whether a row fits with the layout's own stages, of another number with the closed form's."""
    own = (row["pp"], row["vpp"]) == (it.axis("pp"), it.axis("vpp"))
    stages = it.stages if own else it.problem.split([row["pp"]])
    return bool(memory(it.problem, Layouts.of(**row), stages).total[0] <= it.problem.memory_limit)


def _with(problem: Problem, row: Mapping[str, int], axis: str, degree: int) -> dict[str, int] | None:
    """The row at another degree; None if the shape of the model or the job has no such layout."""
    found = dict(row) | {axis: degree}
    others, gpus = found["tp"] * found["pp"] * found["cp"], problem.workload.gpus
    possible = possible_values(problem)
    if gpus % others or any(found[name] not in possible[name] for name in ("tp", "pp")):
        return None
    found["dp"] = gpus // others
    found["dp_shard"] = found["dp"] * found["cp"]
    if found["tp"] * found["dp_shard"] % (found["ep"] * found["etp"]):
        return None
    if axis == "tp":
        found["sequence_parallel"] = int(found["tp"] > 1 and problem.profile.sequence_parallel)
    else:
        found |= {"vpp": 1, "schedule": usual_schedule(problem.profile, found["pp"])}
    return found
