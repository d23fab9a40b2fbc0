"""Draw how the cost of a search grows: `python docs/draw_performance.py`, from benchmarks/history.csv (extra `dev`)."""

import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "meshscout", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}

from matplotlib import pyplot as plt  # noqa: E402

ROOT = Path(__file__).parents[1]


def series(name: str) -> tuple[list[int], list[float]]:
    """Layouts and processor seconds of the last commit that was measured."""
    rows = [row for row in csv.DictReader((ROOT / "benchmarks" / "history.csv").read_text().splitlines())]
    rows = [row for row in rows if row["measure"] == name]
    last = [row for row in rows if row["commit"] == rows[-1]["commit"]]
    return [int(row["work"]) for row in last], [float(row["cpu_seconds"]) for row in last]


def draw(target: Path) -> None:
    """Processor seconds against layouts, both in logarithms, beside a line of 10 million a second."""
    figure, axes = plt.subplots(figsize=(7.0, 3.8), layout="constrained")
    for name, color in (("scored", "#1f6feb"), ("bounded", "#d9730d")):
        layouts, seconds = series(f"growth, {name}")
        shown = "every layout scored" if name == "scored" else "with bounds"
        axes.plot(layouts, seconds, marker="o", markersize=4, color=color, label=shown)
    axes.plot(layouts, [count / 1e7 for count in layouts], color="#9aa7b5", linewidth=1, label="10 million a second")
    axes.set(xscale="log", yscale="log", xlabel="layouts that the rules let through", ylabel="processor time [s]")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(__file__).with_name("performance.svg"))
