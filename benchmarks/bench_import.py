"""How long a command takes to start, beside what cannot be avoided."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Measure, in_turn, process

LIBRARIES = "import numpy, pyarrow.parquet; from ortools.sat.python import cp_model"
SEARCH = ["search", "llama-3.1-70b", "dgx-h100", "--gpus", "64"]


def run(rounds: int) -> Iterator[Measure]:
    """The help and a list beside a bare interpreter; a small search to its file beside the import of its libraries."""
    command, bare = ["-m", "search"], process(["-c", "pass"])
    for name, arguments in (("help", ["--help"]), ("list", ["list", "spaces"])):
        seconds, reference = in_turn(3 * rounds, process([*command, *arguments]), bare)
        yield Measure(name=name, work=1, unit="commands", seconds=seconds, reference=reference)
    with tempfile.TemporaryDirectory() as folder:
        cold = process([*command, *SEARCH], Path(folder))
        seconds, reference = in_turn(rounds, cold, process(["-c", LIBRARIES]))
    yield Measure(name="small search, cold", work=1, unit="commands", seconds=seconds, reference=reference)
