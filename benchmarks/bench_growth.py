"""How the cost of a search grows with its layouts: one problem, ever more values of its axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from benchmarks.cases import WHOLE, problem
from benchmarks.measure import Measure, in_turn, kernel
from costmodel.problem import Problem
from search.engine import search
from search.space import load_space

MODEL, CLUSTER, GPUS = "deepseek-v3", "hgx-h800", 16384
BATCH = 105 * 2**15
"""Sequences a step that many micro-batches divide; far beyond what anyone trains with, so that the space is large."""
MICRO_BATCHES = tuple(n for n in range(1, 65) if BATCH % n == 0)
STEPS: tuple[dict[str, list[int]], ...] = (
    {"tp": [8], "cp": [1], "ep": [64], "micro_batch": [1], "recompute": [0]},
    {"cp": [1], "ep": [64], "micro_batch": [1], "recompute": [0, 2]},
    {"cp": [1, 2], "micro_batch": [1]},
    {"micro_batch": [1, 2]},
    {"micro_batch": [1, 2, 3, 4, 5, 6, 7]},
    {"micro_batch": list(MICRO_BATCHES)},
)
"""Limits of the wide space, from narrow to none."""


def grown() -> Problem:
    """DeepSeek-V3 on 16,384 GPUs with that batch."""
    case = problem(MODEL, CLUSTER, GPUS)
    return replace(case, workload=replace(case.workload, global_batch=BATCH))


def run(rounds: int) -> Iterator[Measure]:
    """From thousands of layouts to a hundred million."""
    case = grown()
    for limits in STEPS:
        yield from measured(case, {**WHOLE, **limits}, rounds)


def measured(case: Problem, limits: Mapping[str, Sequence[int | str]], rounds: int) -> Iterator[Measure]:
    """The wide space within limits, warm, with and without bounds."""
    space = load_space(case, "wide", limits)
    for name, bounds in (("scored", False), ("bounded", True)):
        found = []
        seconds, reference = in_turn(rounds, lambda: found.append(search(case, space, bounds=bounds)), kernel())  # noqa: B023
        rows = found[0].account.scored + found[0].account.bounded
        yield Measure(name=f"growth, {name}", work=rows, unit="layouts", seconds=seconds, reference=reference)
