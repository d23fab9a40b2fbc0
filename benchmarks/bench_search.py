"""Whole searches: a cold process to its written file, and again in a process that is warm."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.cases import WHOLE, problem
from benchmarks.measure import Measure, in_turn, kernel, peak_memory, process
from search.engine import search
from search.space import load_space

CASES = (("llama-3.1-405b", "dgx-h100", 16384), ("deepseek-v3", "gb200-nvl72", 256))


def option(axis: str, values: Sequence[int | str]) -> tuple[str, str]:
    """A limit of an axis as it is typed."""
    return f"--{axis.replace('_', '-')}", ",".join(map(str, values))


def run(rounds: int) -> Iterator[Measure]:
    """The wide space with and without bounds."""
    for model, cluster, gpus in CASES:
        case, title = problem(model, cluster, gpus), model.split("-")[0]
        limits = WHOLE if case.model.is_moe else {}
        space = load_space(case, "wide", limits)
        account = search(case, space).account
        rows = account.scored + account.bounded
        for name, more in (("bounds", []), ("no bounds", ["--no-bounds"])):
            arguments = ["-m", "search", "search", model, cluster, "--gpus", str(gpus), "--space", "wide", *more]
            arguments += [word for axis, values in limits.items() for word in option(axis, values)]
            with tempfile.TemporaryDirectory() as folder:
                seconds, reference = in_turn(rounds, process(arguments, Path(folder)), kernel())
                memory = peak_memory(arguments, Path(folder))
            yield Measure(
                name=f"{title}, cold, {name}", work=rows, unit="layouts",
                seconds=seconds, reference=reference, memory=memory,
            )  # fmt: skip
        seconds, reference = in_turn(rounds, lambda: search(case, space, bounds=True), kernel())  # noqa: B023
        yield Measure(name=f"{title}, warm, bounds", work=rows, unit="layouts", seconds=seconds, reference=reference)
