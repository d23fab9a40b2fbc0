"""The file of a user's own profile: the fits that are kept, what they rest on, and how sure they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.calibration.by_gpu import section
from costmodel.calibration.holdout import ranges_of
from costmodel.calibration.refine import FOLDS, Refined, mean_error
from costmodel.calibration.spread import KINDS, interval_lines, interval_of
from costmodel.profile import Profile
from costmodel.range import range_lines


def to_toml(profile: str, found: Sequence[Refined], file: str) -> str:
    """The text of a profile that starts from a shipped one, with the fits that are kept, what each rate rests on, and
    which errors stay large."""
    lines = [f"# Rates fitted by `meshscout calibrate {file}`.", f'base = "{profile}"', ""]
    for it in found:
        if it.fit is None:
            continue
        head = f"gpu.{it.gpu}.{it.kind}"
        if it.kept:
            off = f"mean error {mean_error(it.fit.after):.1%}, held out {mean_error(it.held_out):.1%}"
            off += " (large)" if it.large else ""
            basis = {name: f"{it.rests_on(name)}, {off}" for name in it.fit.moved}
            lines += [*_large(it), *section(f"[{head}]", it.fit, basis)]
        else:
            lines += [f"# {head}: as shipped, which predicts runs held out of a fit as well.", *_large(it), ""]
    return "\n".join(lines)


def _large(it: Refined) -> list[str]:
    return [f"# {in_interval(it)}"] if it.large else []


def in_interval(it: Refined) -> str:
    """How many runs lie in the interval of the profile that was started from, in words."""
    profile = it.runs[0].problem.profile
    low, high = (getattr(profile.interval, f"{it.kind}_{end}") - 1.0 for end in ("low", "high"))
    which = "held-out runs" if it.kept else "runs"
    return (
        f"the error stays large: {it.inside} of {len(it.runs)} {which} lie within the interval of profile "
        f"{profile.name} ({low:+.0%} to {high:+.0%}), where 8 of 10 should"
    )


def sure_lines(found: Sequence[Refined], profile: Profile, file: str) -> list[str]:
    """The tables `[interval]` and `[range.GPU]`: how far off runs are that were held out of a fit, or that the shipped
    rates predict where no fit is kept, drawn to the shipped interval; what these runs and the shipped ones cover."""
    found = [it for it in found if not it.astray]
    offs = {
        kind: np.concatenate([np.empty(0), *(it.unseen for it in found if it.kind == kind and it.fit is not None)])
        for kind in KINDS
    }
    numbers = {kind: len(off) for kind, off in offs.items()}
    start = f"the interval of profile {profile.name}"
    lines = interval_lines(
        interval_of(offs, dict.fromkeys(KINDS, FOLDS), profile.interval), numbers, f"held out, of {file}", start
    )
    runs = {run.id: run for it in found for run in it.runs}
    for gpu, covers in ranges_of(list(runs.values())).items():
        lines += range_lines(gpu, covers.with_(profile.ranges.get(gpu)), file)
    return lines
