"""Write docs/accuracy.md, its plots and the table in README.md from the shipped runs: `python docs/make_accuracy.py`.

Run it again when the cost model or a profile changes; a test compares what is here with what this makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draw_accuracy import draw

from costmodel.calibration.predict import Prediction, predict
from costmodel.calibration.runs import RUNS, framework_of, grouped, read_runs
from costmodel.calibration.validate import TRUST, validate
from costmodel.profile import load_profile
from search.measured import accuracy

HERE = Path(__file__).parent
PAGE, README, PLOTS = HERE / "accuracy.md", HERE.parent / "README.md", HERE / "accuracy"
BEGIN, END = "<!-- accuracy: made by docs/make_accuracy.py -->", "<!-- end of accuracy -->"
GIB = 2.0**30

INTRODUCTION = """\
# Accuracy

Published, measured runs against predictions, by `meshscout validate`; the runs are shipped, with their sources, and
[runs_format.md](runs_format.md) describes the table. "fitted" is how one set of physical rates a framework and GPU
describes the runs that it was fitted to."""

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


def measures(score: Mapping[str, Any]) -> list[str]:
    """The measures over all frameworks, a row each."""
    time, memory, macro, recent = (score[key] for key in ("step_time", "memory", "macro", "megatron"))
    oom, ranking = score["oom"], score["ranking"]
    near = oom["near_band"]
    frameworks = len(ranking["by_framework"])
    rows = [
        ("step time, median and mean error", both(time), time["n"]),
        ("step time of Megatron on H100 and newer, dense models, mean error", *mean(recent["dense"])),
        ("the same, models with experts", *mean(recent["moe"])),
        ("step time, mean over frameworks of their mean errors", share(macro["step_time_mape"]), ""),
        ("peak memory, median and mean error", both(memory), memory["n"]),
        ("peak memory, mean over frameworks of their mean errors", share(macro["memory_mape"]), ""),
        ("out of memory, precision and recall", f"{figure(oom['precision'], 3)}, {figure(oom['recall'], 3)}", oom["n"]),
        (
            "the same where the need is 0.7-1.4 of the usable memory, wrong",
            share(near["errors"] / near["n"] if near["n"] else None),
            near["n"],
        ),
        ("ranking, loss of the first choice, mean over frameworks", share(ranking["mean_regret"]), frameworks),
        ("ranking, Kendall's tau, mean over frameworks", figure(ranking["mean_kendall_tau"], 2), frameworks),
    ]
    return table(("measure", "fitted", "rows"), [[str(cell) for cell in row] for row in rows])


def both(part: Mapping[str, Any]) -> str:
    """Median and mean error."""
    return f"{share(part['median_ape'])}, {share(part['mape'])}"


def mean(part: Mapping[str, Any]) -> tuple[str, int]:
    """Mean error and number of runs."""
    return share(part["mape"]), part["n"]


def short(found: Sequence[Prediction]) -> list[str]:
    """The README's table: one row a framework, as `meshscout validate` prints it."""
    parts: dict[str, Any] = {}
    for name, _, part in accuracy(found):
        parts.setdefault(name, part)
    rows = []
    for name in sorted({framework_of(it.run) for it in found} & parts.keys()):
        cells = [name]
        for kind in (parts[name]["step_time"], parts[name]["memory"]):
            cells += [count(kind), share(kind["median_ape"]), share(kind["mape"])]
        rows.append(cells)
    return table(("framework", "step times", "median", "mean error", "memories", "median", "mean error"), rows)


def by_gpu(found: Sequence[Prediction]) -> list[str]:
    """One row a profile and GPU."""
    rows = []
    for profile, gpu, part in accuracy(found):
        cells = [profile, gpu]
        for kind in (part["step_time"], part["memory"]):
            cells += [count(kind), share(kind["median_ape"]), share(kind["mape"]), share(kind["bias"], "+")]
        rows.append(cells)
    errors = ("median", "mean error", "bias")
    return table(("profile", "GPU", "step times", *errors, "memories", *errors), rows)


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
            measured = getattr(it.run, key)
            if measured and not it.run.oom:
                gpu = it.run.problem.cluster.gpu.name
                points.setdefault(gpu, []).append((measured / scale, getattr(it, key) / scale))
        if points:
            errors = (
                f"{part[key]['n']} runs, median error {share(part[key]['median_ape'])}, mean {share(part[key]['mape'])}"
            )
            panels.append((what, errors, points))
    return draw(load_profile(name).framework, panels) if panels else None


def made() -> dict[Path, str]:
    """Each file as the shipped runs make it now."""
    runs, skipped = read_runs(RUNS)
    found = predict(runs)
    trusted = [it for it in found if it.run.trust in TRUST["ok"]]
    score: dict[str, Any] = validate(found, skipped)
    groups = grouped(trusted, lambda it: framework_of(it.run))
    plots = {PLOTS / f"{name}.svg": text for name, group in groups.items() if (text := plot(name, group))}
    unsaid = sum(it.trust == "ok" for it in skipped)
    text = [
        INTRODUCTION,
        "",
        f"{score['rows']:,} trusted rows; {unsaid} more do not state what a prediction needs.",
        "",
        *measures(score),
        "",
        "## By framework",
        "",
        "Each point is a trusted run; the band is 20 % either way.",
        "",
        *(f"![{path.stem}: measured against predicted]({path.relative_to(HERE)})\n" for path in plots),
        "## By GPU",
        "",
        *by_gpu(trusted),
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
    return plots | {PAGE: "\n".join(text), README: "\n".join([before + BEGIN, *short(trusted), END]) + after}


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
