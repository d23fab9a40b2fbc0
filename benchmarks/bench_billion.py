"""A billion layouts, once with and once without bounds, and the memory that they take beside that of ten million."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_growth import BATCH, CLUSTER, GPUS, MODEL, grown, measured
from benchmarks.bench_search import option
from benchmarks.cases import WHOLE
from benchmarks.measure import Measure, in_turn, kernel, peak_memory, process
from search.engine import search
from search.space import load_space

BILLION: dict[str, list[int | str]] = {"recompute": WHOLE["recompute"]}
"""The profile's recompute sets, each in every number of a stage's layers."""
MILLIONS: dict[str, list[int | str]] = {**WHOLE, "micro_batch": [1, 2]}


def run(rounds: int) -> Iterator[Measure]:
    """In this process; then cold to a written file, with the peak memory. One round, as it takes minutes."""
    del rounds
    case = grown()
    yield from measured(case, BILLION, 1)
    for name, limits in (("millions", MILLIONS), ("billion", BILLION)):
        account = search(case, load_space(case, "wide", limits), bounds=True).account
        arguments = ["-m", "search", "search", MODEL, CLUSTER, "--gpus", str(GPUS), "--global-batch", str(BATCH)]
        arguments += [word for axis, values in limits.items() for word in option(axis, values)]
        arguments += ["--space", "wide", "--no-bounds"]
        with tempfile.TemporaryDirectory() as folder:
            seconds, reference = in_turn(1, process(arguments, Path(folder)), kernel())
            memory = peak_memory(arguments, Path(folder))
        yield Measure(
            name=f"{name}, cold, no bounds", work=account.scored + account.bounded, unit="layouts",
            seconds=seconds, reference=reference, memory=memory,
        )  # fmt: skip
