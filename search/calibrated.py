"""`calibrate`: a profile fitted to measured runs, and what it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costmodel.calibration.runs import read_runs
from hardware.errors import InputError


def fitted(path: str, profile_name: str) -> tuple[str, list[str]]:
    """The text of a profile fitted to a table of runs, and what to say about each fit."""
    from costmodel.calibration.fit import calibrate, to_toml
    from costmodel.profile import load_profile

    runs, skipped = read_runs(path)
    own = [run for run in runs if run.problem.profile.name == profile_name]
    if not own:
        raise InputError(f"{path}: none of {len(runs) + len(skipped)} rows ran with profile {profile_name}")
    found = calibrate(own, load_profile(profile_name, fitted=False))
    if not found:
        raise InputError(f"{path}: too few runs with profile {profile_name} to fit anything ({len(own)})")
    said = []
    for it in found:
        for kind, part in (("step time", it.time), ("memory", it.memory)):
            if part is not None:
                before, after = _mean_error(part.before), _mean_error(part.after)
                count = len(part.after)
                said.append(
                    f"{it.key}: {kind} of {count} runs, mean error {before:.1%} -> {after:.1%}: {', '.join(part.moved)}"
                )
    return to_toml(profile_name, found, Path(path).name), said


def _mean_error(off: Any) -> float:
    import numpy as np

    return float(np.mean(np.abs(np.expm1(off))))
