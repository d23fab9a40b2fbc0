"""Write docs/accuracy.md, its plots and the table in README.md from the shipped runs: `python docs/make_accuracy.py`.

Run it again when the cost model or a profile changes; a test compares what is here with what this makes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draw_accuracy import draw

from costmodel.calibration.predict import Prediction
from costmodel.calibration.runs import framework_of, grouped
from costmodel.calibration.shipped import read_left_out
from costmodel.calibration.validate import TRUST, validate
from costmodel.profile import load_profile
from search import measured

HERE = Path(__file__).parent
PAGE, README, PLOTS = HERE / "accuracy.md", HERE.parent / "README.md", HERE / "accuracy"
BEGIN, END = "<!-- accuracy: made by docs/make_accuracy.py -->", "<!-- end of accuracy -->"
GIB = 2.0**30

INTRODUCTION = """\
# Accuracy

Published, measured runs against predictions, by `meshscout validate`; the runs are shipped, with their sources, and
[runs_format.md](runs_format.md) describes the table. "fitted" is how one set of physical rates a framework and GPU
describes the runs that it was fitted to, "left out" how rates that were fitted to all other sources predict a source;
of a framework with a single source, the runs of each model and number of GPUs are left out in turn."""

OTHERS = """\
## What others publish

| tool | error against measured runs | of what |
| --- | --- | --- |
| calculon (caa4b11) | step time 3.65 % in the mean, 10 % on other points | 8 points, to which it was set |
| SimuMax (v1.2) | step time -13.5 to +0.1 % | 73 points on 8 GPUs, with tables of that machine by shape |
| vTrain | step time 8.4 %; 14.7 % on several nodes | one node of A100 |
| a model that samples operators | step time 5 to 9 % | |
| Primus | within 10 % | 4 points |

None of them publishes how well it ranks layouts, or the precision and recall of its out-of-memory verdicts. Some of
their measured points are among the runs here: SimuMax's on B200, vTrain's on A100."""


def share(value: float | None, sign: str = "") -> str:
    """A fraction as per cent, or nothing."""
    return "" if value is None else f"{value:{sign}.1%}"


def figure(value: float | None, digits: int) -> str:
    """A number, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def count(part: Mapping[str, Any]) -> str:
    """The number of runs, or nothing."""
    return str(part["n"] or "")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def measures(fitted: Mapping[str, Any], left: Mapping[str, Any]) -> list[str]:
    """The measures over all frameworks, a row each: of the rates as they are, and of those that left a source out."""
    rows = [("step time, median and mean error", "step_time"), ("peak memory, median and mean error", "memory")]
    lines = [[name, both(fitted[key]), both(left[key]), str(fitted[key]["n"])] for name, key in rows]
    for name, key in (("dense models", "dense"), ("models with experts", "moe")):
        parts = [score["megatron"][key] for score in (fitted, left)]
        means = [share(part["mape"]) for part in parts]
        lines.append([f"step time of Megatron on H100 and newer, {name}, mean error", *means, count(parts[0])])
    for name, key in (("step time", "step_time_mape"), ("peak memory", "memory_mape")):
        macros = [share(score["macro"][key]) for score in (fitted, left)]
        lines.append([f"{name}, mean over frameworks of their mean errors", *macros, ""])
    ranking = [score["ranking"] for score in (fitted, left)]
    sweeps = str(ranking[0]["sweeps"])
    lines += [
        ["ranking, loss of the first choice", *(share(it["mean_regret"]) for it in ranking), f"{sweeps} sweeps"],
        ["ranking, Kendall's tau", *(figure(it["mean_kendall_tau"], 2) for it in ranking), f"{sweeps} sweeps"],
    ]
    oom, sure = fitted["oom"], fitted["interval"]
    near = oom["near_band"]
    wrong = share(near["errors"] / near["n"]) if near["n"] else ""
    held = [
        [f"{name} inside of its 80 % interval", "", share(sure[key]["coverage"]), count(sure[key])]
        for name, key in (("step time", "step_time"), ("peak memory", "memory"))
    ]
    lines += [
        *held,
        [
            "out of memory, precision and recall",
            f"{figure(oom['precision'], 3)}, {figure(oom['recall'], 3)}",
            "",
            count(oom),
        ],
        ["the same, wrong where the need is 0.7-1.4 of the usable memory", wrong, "", count(near)],
    ]
    return table(("measure", "fitted", "left out", "runs"), lines)


def both(part: Mapping[str, Any]) -> str:
    """Median and mean error."""
    return f"{share(part['median_ape'])}, {share(part['mape'])}"


def left_out(found: Sequence[Prediction]) -> list[Prediction]:
    """The runs again, as rates predict them that were not fitted to their source."""
    known = {it.run.id: it for it in read_left_out([it.run for it in found])}
    pairs = [(it, known[it.run.id]) for it in found if it.run.id in known]
    return [replace(it, step_time=other.step_time, memory=other.memory) for it, other in pairs]


def by_framework(found: Sequence[Prediction], score: Mapping[str, Any], *, sure: bool) -> list[str]:
    """One row a framework, as `meshscout validate` prints it, and the mean error left out.

    `sure` adds how many of the runs their intervals hold.
    """
    parts: dict[str, Any] = {}
    for name, _, part in measured.accuracy(found):
        parts.setdefault(name, part)
    others = grouped(left_out(found), lambda it: framework_of(it.run))
    rows = []
    for name in sorted(score["by_framework"].keys() & parts.keys()):
        other: dict[str, Any] = validate(others.get(name, []), [], "low")
        cells = [name]
        for key in ("step_time", "memory"):
            part = parts[name][key]
            cells += [count(part), share(part["median_ape"]), share(part["mape"]), share(other[key]["mape"])]
            cells += [share(score["by_framework"][name]["interval"][key]["coverage"])] if sure else []
        rows.append(cells)
    errors = ("median", "mean error", "left out", *(("in interval",) if sure else ()))
    return table(("framework", "step times", *errors, "memories", *errors), rows)


