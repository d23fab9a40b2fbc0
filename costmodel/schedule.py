"""The pipeline schedule: what the slowest stage does, and how long it waits."""

from __future__ import annotations

import numpy as np

from costmodel.layouts import SCHEDULES, Column, Layouts


def code(name: str) -> int:
    """Code of a schedule in the `schedule` column."""
    return SCHEDULES.index(name)


def is_dual(layouts: Layouts) -> Column:
    """1 for rows whose ranks hold two stages (DualPipe)."""
    return np.asarray(layouts.schedule == code("dualpipe"), dtype=np.int64)


def bubble(layouts: Layouts, total: Column, slowest: Column, backward: Column, weight: Column) -> Column:
    """Seconds that the slowest stage waits in a step.

    `total` is the sum over stages of forward and backward of one micro-batch, `slowest` the largest of them; `backward`
    and `weight` are the sums of the backward pass and of its weight-gradient part. With equal stages of F + B:
    1F1B (P-1)(F+B), interleaved (P-1)(F+B)/V, zero-bubble ZB1P (P-1)(F+B-2W), DualPipe (P/2-1)(F&B+B-3W)
    (deepseek-ai/DualPipe README; B the full backward pass). Unequal stages wait for the fill and drain of the others.
    """
    pp, vpp = layouts.pp.astype(np.float64), layouts.vpp.astype(np.float64)
    others = total - slowest
    dual = np.maximum(pp / 2.0 - 1.0, 0.0) * np.maximum(total + backward - 3.0 * weight, 0.0) / pp
    options = {
        "1f1b": others,
        "interleaved": others / vpp,
        "zero-bubble": np.maximum(others - 2.0 * weight * (pp - 1.0) / pp, 0.0),
        "dualpipe": dual,
    }
    waits = np.zeros_like(pp)
    for name, seconds in options.items():
        waits = waits + (layouts.schedule == code(name)) * seconds
    return waits
