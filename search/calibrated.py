"""`calibrate`: a profile fitted to measured runs, what it rests on, and whether it helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from costmodel.calibration import by_gpu, fit
from costmodel.calibration.predict import Progress
from costmodel.calibration.refine import LEAST, Refined, counted, mean_error, refine, sure_lines, to_toml
from costmodel.calibration.runs import Run, read_runs
from costmodel.calibration.shipped import file_of
from costmodel.profile import load_profile, profile_names
from hardware.errors import InputError
from search.measured import skips
from search.terminal import say

FEW = 12
"""Below this number of runs a fit is doubtful, which is said."""
KINDS = {"time": "step time", "memory": "memory"}


def fitted(path: str, profile: str, progress: Progress | None = None) -> tuple[str, list[str]]:
    """The text of a profile that starts from a shipped one, and what is said about each fit. Raises InputError."""
    fit.solver()
    runs = _own_runs(path, profile, shipped_rates=True)
    found = refine(runs, progress)
    if all(it.fit is None for it in found):
        raise InputError(f"{path}: too few runs of profile {profile} to fit anything ({len(runs)}, at least {LEAST})")
    for line in _doubts(found):
        say(line)
    file = Path(path).name
    text = "\n".join([to_toml(profile, found, file), *sure_lines(found, load_profile(profile), file)])
    return text, [line for it in found for line in _told(it)]


def fitted_anew(path: str, profile: str) -> tuple[str, list[str]]:
    """The same from the rates that a profile has before any fit: how the file of a shipped profile is made.

    Its interval and ranges stay as shipped: docs/make_intervals.py makes them from the new rates.
    """
    fit.solver()
    runs = _own_runs(path, profile, shipped_rates=False)
    found = by_gpu.calibrate(runs, load_profile(profile, fitted=False))
    if not found:
        raise InputError(f"{path}: too few runs of profile {profile} to fit anything ({len(runs)})")
    said = [
        f"{it.key}: {KINDS[kind]} of {len(part.after)} runs, mean error {mean_error(part.before):.1%} -> "
        f"{mean_error(part.after):.1%}: {', '.join(part.moved)}"
        for it in found
        for kind, part in (("time", it.time), ("memory", it.memory))
        if part is not None
    ]
    return "\n".join([by_gpu.to_toml(profile, found, Path(path).name), file_of(profile)[1]]), said


def _own_runs(path: str, name: str, *, shipped_rates: bool) -> list[Run]:
    if name not in profile_names():
        load_profile(name)
        raise InputError(f"{name}: a fit starts from a shipped profile: {', '.join(profile_names())}")
    runs, skipped = read_runs(path, load_profile(name) if shipped_rates else None)
    for line in skips(skipped):
        say(line)
    own = [run for run in runs if run.problem.profile.name == name]
    if not own:
        raise InputError(f"{path}: none of {len(runs) + len(skipped)} rows ran with profile {name}")
    return own


def _told(it: Refined) -> Iterator[str]:
    """One GPU's step times or memory: each fitted rate with its basis, and the errors."""
    head = f"{it.gpu}, {KINDS[it.kind]}: {counted(len(it.runs), len({run.source for run in it.runs}))}"
    if it.fit is None:
        yield f"{head}, too few to fit: rates stay as shipped"
        return
    yield head
    yield f"  {'rate':<20} {'shipped':>9} {'fitted':>9}  rests on"
    for rate in fields(it.start):
        if rate.name in it.fit.moved:
            before, after = getattr(it.start, rate.name), getattr(it.fit.rates, rate.name)
            yield f"  {rate.name:<20} {before:>9.3g} {after:>9.3g}  {it.rests_on(rate.name)}"
    columns = (("as shipped", it.fit.before), ("fitted", it.fit.after), (f"held out ({it.parts})", it.held_out))
    errors = [f"{name} {mean_error(off):.1%} (median {_median(off):.1%})" for name, off in columns]
    yield f"  mean error: {', '.join(errors)}"
    if not it.kept:
        yield "  not kept: the shipped rates predict runs that are held out of the fit as well or better"


def _median(off: np.ndarray) -> float:
    return float(np.median(np.abs(np.expm1(off))))


def _doubts(found: Sequence[Refined]) -> Iterator[str]:
    for it in found:
        if it.fit is None:
            continue
        name = f"{it.gpu}, {KINDS[it.kind]}"
        if len(it.runs) < FEW:
            some = f"{len(it.fit.moved)} of {it.shown} rates that they show"
            yield f"warning: {name}: {len(it.runs)} runs fit {some}; a dozen of different layouts tell more"
        for run, ratio in it.outliers:
            yield f"warning: {name}: {run.id} stays {ratio - 1.0:+.0%} off and counts little: is its row right?"