def by_gpu(found: Sequence[Prediction]) -> list[str]:
    """One row a profile and GPU."""
    rows = []
    for profile, gpu, part in measured.accuracy(found):
        cells = [profile, gpu]
        for kind in (part["step_time"], part["memory"]):
            cells += [count(kind), share(kind["median_ape"]), share(kind["mape"]), share(kind["bias"], "+")]
        rows.append(cells)
    errors = ("median", "mean error", "bias")
    return table(("profile", "GPU", "step times", *errors, "memories", *errors), rows)


def by_source(found: Sequence[Prediction]) -> list[str]:
    """Step times of one row a source: by the fitted rates, and by those that left the source out."""
    others = {it.run.id: it for it in left_out(found)}
    rows = []
    for name, group in grouped(found, lambda it: re.split(r" [\[(]| Table", it.run.source)[0]).items():
        fitted: dict[str, Any] = validate(group, [], "low")
        left: dict[str, Any] = validate([others[it.run.id] for it in group if it.run.id in others], [], "low")
        if fitted["step_time"]["n"]:
            cells = (share(part["step_time"]["mape"]) for part in (fitted, left))
            rows.append([name, framework_of(group[0].run), count(fitted["step_time"]), *cells])
    return table(("source", "framework", "step times", "mean error", "left out"), rows)


def verdicts(found: Sequence[Prediction]) -> list[str]:
    """Out-of-memory verdicts, one row a framework that has runs which went out of memory."""
    rows = []
    for name, group in grouped(found, lambda it: framework_of(it.run)).items():
        oom: Any = validate(group, [])["oom"]
        if oom["n"]:
            near = f"{oom['near_band']['errors']} of {oom['near_band']['n']}"
            rows.append([name, str(oom["n"]), figure(oom["precision"], 3), figure(oom["recall"], 3), near])
    return table(("framework", "runs", "precision", "recall", "wrong near the limit"), rows)


def plot(name: str, found: Sequence[Prediction]) -> str | None:
    """The scatter plot of one framework: step times, and memory beside them; None without runs."""
    part: dict[str, Any] = validate(found, [], "low")
    panels = []
    for what, key, scale in (("step time [s]", "step_time", 1.0), ("memory [GiB]", "memory", GIB)):
        points: dict[str, list[tuple[float, float]]] = {}
        for it in found:
            truth = getattr(it.run, key)
            if truth and not it.run.oom:
                gpu = it.run.problem.cluster.gpu.name
                points.setdefault(gpu, []).append((truth / scale, getattr(it, key) / scale))
        if points:
            errors = (
                f"{part[key]['n']} runs, median error {share(part[key]['median_ape'])}, mean {share(part[key]['mape'])}"
            )
            panels.append((what, errors, points))
    return draw(load_profile(name).framework, panels) if panels else None


def made() -> dict[Path, str]:
    """Each file as the shipped runs make it now."""
    score, found = measured.score(None, "ok")
    trusted = [it for it in found if it.run.trust in TRUST["ok"]]
    groups = grouped(trusted, lambda it: framework_of(it.run))
    plots = {PLOTS / f"{name}.svg": text for name, group in groups.items() if (text := plot(name, group))}
    unsaid = sum(it["trust"] == "ok" for it in score["skipped"])
    text = [
        INTRODUCTION,
        "",
        f"{score['rows']:,} trusted rows; {unsaid} more do not state what a prediction needs.",
        "",
        *measures(score, validate(left_out(found), [])),
        "",
        "## By framework",
        "",
        *by_framework(trusted, score, sure=True),
        "",
        "In interval: the share of the runs that lie in the central 80 % which the runs of other sources give.",
        "",
        "Each point is a trusted run as the fitted rates predict it; the band is 20 % either way.",
        "",
        *(f"![{path.stem}: measured against predicted]({path.relative_to(HERE)})\n" for path in plots),
        "## By GPU",
        "",
        *by_gpu(trusted),
        "",
        "## By source",
        "",
        *by_source(trusted),
        "",
        "## Out of memory",
        "",
        "Runs that went out of memory, and measured runs of the same framework and model; near the limit is a need of",
        "0.7-1.4 of the usable memory.",
        "",
        *verdicts(found),
        "",
        "## Ranking",
        "",
        "Within a sweep of layouts on one machine: what the model's first choice loses against the best measured, and",
        "Kendall's tau of the two orders.",
        "",
        *ranking(score["ranking"]),
        "",
        OTHERS,
        "",
    ]
    readme = README.read_text()
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    return plots | {
        PAGE: "\n".join(text),
        README: "\n".join([before + BEGIN, *by_framework(trusted, score, sure=False), END]) + after,
    }


def ranking(part: Mapping[str, Any]) -> list[str]:
    """One row a framework with sweeps."""
    rows = [
        [name, str(it["sweeps"]), share(it["mean_regret"]), f"{it['mean_kendall_tau']:.2f}"]
        for name, it in part["by_framework"].items()
    ]
    return table(("framework", "sweeps", "mean loss", "mean tau"), rows)


def main() -> None:
    """Write the files; plots of frameworks that have no runs any more go."""
    files = made()
    PLOTS.mkdir(exist_ok=True)
    for path in set(PLOTS.iterdir()) - set(files):
        path.unlink()
    for path, text in files.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
