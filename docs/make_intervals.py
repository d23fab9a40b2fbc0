"""Predict the shipped runs without their source, and write the intervals and ranges of the shipped profiles from that.

`python docs/make_intervals.py` leaves each source out of the fits of every profile, which takes minutes and all cores,
and writes costmodel/data/left_out.csv.gz and the tables [interval] and [range] of costmodel/profiles/fitted/*.toml. Run
it again when a rate or the model changes. With `--again` the left-out predictions stay, the tables alone are written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from costmodel.calibration.holdout import fits_of, left_out, sure_lines
from costmodel.calibration.runs import RUNS, Run, read_runs
from costmodel.calibration.shipped import by_profile, file_of, read_left_out, write_left_out
from costmodel.calibration.spread import LeftOut, intervals
from costmodel.profile import FITTED, POOLED, load_profile, pooled_interval


def predictions(name: str) -> list[LeftOut]:
    """The runs of one profile, each predicted by rates fitted to other sources."""
    own, profile = by_profile(read_runs(RUNS)[0])[name], load_profile(name, fitted=False)
    return left_out(own, profile, fits_of(own, load_profile(name), profile))


def texts(runs: Sequence[Run], rows: Sequence[LeftOut]) -> dict[Path, str]:
    """The file of the pooled interval, and those of the profiles, as the left-out predictions make them."""
    pooled, _ = intervals(rows, pooled_interval())
    facts = sure_lines([], [], pooled, "")
    found = {
        POOLED: "\n".join(["# The mean over all profiles, by `python docs/make_intervals.py`. Do not edit.", *facts])
    }
    for name, own in by_profile(runs).items():
        lines = sure_lines(own, [it for it in rows if it.profile == name], pooled, "shipped runs")
        found[FITTED / f"{name}.toml"] = file_of(name)[0] + "\n".join(lines)
    return found


def main() -> None:
    """Write the files."""
    runs = read_runs(RUNS)[0]
    if "--again" not in sys.argv:
        names = sorted(by_profile(runs), key=lambda name: name != "megatron")  # the longest first
        with ProcessPoolExecutor() as pool:
            write_left_out([it for rows in pool.map(predictions, names) for it in rows])
    for path, text in texts(runs, read_left_out(runs)).items():
        path.write_text(text)


if __name__ == "__main__":
    main()
