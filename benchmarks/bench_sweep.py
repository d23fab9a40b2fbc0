"""The procurement case of the documentation: four machines, five sizes, a cold process to its written file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Measure, in_turn, kernel, peak_memory, process

SIZES = ("1024", "2048", "4096", "8192", "16384")
CLUSTERS = ("dgx-a100", "dgx-h100", "dgx-b200", "gb200-nvl72")


def run(rounds: int) -> Iterator[Measure]:
    """Twenty searches of llama-3.1-405b side by side; seldom more than one round is worth its time."""
    case = ["-m", "search", "sweep", "llama-3.1-405b", ",".join(CLUSTERS), "--gpus", ",".join(SIZES), "--tokens", "15T"]
    with tempfile.TemporaryDirectory() as folder:
        seconds, reference = in_turn(min(rounds, 2), process(case, Path(folder)), kernel())
        memory = peak_memory(case, Path(folder))
    yield Measure(
        name="sweep, cold", work=len(SIZES) * len(CLUSTERS), unit="searches", seconds=seconds, reference=reference,
        memory=memory,
    )  # fmt: skip
