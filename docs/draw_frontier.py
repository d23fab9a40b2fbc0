"""Draw a frontier: `python docs/draw_frontier.py frontier.parquet docs/frontier.svg` (needs the extra `dev`)."""

import sys

import matplotlib as mpl
import pandas as pd

mpl.use("svg")
mpl.rcParams |= {"svg.hashsalt": "meshscout", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}

from matplotlib import pyplot as plt  # noqa: E402


def label(row: pd.Series) -> str:
    """A layout in few words; degrees of 1 are left out."""
    degrees = [f"{axis.upper()}{row[axis]}" for axis in ("tp", "pp", "vpp", "dp", "cp", "ep") if row[axis] > 1]
    return f"{' '.join(degrees)}, micro-batch {row['micro_batch']}, recompute {row['recompute']}"


def draw(source: str, target: str) -> None:
    """The frontier as a staircase; its best, its middle and the last before MFU halves are named."""
    frontier = pd.read_parquet(source)
    headroom, mfu = frontier["memory_headroom"] / 2**30, 100 * frontier["mfu"]
    figure, axes = plt.subplots(figsize=(8.5, 4.2), layout="constrained")
    axes.step(headroom, mfu, where="pre", color="#9aa7b5", linewidth=1)
    axes.scatter(headroom, mfu, s=14, color="#1f6feb", zorder=3)
    middle = (headroom - (headroom.min() + headroom.max()) / 2).abs().idxmin()
    for index, side in ((0, "left"), (middle, "left"), (mfu[mfu > mfu.max() / 2].index[-1], "right")):
        place = (headroom[index], mfu[index])
        shift = (6, 8) if side == "left" else (-6, -16)
        text = label(frontier.loc[index])
        axes.annotate(text, place, textcoords="offset points", xytext=shift, ha=side)
    axes.set(xlabel="memory headroom a GPU [GiB]", ylabel="model FLOPs utilisation [%]")
    axes.set_ylim(top=mfu.max() * 1.08)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    draw(*sys.argv[1:])
