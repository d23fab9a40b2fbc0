"""`validate`: measured runs against predictions, as tables for the terminal, JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from costmodel.calibration.frameworks import FALLBACK
from costmodel.calibration.predict import Prediction, Progress, predict
from costmodel.calibration.runs import RUNS, Run, Skipped, framework_of, grouped, read_runs, strangers
from costmodel.calibration.shipped import read_left_out
from costmodel.calibration.spread import holds
from costmodel.calibration.validate import TRUST, validate
from costmodel.profile import load_profile, pooled_interval
from hardware.errors import InputError
from search.terminal import say

COLUMNS = ("id", "step_time", "memory", "oom", "step_time_low", "step_time_high")
WORST, NAMED, WIDTH = 10, 5, 120
UNSTATED = " not stated"


def score(
    path: str | None, trust: str, profile: str | None = None, progress: Progress | None = None
) -> tuple[dict[str, Any], list[Prediction]]:
    """The documented object of `validate --json`, and the predictions; talk says what was skipped and stood in for.

    With a profile its own runs alone count. Raises InputError for a wrong file or one without rows.
    """
    given = load_profile(profile) if profile else None
    runs, skipped = read_runs(path or RUNS, given)
    if not runs and not skipped:
        raise InputError(f"{path}: no rows under the header")
    if given is None and (unknown := strangers(runs)):
        say(_stand_in(unknown))
    for line in skips(skipped):
        say(line)
    found = predict(runs, progress)
    if runs and not any(run.trust in TRUST[trust] for run in runs):
        say(f"no run has trust {trust}: --trust medium or low takes the others")
    return validate(found, skipped, trust, None if path or profile else left_out_hold(runs)), found


def _stand_in(unknown: Mapping[str, int]) -> str:
    names = [f"{name!r} ({count} run{'s' if count > 1 else ''})" for name, count in list(unknown.items())[:NAMED]]
    more = f" and {len(unknown) - NAMED} others" if len(unknown) > NAMED else ""
    return (
        f"no profile knows the framework {', '.join(names)}{more}: predicted with profile {FALLBACK}, whose rates come "
        "from other software; --profile names another"
    )


def skips(skipped: Sequence[Skipped]) -> list[str]:
    """Why rows were skipped, the most frequent reason first, each with its count and one row."""
    kinds = grouped(skipped, lambda it: _kind_of(it.why))
    lines = []
    for kind, rows in sorted(kinds.items(), key=lambda item: -len(item[1])):
        why = rows[0].why
        if kind == UNSTATED:
            names = Counter(name for it in rows for name in it.why.removesuffix(UNSTATED).split(", "))
            why = "not stated: " + ", ".join(f"{name} {count}" for name, count in names.most_common())
        more = f"skipped {len(rows)} rows: {why}; one is" if len(rows) > 1 else f"skipped 1 row: {why}; it is"
        lines.append(f"{more} {rows[0].id}")
    return lines


def _kind_of(why: str) -> str:
    """Reasons that differ in numbers and names alone are one."""
    return UNSTATED if why.endswith(UNSTATED) else re.sub(r"'[^']*'|\d+", "", why)


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


def left_out_hold(runs: Sequence[Run]) -> dict[str, dict[str, bool]]:
    """What of the shipped runs lies in the interval that was found without their source."""
    return holds(read_left_out(runs), pooled_interval())


def report(score: Mapping[str, Any], found: Sequence[Prediction], trust: str) -> list[str]:
    """The tables of `validate` for the terminal."""
    rows = [it for it in found if it.run.trust in TRUST[trust]]
    skipped = sum(it["trust"] in TRUST[trust] for it in score["skipped"])
    lines = [
        f"{score['rows']:,} runs of trust {trust}{' or better' if trust != 'ok' else ''}, {skipped} more skipped",
        "",
    ]
    lines += _accuracy(rows)
    oom, ranking = score["oom"], score["ranking"]
    lines += ["", *_overall(score), "out of memory: " + _oom(oom)]
    if ranking["sweeps"]:
        lines.append(
            f"ranking: {ranking['sweeps']} sweeps, first choice {ranking['mean_regret']:.1%} slower than the best, "
            f"Kendall's tau {ranking['mean_kendall_tau']:.2f}"
            if ranking["mean_regret"] is not None
            else f"ranking: {ranking['sweeps']} sweeps"
        )
    return [*lines, "", *_worst(rows)]


def _overall(score: Mapping[str, Any]) -> list[str]:
    """The errors over all rows, over the frameworks' means, and of Megatron on H100 and newer."""
    lines = []
    for kind, name in (("step_time", "step time"), ("memory", "memory")):
        part, macro = score[kind], score["macro"][f"{kind}_mape"]
        if part["n"]:
            text = f"{name}: {part['n']:,} runs, mean error {part['mape']:.1%}, median {part['median_ape']:.1%}"
            lines.append(text + (f"; mean over frameworks {macro:.1%}" if macro is not None else ""))
    sure = [
        f"{part['coverage']:.1%} of {part['n']:,} {name}"
        for kind, name in (("step_time", "step times"), ("memory", "memories"))
        if (part := score["interval"][kind])["n"]
    ]
    if sure:
        lines.append(f"the 80 % intervals hold {' and '.join(sure)}")
    parts = [f"{name} {part['mape']:.1%} ({part['n']})" for name, part in score["megatron"].items() if part["n"]]
    return [*lines, *([f"step time of Megatron on H100 and newer: {', '.join(parts)}"] if parts else [])]


def accuracy(found: Sequence[Prediction]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(name, GPU, its part of `validate`): each framework on all of its GPUs, then each of its profiles and GPUs."""
    rows: list[tuple[str, str, Mapping[str, Any]]] = []
    for framework, group in grouped(found, lambda it: framework_of(it.run)).items():
        pairs = grouped(group, lambda it: (it.run.problem.profile.name, it.run.problem.cluster.gpu.name))
        if len(pairs) > 1:
            rows.append((framework, "all", validate(group, [], "low")))
        rows += [(*pair, validate(part, [], "low")) for pair, part in pairs.items()]
    return [row for row in rows if row[2]["step_time"]["n"] or row[2]["memory"]["n"]]


def _accuracy(rows: Sequence[Prediction]) -> list[str]:
    errors = "  median    mean    bias"
    lines = [f"framework       GPU           step times{errors}   memories{errors}"]
    for profile, gpu, part in accuracy(rows):
        line = f"{profile:<15} {gpu:<13}"
        for kind in (part["step_time"], part["memory"]):
            shares = (
                _share(kind["median_ape"]),
                _share(kind["mape"]),
                _share(kind["bias"] and math.expm1(kind["bias"]), "+"),
            )
            line += f" {kind['n'] or '-':>10} {' '.join(shares)}"
        lines.append(line.rstrip())
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
    lines = ["the worst step times   measured  predicted     off  largest term     run"]
    for it in timed[:WORST]:
        off = it.step_time / _measured(it.run) - 1.0
        gpu, run = it.run.problem.cluster.gpu.name, it.run.id
        times = f"{_seconds(_measured(it.run))} {_seconds(it.step_time)} {off:>+8.1%}"
        lines.append(f"{gpu:<20} {times}  {it.term:<15}  {run}"[:WIDTH])
    return lines if timed else []


def _seconds(value: float) -> str:
    return f"{value:>8.4g} s"


def _measured(run: Run) -> float:
    return run.step_time or float("nan")
