"""The Pareto frontier of MFU against memory headroom, streamed, under a total order.

Order: MFU falling, headroom falling, then every axis of a layout rising. A layout is on the frontier if no other is
at least as good in both and better in one; of layouts with equal MFU and headroom only the first stays. The frontier
of a set does not depend on how the set was cut into chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.layouts import AXES, Column, Layouts


@dataclass(frozen=True, slots=True)
class Points:
    """Layouts with their MFU and headroom [B], equal-length columns."""

    mfu: Column
    headroom: Column
    layouts: Layouts

    def take(self, rows: Column) -> Points:
        """The rows that an index array or a boolean mask selects."""
        return Points(self.mfu[rows], self.headroom[rows], self.layouts.take(rows))

    def ranked(self) -> Points:
        """All rows in the total order."""
        axes = [getattr(self.layouts, axis) for axis in reversed(AXES)]
        return self.take(np.lexsort((*axes, -self.headroom, -self.mfu)))

    def __len__(self) -> int:
        return len(self.mfu)


def concatenate(parts: list[Points]) -> Points:
    """One table after the other; no parts give no rows."""
    axes = {axis: np.concatenate([_EMPTY, *(getattr(p.layouts, axis) for p in parts)]) for axis in AXES}
    mfu = np.concatenate([np.empty(0), *(part.mfu for part in parts)])
    return Points(mfu, np.concatenate([np.empty(0), *(part.headroom for part in parts)]), Layouts.from_columns(axes))


_EMPTY = np.empty(0, dtype=np.int64)


class Frontier:
    """The frontier of all points added so far; `points` are ranked: MFU strictly falls, headroom strictly rises."""

    def __init__(self) -> None:
        self.points = concatenate([])

    def add(self, points: Points) -> None:
        """Take in more points. Raises ValueError for a NaN, which has no place in an order."""
        if np.isnan(points.mfu).any() or np.isnan(points.headroom).any():
            raise ValueError("a layout's MFU or headroom is not a number")
        near = points.take(~self._dominates(points))
        near = near.take(_running_best(near))
        if len(near):
            ranked = concatenate([self.points, near]).ranked()
            best = np.maximum.accumulate(np.concatenate([[-np.inf], ranked.headroom]))[:-1]
            self.points = ranked.take(ranked.headroom > best)

    def _dominates(self, points: Points) -> Column:
        """Whether a point of the frontier beats each of `points`; equal ones are not beaten."""
        mfu, headroom = self.points.mfu[::-1], self.points.headroom[::-1]
        at = np.searchsorted(mfu, points.mfu)
        best = np.append(headroom, -np.inf)[at]
        better = np.append(mfu, -np.inf)[at] > points.mfu
        return np.asarray((best > points.headroom) | ((best == points.headroom) & better))


def _running_best(points: Points) -> Column:
    """Indices of a superset of the points' own frontier, ties included: one sort, no look at the axes."""
    order = np.argsort(-points.mfu, kind="stable")
    headroom = points.headroom[order]
    return np.asarray(order[headroom >= np.maximum.accumulate(headroom)])
