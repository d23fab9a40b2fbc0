"""Fits of a shipped profile: one for each architecture, closer to it one for each of its GPUs, and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodel.calibration.fit import Fit, Rates, fit, refit
from costmodel.calibration.knobs import OF_GPU
from costmodel.calibration.predict import predict
from costmodel.calibration.runs import Run, grouped
from costmodel.calibration.verdicts import judged
from costmodel.profile import Profile
from costmodel.rates import MemoryRates, TimeRates

LEAST_RUNS = 5
"""Fewer runs than this fit nothing: a profile's own rates stay."""
WORTH = 0.9
"""A fit is kept if it lowers the mean error to less than this share of it."""
NOTHING = 1e-9
"""A fitted rate below this is 0: its bound, which a fit comes near to and never reaches."""
CLOSER = 0.7
"""How much closer a GPU's rates stay to its architecture's than these to the profile's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was fitted for one GPU or architecture of a profile."""

    key: str
    gpus: tuple[str, ...]
    runs: int
    sources: tuple[str, ...]
    time: Fit | None
    memory: Fit | None


def calibrate(
    runs: Sequence[Run], profile: Profile, near: Mapping[str, Calibration] | None = None
) -> list[Calibration]:
    """Fits for each architecture and, closer to these, for each GPU of it that has enough runs.

    A GPU with few runs keeps its architecture's rates, an architecture with few the profile's own. `near` holds fits to
    these runs and more, by their keys, to start from; the runs are `stated` then.
    """
    limits = grouped(judged(runs), lambda run: run.problem.cluster.gpu.architecture)
    found = []
    known = usable(runs) if near is not None else stated(usable(runs))
    for key, group in grouped(known, lambda run: run.problem.cluster.gpu.architecture).items():
        whole = _calibration(key, group, profile.time, profile.memory, near=near, limits=limits.get(key, ()))
        if whole is None:
            continue
        found.append(whole)
        time = whole.time.rates if whole.time else profile.time
        room = whole.memory.rates if whole.memory else profile.memory
        by_gpu = grouped(group, lambda run: run.problem.cluster.gpu.name)
        for gpu, own in by_gpu.items():
            if len(by_gpu) > 1 and (part := _calibration(gpu, own, time, room, tight=CLOSER, near=near)):  # type: ignore[arg-type]
                found.append(part)
    return found


def _calibration(
    key: str,
    runs: Sequence[Run],
    time: TimeRates,
    room: MemoryRates,
    *,
    tight: float = 1.0,
    near: Mapping[str, Calibration] | None,
    limits: Sequence[Run] = (),
) -> Calibration | None:
    timed, sized = timed_and_sized(runs)
    last = None if near is None else near.get(key)

    def part(rows: Sequence[Run], start: Rates, known: Fit | None) -> Fit | None:
        if len(rows) < LEAST_RUNS or (near is not None and known is None):
            return None
        if known is not None and known.start == start and len(known.after) == len(rows):
            return known
        if known is not None:
            return _worth(refit(rows, start, known, tight=tight, verdicts=limits))
        return _worth(fit(rows, start, tight=tight, only=OF_GPU if tight < 1.0 else None, verdicts=limits))

    by_time, by_size = part(timed, time, last.time if last else None), part(sized, room, last.memory if last else None)
    if by_time is None and by_size is None:
        return None
    used = (timed if by_time else []) + (sized if by_size else [])
    return Calibration(
        key=key,
        gpus=tuple(sorted({run.problem.cluster.gpu.name for run in used})),
        runs=len({run.id for run in used}),
        sources=tuple(sorted({run.source for run in used})),
        time=by_time,
        memory=by_size,
    )


def usable(runs: Sequence[Run]) -> list[Run]:
    """The runs that rates may be fitted to."""
    return [run for run in runs if not run.oom and run.trust != "low"]


def stated(runs: Sequence[Run]) -> list[Run]:
    """The runs with what they do not state as a prediction takes it."""
    return [it.run for it in predict(runs)]


def timed_and_sized(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs whose step time was measured, and those whose memory was."""
    return [run for run in runs if run.step_time], [run for run in runs if run.memory]


def _worth(found: Fit) -> Fit | None:
    """The fit, unless it explains next to nothing: rates that were sourced otherwise stay then."""
    before, after = (
        float(np.mean(np.abs(np.expm1(off)))) + wrong
        for off, wrong in zip((found.before, found.after), found.wrong, strict=True)
    )
    return found if after < WORTH * before else None


def to_toml(profile: str, found: Sequence[Calibration], file: str) -> str:
    """The text of a profile file: `base` and each fitted rate with what it rests on."""
    lines = [f"# Rates fitted by `meshscout calibrate {file}`. Do not edit: run it again.", f'base = "{profile}"', ""]
    for it in found:
        if it.key not in it.gpus:
            lines += [f"[gpu.{it.key}]", f"fitted_on = {json.dumps(it.gpus)}", ""]
        for kind, part in (("time", it.time), ("memory", it.memory)):
            if part is None or not part.moved:
                continue
            error = float(np.mean(np.abs(np.expm1(part.after))))
            basis = f"{len(part.after)} runs of {len(it.sources)} sources, mean error {error:.1%}"
            lines += section(f"[gpu.{it.key}.{kind}]", part, dict.fromkeys(part.moved, basis))
    return "\n".join(lines)


def section(head: str, part: Fit, basis: Mapping[str, str]) -> list[str]:
    """A profile's table of fitted rates, each with what it rests on."""
    lines = [head]
    for rate in fields(part.rates):
        if rate.name in part.moved:
            value = float(f"{getattr(part.rates, rate.name):.4g}")
            value = value if value > NOTHING else 0.0
            lines.append(f'{rate.name} = {{ value = {value!r}, tag = "fitted", source = "{basis[rate.name]}" }}')
    return [*lines, ""]
