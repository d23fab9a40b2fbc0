"""Layouts scored a second, beside a NumPy kernel timed in the same run.

A shared machine changes its speed from minute to minute; the ratio of the two rates does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from time import perf_counter

import numpy as np

from costmodel.estimate import estimate
from costmodel.layouts import Layouts
from costmodel.model import load_model
from costmodel.problem import Problem, Workload
from costmodel.profile import load_profile
from hardware.catalog import load_cluster, load_gpu

ROWS = 65_536
REPEATS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Rates in rows a second; `ratio` is what to compare between versions."""

    layouts: float
    reference: float

    @property
    def ratio(self) -> float:
        return self.layouts / self.reference

    def __str__(self) -> str:
        return (
            f"score: {self.layouts:,.0f} layouts/s, reference kernel {self.reference:,.0f} rows/s, "
            f"ratio {self.ratio:.4f}"
        )


def run(rows: int = ROWS, repeats: int = REPEATS) -> Score:
    """The best of `repeats` timings of each, taken in turn so that both see the same machine."""
    problem, layouts = _problem(), _layouts(rows)
    column = np.linspace(1.0, 2.0, rows)
    times = [
        (_seconds(lambda: estimate(problem, layouts)), _seconds(lambda: _reference(column))) for _ in range(repeats)
    ]
    score, reference = (rows / min(column) for column in zip(*times, strict=True))
    return Score(layouts=score, reference=reference)


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _reference(column: np.ndarray) -> np.ndarray:
    """100 multiply-adds on a float64 column."""
    total = np.zeros_like(column)
    for _ in range(100):
        total = total * column + column
    return total


def _problem() -> Problem:
    workload = Workload(gpus=1024, seq_len=8192, global_batch=2048)
    return Problem(
        model=load_model("llama-3.1-70b"),
        cluster=load_cluster("dgx-h100"),
        profile=load_profile("megatron").on(load_gpu("H100-SXM")),
        workload=workload,
    )


def _layouts(rows: int) -> Layouts:
    """Layouts of 1,024 GPUs, repeated to `rows`."""
    axes = {
        "tp": (1, 2, 4, 8),
        "pp": (1, 2, 4, 8, 16),
        "cp": (1, 2, 4),
        "micro_batch": (1, 2, 4),
        "recompute": (0, 1),
    }
    grid = np.array(list(product(*axes.values())))
    ones, zeros = np.ones(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    columns = dict(zip(axes, grid[np.arange(rows) % len(grid)].T, strict=True))
    dp = 1024 // (columns["tp"] * columns["pp"] * columns["cp"])
    return Layouts.from_columns(
        columns
        | dict.fromkeys(("vpp", "ep", "etp", "zero_stage"), ones)
        | {
            "dp": dp,
            "dp_shard": dp * columns["cp"],
            "sequence_parallel": columns["tp"] > 1,
            "schedule": zeros,
        }
    )
