"""`calibrate`: a profile fitted to measured runs, what it rests on, and whether it helps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration import by_gpu, fit
from costmodel.calibration.own_file import in_interval, sure_lines, to_toml
from costmodel.calibration.predict import Progress
from costmodel.calibration.refine import LEAST, Refined, counted, mean_error, refine
from costmodel.calibration.runs import Run, Skipped, read_runs
from costmodel.calibration.shipped import file_of
from costmodel.profile import load_profile, profile_names
from hardware.errors import InputError
from hardware.units import format_bytes, format_seconds
from search.measured import skips
from search.terminal import say

Vector = NDArray[np.float64]

FEW = 12
"""Below this number of runs a fit is doubtful, which is said."""
KINDS = {"time": "step time", "memory": "memory"}
UNITS = {"time": "step_time_s in seconds, tokens_per_s_per_gpu of one GPU", "memory": "peak_mem_gib in GiB"}
WIDTH, KIB, NOTHING = 120, 1024.0, 1e-6
REASONS = 3
"""Reasons that are named where no row can be fitted."""


def fitted(path: str, profile: str, progress: Progress | None = None) -> tuple[str, list[str]]:
    """The text of a profile that starts from a shipped one, and what is said about each fit. Raises InputError."""
    fit.solver()
    runs, unused = _own_runs(path, profile, shipped_rates=True)
    found = refine(runs, progress)
    if all(it.fit is None for it in found):
        raise InputError(f"{path}: nothing to fit: {_few([*map(_unfitted, found), *unused])}")
    for line in (*unused, *_doubts(found)):
        say(line)
    file = Path(path).name
    text = "\n".join([to_toml(profile, found, file), *sure_lines(found, load_profile(profile), file)])
    said = [line for it in found for line in _told(it)]
    if not any(it.kept for it in found):
        said.append("no fit is kept: the file has the shipped rates, what these runs cover, and how far off they are")
    return text, said


def fitted_anew(path: str, profile: str) -> tuple[str, list[str]]:
    """The same from the rates that a profile has before any fit: how the file of a shipped profile is made.

    Its interval and ranges stay as shipped: docs/make_intervals.py makes them from the new rates.
    """
    fit.solver()
    runs, unused = _own_runs(path, profile, shipped_rates=False)
    for line in unused:
        say(line)
    found = by_gpu.calibrate(runs, load_profile(profile, fitted=False))
    if not found:
        raise InputError(
            f"{path}: nothing to fit: {len(runs)} runs of profile {profile}, and no architecture has "
            f"{by_gpu.LEAST_RUNS} of the same kind that a fit helps"
        )
    said = [
        f"{it.key}: {KINDS[kind]} of {len(part.after)} runs, mean error {mean_error(part.before):.1%} -> "
        f"{mean_error(part.after):.1%}: {', '.join(_named(part))}"
        for it in found
        for kind, part in (("time", it.time), ("memory", it.memory))
        if part is not None
    ]
    return "\n".join([by_gpu.to_toml(profile, found, Path(path).name), file_of(profile)[1]]), said


def _named(part: fit.Fit) -> list[str]:
    """The fitted rates, each with the end of its range that it lies at."""
    return [name + (f" (at its {end})" if (end := part.bounded.get(name)) else "") for name in part.moved]


def _own_runs(path: str, name: str, *, shipped_rates: bool) -> tuple[list[Run], list[str]]:
    """The runs of a profile, of which some can be fitted, and which rows cannot. Raises InputError."""
    if name not in profile_names():
        load_profile(name)
        raise InputError(f"{name}: a fit starts from a shipped profile: {', '.join(profile_names())}")
    runs, skipped = read_runs(path, load_profile(name) if shipped_rates else None)
    if not runs and not skipped:
        raise InputError(f"{path}: no rows under the header")
    _check_ids(path, [*runs, *skipped])
    own = [run for run in runs if run.problem.profile.name == name]
    unused = [*skips(skipped), *_unused(own)]
    if not any(by_gpu.timed_and_sized(by_gpu.usable(own))):
        others = [f"{_rows(len(runs) - len(own))} of other profiles"] if len(own) < len(runs) else []
        rows = _rows(len(runs) + len(skipped))
        raise InputError(f"{path}: none of {rows} can be fitted with profile {name}: {_few([*unused, *others])}")
    return own, unused


def _few(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - REASONS} reasons more" if len(reasons) > REASONS else ""
    return "; ".join(reasons[:REASONS]) + more


def _check_ids(path: str, rows: Sequence[Run | Skipped]) -> None:
    twice = {name: count for name, count in Counter(row.id for row in rows).items() if count > 1}
    if twice:
        name, count = next(iter(twice.items()))
        more = f", and {len(twice) - 1} more such ids" if len(twice) > 1 else ""
        raise InputError(f"{path}: id {name!r} names {count} rows{more}: each row is a run of its own")


def _unused(runs: Sequence[Run]) -> list[str]:
    """Which runs no rate is fitted to, and why."""
    usable = by_gpu.usable(runs)
    timed, sized = by_gpu.timed_and_sized(usable)
    doubtful = sum(run.trust == "low" and not run.oom for run in runs)
    bare = len(usable) - len({run.id for run in (*timed, *sized)})
    oom = sum(run.oom for run in runs)
    found = []
    if doubtful:
        found.append(f"left out {_rows(doubtful)} of trust low")
    if bare:
        found.append(f"left out {_rows(bare)} with none of step_time_s, tokens_per_s_per_gpu, peak_mem_gib")
    if oom and len(sized) < LEAST:
        found.append(f"left out {_rows(oom)} out of memory: they count beside {LEAST} runs with peak_mem_gib")
    return found


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"


def _name(it: Refined) -> str:
    return f"{it.gpu}, {KINDS[it.kind]}"


def _unfitted(it: Refined) -> str:
    """Why one GPU's step times or memory are not fitted."""
    head = f"{_name(it)}: {counted(len(it.runs), len({run.source for run in it.runs}))}"
    if not it.astray:
        return f"{head}, at least {LEAST} are needed"
    ratio = float(np.exp(-np.median(it.off)))
    times = f"{ratio:,.0f} times" if ratio > 1.0 else f"1/{1.0 / ratio:,.0f} of"
    return f"{head}, {times} what is predicted (median): is {UNITS[it.kind]}?"


