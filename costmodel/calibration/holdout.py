"""How well rates hold for runs that they were not fitted to: leave one source out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodel.calibration.fit import Calibration, calibrate
from costmodel.calibration.predict import Prediction, predict
from costmodel.calibration.runs import Run
from costmodel.profile import MemoryRates, Profile, TimeRates


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
    time, memory = profile.time, profile.memory
    if part is not None and part.time is not None and isinstance(part.time.rates, TimeRates):
        time = part.time.rates
    if part is not None and part.memory is not None and isinstance(part.memory.rates, MemoryRates):
        memory = part.memory.rates
    own = replace(run.problem.profile, time=time, memory=memory)
    return replace(run, problem=replace(run.problem, profile=own))
