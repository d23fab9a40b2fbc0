"""Write docs/accuracy.md, and the table in README.md, from the shipped runs: `python docs/make_accuracy.py`.

Run it again when the cost model or a profile changes; a test compares both with what this makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel.calibration.predict import Prediction, predict
from costmodel.calibration.runs import RUNS, read_runs
from costmodel.calibration.validate import TRUST, validate
from search.measured import accuracy

HERE = Path(__file__).parent
PAGE, README = HERE / "accuracy.md", HERE.parent / "README.md"
BEGIN, END = "<!-- accuracy: made by docs/make_accuracy.py -->", "<!-- end of accuracy -->"
HEAD = [
    "| profile | GPU | step times | mean error | median | bias | memories | mean error | bias |",
    "|---|---|---|---|---|---|---|---|---|",
]


def share(value: float | None, sign: str = "") -> str:
    """A fraction as per cent, or nothing."""
    return "" if value is None else f"{value:{sign}.1%}"


def table(found: Sequence[Prediction]) -> list[str]:
    """One row a profile and GPU."""
    lines = list(HEAD)
    for profile, gpu, part in accuracy(found):
        time, room = part["step_time"], part["memory"]
        if time["n"] or room["n"]:
            cells = [
                profile, gpu,
                str(time["n"] or ""), share(time["mape"]), share(time["median_ape"]), share(time["bias"], "+"),
                str(room["n"] or ""), share(room["mape"]), share(room["bias"], "+"),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def short(found: Sequence[Prediction]) -> list[str]:
    """The README's table: one row a profile."""
    lines = ["| profile | step times | mean error | median | memories | mean error |", "|---|---|---|---|---|---|"]
    for profile in sorted({it.run.problem.profile.name for it in found}):
        part: dict[str, Any] = validate([it for it in found if it.run.problem.profile.name == profile], [], "low")
        time, room = part["step_time"], part["memory"]
        if time["n"] or room["n"]:
            cells = [
                profile, str(time["n"] or ""), share(time["mape"]), share(time["median_ape"]),
                str(room["n"] or ""), share(room["mape"]),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def page() -> tuple[str, str]:
    """docs/accuracy.md and README.md as the shipped runs make them now."""
    runs, skipped = read_runs(RUNS)
    found = predict(runs)
    trusted = [it for it in found if it.run.trust in TRUST["ok"]]
    score: dict[str, Any] = validate(found, skipped)
    oom, ranking, time = score["oom"], score["ranking"], score["step_time"]
    near = oom["near_band"]
    rows = len(runs) + len(skipped)
    text = [
        "# Accuracy",
        "",
        "Published, measured runs against predictions, by `meshscout validate`. The runs are shipped, with sources.",
        "The rates of `costmodel/profiles/fitted/` were fitted to these runs, so the figures say how well one set of",
        "physical rates a framework and GPU describes them, not how well an unseen machine is predicted. A source that",
        "was left out of the fit costs more: llm-foundry 5.7 % instead of 3.5, InternEvo 6.7 instead of 5.4,",
        "torchtitan 19.5 instead of 13.7 (median 8.8).",
        "",
        f"{score['rows']:,} trusted rows; {len(skipped)} of all {rows:,} rows lack what a prediction needs.",
        f"All step times: mean error {share(time['mape'])}, median {share(time['median_ape'])}.",
        "",
        *table(trusted),
        "",
        "## Out of memory",
        "",
        f"{oom['n']} runs: precision {oom['precision']:.2f}, recall {oom['recall']:.2f}; of {near['n']} whose need is",
        f"within 0.7-1.4 of the usable memory {near['errors']} are judged wrong.",
        "",
        "## Ranking",
        "",
        "Within a sweep of layouts on one machine: what the model's first choice loses against the best measured, and",
        "Kendall's tau of the two orders.",
        "",
        "| profile | sweeps | mean loss | mean tau |",
        "|---|---|---|---|",
        *(
            f"| {name} | {it['sweeps']} | {share(it['mean_regret'])} | {it['mean_kendall_tau']:.2f} |"
            for name, it in ranking["by_framework"].items()
        ),
        "",
    ]
    readme = README.read_text()
    before, rest = readme.split(BEGIN)
    after = rest.split(END)[1]
    return "\n".join(text), "\n".join([before + BEGIN, *short(trusted), END]) + after


if __name__ == "__main__":
    accuracy_page, readme_page = page()
    PAGE.write_text(accuracy_page)
    README.write_text(readme_page)
