"""Measured tables, interpolated: the one place where a rate is read between two measured points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from costmodel.layouts import Column


def bilinear(rows: ArrayLike, columns: ArrayLike, values: Sequence[Sequence[float]], y: Column, x: Column) -> Column:
    """`values[i][j]`, given at rising knots `rows[i]` and `columns[j]`, between them and constant outside.

    y is looked up along rows and x along columns; both float64 of one length.
    """
    table = np.asarray(values, dtype=np.float64)
    i, up = _place(np.asarray(rows, dtype=np.float64), y)
    j, right = _place(np.asarray(columns, dtype=np.float64), x)
    below = table[i, j] + right * (table[i, _next(table, j, 1)] - table[i, j])
    i = _next(table, i, 0)
    above = table[i, j] + right * (table[i, _next(table, j, 1)] - table[i, j])
    result: Column = below + up * (above - below)
    return result


def _next(table: Column, index: Column, axis: int) -> Column:
    following: Column = np.minimum(index + 1, table.shape[axis] - 1)
    return following


def _place(knots: Column, x: Column) -> tuple[Column, Column]:
    """The knot at or below x, and the share of the way to the next one."""
    at = np.interp(x, knots, np.arange(len(knots), dtype=np.float64))
    below = np.floor(at)
    return below.astype(np.int64), at - below
