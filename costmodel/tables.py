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
    flat, (height, width) = table.ravel(), table.shape
    i, up = _place(np.asarray(rows, dtype=np.float64), y)
    j, right = _place(np.asarray(columns, dtype=np.float64), x)
    at, one = i * width + j, 1 * (j < width - 1)
    left = flat.take(at)
    below = left + right * (flat.take(at + one) - left)
    at = at + width * (i < height - 1)
    left = flat.take(at)
    above = left + right * (flat.take(at + one) - left)
    result: Column = below + up * (above - below)
    return result


def _place(knots: Column, x: Column) -> tuple[Column, Column]:
    """The knot at or below x, and the share of the way to the next one."""
    at = np.interp(x, knots, np.arange(len(knots), dtype=np.float64))
    below = np.floor(at)
    return below.astype(np.int64), at - below