def _told(it: Refined) -> Iterator[str]:
    """One GPU's step times or memory: each fitted rate with its basis, the rates that stay, and the errors."""
    if it.fit is None:
        yield f"{_unfitted(it)}{'' if it.astray else ':'} rates stay as shipped"
        return
    yield f"{_name(it)}: {counted(len(it.runs), len({run.source for run in it.runs}))}"
    yield f"  {'rate':<20} {'shipped':>9} {'fitted':>9}  rests on"
    for rate in fields(it.start):
        if rate.name in it.fit.moved:
            both = (_figure(getattr(rates, rate.name), rate.metadata["unit"]) for rates in (it.start, it.fit.rates))
            yield f"  {rate.name:<20} {' '.join(f'{value:>9}' for value in both)}  {it.rests_on(rate.name)}"
    for why, names in (("no run tells of", it.untold), ("too few tell enough of", it.left)):
        if names:
            yield from wrap(f"  as shipped, {why}: {', '.join(names)}", WIDTH, subsequent_indent="    ")
    yield from _errors(it, it.fit)
    if not it.kept:
        yield "  not kept: the shipped rates predict runs that are held out of the fit as well or better"


def _errors(it: Refined, found: fit.Fit) -> Iterator[str]:
    """The errors before and after, of the runs as they were fitted and as they were held out."""
    for rows, off in (("fitted", found.after), (f"held out ({it.parts})", it.held_out)):
        pairs = [f"{before:.1%} -> {after:.1%}" for before, after in zip(_mean(it.off), _mean(off), strict=True)]
        yield f"  mean error as shipped -> fitted, rows {rows}: {pairs[0]} (median {pairs[1]})"
    if it.verdicts:
        oom = sum(run.oom for run in it.verdicts)
        before, after = found.wrong
        which = f"{oom} runs out of memory, {len(it.verdicts) - oom} that ran"
        yield f"  mean on the wrong side of the memory limit, {which}: {before:.1%} -> {after:.1%}"


def _figure(value: float, unit: str) -> str:
    """A rate in three digits, times and amounts of memory with their unit; what is next to 0 is 0."""
    if unit == "s":
        return format_seconds(value)
    if unit == "B" and value >= KIB:
        return format_bytes(value)
    return f"{value if value > NOTHING else 0.0:.3g}"


def _mean(off: Vector) -> tuple[float, float]:
    """Mean and median error."""
    return mean_error(off), float(np.median(np.abs(np.expm1(off))))


def _doubts(found: Sequence[Refined]) -> Iterator[str]:
    for it in found:
        if it.astray:
            yield f"warning: {_unfitted(it)}"
        if it.fit is None:
            continue
        if len(it.runs) < FEW:
            some = f"{len(it.fit.moved)} of {len(it.shown)} rates that they show"
            yield f"warning: {_name(it)}: {len(it.runs)} runs fit {some}; a dozen of different layouts tell more"
        if it.large:
            yield f"warning: {_name(it)}: {in_interval(it)}"
        for run, ratio in it.outliers:
            yield f"warning: {_name(it)}: {run.id} stays {ratio - 1.0:+.0%} off and counts little: is its row right?"
