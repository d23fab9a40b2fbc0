"""The shipped runs, each predicted without its source: the file, written and read."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path

from costmodel.calibration.holdout import blocks
from costmodel.calibration.runs import Run, grouped
from costmodel.calibration.spread import LeftOut
from costmodel.profile import FITTED

FILE = Path(__file__).parents[1] / "data" / "left_out.csv.gz"
"""step_time [s] and memory [B] of the shipped runs by rates that were not fitted to their source."""


def by_profile(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by the shipped profile that they go with."""
    return grouped(runs, lambda run: run.problem.profile.shipped)


def file_of(name: str) -> tuple[str, str]:
    """The text of a shipped profile's fitted rates, and that of its interval and ranges after it; empty without any."""
    path = FITTED / f"{name}.toml"
    rates, begin, sure = (
        path.read_text().partition("[interval]") if path.is_file() else (f'base = "{name}"\n\n', "", "")
    )
    return rates, begin + sure


def write_left_out(rows: Sequence[LeftOut], path: Path = FILE) -> None:
    """Write left-out predictions; the same predictions give the same bytes."""
    lines = ["id,step_time,memory,calibrated"]
    lines += [f"{it.run.id},{it.step_time:.6g},{it.memory:.6g},{int(it.calibrated)}" for it in rows]
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))


def read_left_out(runs: Sequence[Run], path: Path = FILE) -> list[LeftOut]:
    """The left-out predictions of those of `runs` that the file has."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        known = {row["id"]: row for row in csv.DictReader(file)}
    found = []
    for own in by_profile(runs).values():
        for number, block in enumerate(blocks(own)[1]):
            for run in block:
                if row := known.get(run.id):
                    time, memory = float(row["step_time"]), float(row["memory"])
                    inside = row["calibrated"] == "1"
                    found.append(LeftOut(run=run, block=str(number), step_time=time, memory=memory, calibrated=inside))
    return found
