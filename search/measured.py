"""`validate` and `calibrate`: measured runs against predictions, and a profile fitted to them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.calibration.predict import Prediction, predict
from costmodel.calibration.runs import RUNS, Run, grouped, read_runs, strangers
from costmodel.calibration.validate import TRUST, validate
from hardware.errors import InputError
from search.terminal import say

COLUMNS = ("id", "step_time", "memory", "oom", "step_time_low", "step_time_high")
WORST = 10


def score(path: str | None, trust: str) -> tuple[dict[str, Any], list[Prediction]]:
    """The documented object of `validate --json`, and the predictions; talk names unknown frameworks."""
    runs, skipped = read_runs(path or RUNS)
    for framework, profile in strangers(runs).items():
        say(f"framework {framework!r} is not known: its runs are predicted with profile {profile}")
    found = predict(runs)
    return validate(found, skipped, trust), found


def predictions_csv(found: Sequence[Prediction]) -> str:
    """`id, step_time, memory, oom, step_time_low, step_time_high`, SI, one row a run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for it in found:
        low, high = it.interval
        figures = (it.step_time, it.memory)
        writer.writerow([it.run.id, *(f"{x:.6g}" for x in figures), int(it.oom), f"{low:.6g}", f"{high:.6g}"])
    return text.getvalue()


def report(score: Mapping[str, Any], found: Sequence[Prediction], trust: str) -> list[str]:
    """The tables of `validate` for the terminal."""
    rows = [it for it in found if it.run.trust in TRUST[trust]]
    lines = [f"{score['rows']:,} runs of trust {trust} or better, {len(score['skipped'])} rows skipped", ""]
    lines += _accuracy(rows)
    oom, ranking = score["oom"], score["ranking"]
    lines += ["", "out of memory: " + _oom(oom)]
    if ranking["sweeps"]:
        lines.append(
            f"ranking: {ranking['sweeps']} sweeps, first choice {ranking['mean_regret']:.1%} slower than the best, "
            f"Kendall's tau {ranking['mean_kendall_tau']:.2f}"
            if ranking["mean_regret"] is not None
            else f"ranking: {ranking['sweeps']} sweeps"
        )
    return [*lines, "", *_worst(rows)]


def accuracy(found: Sequence[Prediction]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(framework's profile, GPU, its part of `validate`) for each pair in the runs."""
    pairs = grouped(found, lambda it: (it.run.problem.profile.name, it.run.problem.cluster.gpu.name))
    return [(*pair, validate(group, [], "low")) for pair, group in pairs.items()]


def _accuracy(rows: Sequence[Prediction]) -> list[str]:
    lines = ["profile         GPU            step time    mean  median    bias   memory    mean    bias"]
    for profile, gpu, part in accuracy(rows):
        time, room = part["step_time"], part["memory"]
        lines.append(
            f"{profile:<15} {gpu:<14} {time['n']:>9} {_share(time['mape'])} {_share(time['median_ape'])} "
            f"{_share(time['bias'], '+')}   {room['n']:>6} {_share(room['mape'])} {_share(room['bias'], '+')}".rstrip()
        )
    return lines


def _share(value: float | None, sign: str = "") -> str:
    return f"{'-':>7}" if value is None else f"{value:>{sign}7.1%}"


def _oom(oom: Mapping[str, Any]) -> str:
    if not oom["n"]:
        return "no runs"
    near = oom["near_band"]
    precision, recall = (f"{oom[key]:.2f}" if oom[key] is not None else "-" for key in ("precision", "recall"))
    return (
        f"{oom['n']} runs, precision {precision}, recall {recall}; {near['errors']} of {near['n']} near the limit wrong"
    )


def _worst(rows: Sequence[Prediction]) -> list[str]:
    timed = [it for it in rows if it.run.step_time and not it.run.oom]
    timed.sort(key=lambda it: abs(it.step_time / _measured(it.run) - 1.0), reverse=True)
    lines = ["the worst step times, and the term that dominates them"]
    for it in timed[:WORST]:
        off = it.step_time / _measured(it.run) - 1.0
        lines.append(f"{off:>+8.1%}  {it.step_time:>9.4g} s for {_measured(it.run):>9.4g} s  {it.term:<17} {it.run.id}")
    return lines if timed else []


def _measured(run: Run) -> float:
    return run.step_time or float("nan")


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
