"""The committed history: one line a measure, by machine and commit."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import Measure

FILE = Path(__file__).with_name("history.csv")
COLUMNS = (
    "date",
    "commit",
    "machine",
    "cores",
    "python",
    "numpy",
    "measure",
    "work",
    "unit",
    "cpu_seconds",
    "wall_seconds",
    "memory",
    "ratio",
)


def append(measures: Sequence[Measure], file: Path = FILE) -> None:
    """Add a run's measures to the file."""
    new = not file.exists()
    commit, date = _git("rev-parse", "--short", "HEAD"), _git("log", "-1", "--format=%cs")
    where = (machine(), str(os.cpu_count()), platform.python_version(), np.__version__)
    with file.open("a", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        for one in measures:
            times = (f"{one.seconds.cpu:.4g}", f"{one.seconds.wall:.4g}")
            figures = (one.work, one.unit, *times, one.memory, f"{one.ratio:.4g}")
            writer.writerow((date, commit, *where, one.name, *figures))


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(FILE.parent), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()
