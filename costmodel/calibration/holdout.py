"""Predictions of runs by rates that were not fitted to them: each source is left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from costmodel.calibration.by_gpu import CLOSER, Calibration, calibrate, stated, timed_and_sized, usable
from costmodel.calibration.fit import fitted_at
from costmodel.calibration.predict import predict, with_rates
from costmodel.calibration.runs import Run, grouped
from costmodel.calibration.spread import LeftOut, counts, interval, interval_lines
from costmodel.profile import Profile
from costmodel.range import DEGREES, Range, range_lines, range_of
from costmodel.rates import Interval
from hardware.catalog import gpu_names


def blocks(runs: Sequence[Run]) -> tuple[str, list[list[Run]]]:
    """What is left out in turn, in words, and the runs of each: a source, of a single source the runs of one model and
    number of GPUs, of a single one of these each run."""
    keys: dict[str, Callable[[Run], str]] = {
        "source": lambda run: run.source,
        "model and number of GPUs": lambda run: f"{run.problem.model.name} {run.problem.workload.gpus}",
        "run": lambda run: run.id,
    }
    for what, key in keys.items():
        groups = list(grouped(runs, key).values())
        if len(groups) > 1:
            return what, groups
    return "run", groups


def measured(runs: Sequence[Run]) -> list[Run]:
    """The runs that something was measured of and that did not go out of memory."""
    return [run for run in runs if not run.oom and (run.step_time or run.memory)]


def left_out(runs: Sequence[Run], profile: Profile, whole: Sequence[Calibration]) -> list[LeftOut]:
    """Every measured run, predicted by rates that were fitted to the other blocks of runs, block by block.

    `profile` holds the rates that fits start from, `whole` the fits to all runs. A block without which too few runs are
    left to fit is predicted by the profile's own rates.
    """
    near, runs = {it.key: it for it in whole}, stated(runs)
    found: list[LeftOut] = []
    for number, block in enumerate(blocks(runs)[1]):
        out = {run.id for run in block}
        rest = [run for run in runs if run.id not in out]
        fits, ranges = calibrate(rest, profile, near), ranges_of(rest)
        for it in predict([_with_rates(run, replace(profile, ranges=ranges), fits) for run in measured(block)]):
            found.append(
                LeftOut(
                    run=it.run, block=str(number), step_time=it.step_time, memory=it.memory, calibrated=it.calibrated
                )
            )
    return found


def sure_lines(runs: Sequence[Run], rows: Sequence[LeftOut], pooled: Interval, file: str) -> list[str]:
    """The tables `[interval]` and `[range.GPU]` of a profile's file, of its `runs` and these as they were left out."""
    how = f"each {blocks(runs)[0]} left out in turn"
    lines = interval_lines(interval(rows, pooled), counts(rows), how, "the mean over profiles")
    for gpu, covers in ranges_of(stated(runs)).items():
        lines += range_lines(gpu, covers, file)
    return lines


def ranges_of(runs: Sequence[Run]) -> dict[str, Range]:
    """What the runs that rates may be fitted to cover, by GPU."""
    return {
        gpu: range_of(
            [run.problem.workload.precision for run in own],
            [run.problem.kind for run in own],
            [run.problem.amounts | {name: run.layout.row(0)[name] for name in DEGREES} for run in own],
        )
        for gpu, own in grouped(measured(usable(runs)), lambda run: run.problem.cluster.gpu.name).items()
    }


def fits_of(runs: Sequence[Run], profile: Profile, own: Profile) -> list[Calibration]:
    """The fits that `profile` holds by GPU and architecture, as if `calibrate` had just made them from the rates of
    `own`, with the slopes that `left_out` needs."""
    found: dict[str, Calibration] = {}
    runs = stated(usable(runs))
    for key in sorted(profile.by_gpu, key=lambda name: name in gpu_names()):
        rates, gpu = profile.by_gpu[key], [run for run in runs if key in _keys(run)]
        above = next((found[name] for run in gpu for name in _keys(run)[1:] if name != key and name in found), None)
        timed, sized = timed_and_sized(gpu)
        parts = {}
        for kind, rows in (("time", timed), ("memory", sized)):
            fitted = above and getattr(above, kind)
            start = fitted.rates if fitted else getattr(own, kind)
            moved = [name.removeprefix(f"{kind}.") for name in rates.provenance if name.startswith(f"{kind}.")]
            tight = CLOSER if above else 1.0
            parts[kind] = fitted_at(rows, start, getattr(rates, kind), moved, tight=tight) if moved and rows else None
        found[key] = Calibration(
            key=key, gpus=(), runs=len(gpu), sources=(), time=parts["time"], memory=parts["memory"]
        )
    return list(found.values())


def _keys(run: Run) -> tuple[str, str]:
    gpu = run.problem.cluster.gpu
    return gpu.name, gpu.architecture


def _with_rates(run: Run, profile: Profile, found: Sequence[Calibration]) -> Run:
    """The run with the rates of its GPU, else of its architecture, else the profile's own."""
    gpu = run.problem.cluster.gpu
    by_key = {it.key: it for it in found}
    part = by_key.get(gpu.name) or by_key.get(gpu.architecture)
    covers = profile.ranges.get(gpu.name)
    problem = replace(run.problem, profile=replace(run.problem.profile, covers=covers))
    problem = with_rates(with_rates(problem, profile.time), profile.memory)
    for each in (part.time, part.memory) if part else ():
        if each is not None:
            problem = with_rates(problem, each.rates)
    return replace(run, problem=problem)
