"""Predictions of runs by rates that were not fitted to them: each source is left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from costmodel.calibration.fit import Calibration, calibrate
from costmodel.calibration.predict import Prediction, predict, with_rates
from costmodel.calibration.runs import Run, grouped
from costmodel.profile import Profile


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


def left_out(runs: Sequence[Run], profile: Profile, whole: Sequence[Calibration]) -> list[Prediction]:
    """Predictions of every run by rates that were fitted to the other blocks of runs, block by block.

    `profile` holds the rates that fits start from, `whole` the fits to all runs. A block without which too few runs are
    left to fit is predicted by the profile's own rates.
    """
    near = {it.key: it for it in whole}
    found: list[Prediction] = []
    for block in blocks(runs)[1]:
        out = {run.id for run in block}
        rest = calibrate([run for run in runs if run.id not in out], profile, near)
        found += predict([_with_rates(run, profile, rest) for run in block])
    return found


def _with_rates(run: Run, profile: Profile, found: Sequence[Calibration]) -> Run:
    """The run with the rates of its GPU, else of its architecture, else the profile's own."""
    gpu = run.problem.cluster.gpu
    by_key = {it.key: it for it in found}
    part = by_key.get(gpu.name) or by_key.get(gpu.architecture)
    problem = with_rates(with_rates(run.problem, profile.time), profile.memory)
    for each in (part.time, part.memory) if part else ():
        if each is not None:
            problem = with_rates(problem, each.rates)
    return replace(run, problem=problem)
