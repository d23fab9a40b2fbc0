"""How well rates hold for runs that they were not fitted to: leave one source out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.calibration.fit import Calibration, calibrate
from costmodel.calibration.predict import Prediction, predict, with_rates
from costmodel.calibration.runs import Run
from costmodel.profile import Profile


def leave_one_source_out(runs: Sequence[Run], profile: Profile) -> list[Prediction]:
    """Predictions of every run of `profile` by rates that were fitted to the runs of all other sources.

    A source that is alone is predicted by the profile's own rates. `profile` holds the rates that fits start from.
    """
    found: list[Prediction] = []
    for source in sorted({run.source for run in runs}):
        others = calibrate([run for run in runs if run.source != source], profile)
        found += predict([_with_rates(run, profile, others) for run in runs if run.source == source])
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
