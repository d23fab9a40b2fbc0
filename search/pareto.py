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
_NOTHING = np.empty(0)


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


class Sieve:
    """Seconds and headrooms [B] of layouts that fit, to tell what may be on the frontier beside them.

    A layout that takes no less time than another and leaves less headroom is not. `seconds` may be of any measure of
    time with which MFU never rises: what rounds to an equal MFU still leaves less headroom.
    """

    BINS = 256

    def __init__(self, seconds: Column = _NOTHING, headroom: Column = _NOTHING) -> None:
        order = np.lexsort((seconds, -headroom))
        seconds, headroom = seconds[order], headroom[order]
        kept = seconds < np.minimum.accumulate(np.concatenate([[np.inf], seconds]))[:-1]
        self.seconds, self.headroom = seconds[kept], headroom[kept]
        self._low, high = (float(headroom[-1]), float(headroom[0])) if len(order) else (0.0, 0.0)
        self._per_byte = self.BINS / (high - self._low) if high > self._low else 0.0
        ends = self._low + (np.arange(self.BINS + 1) + 1.001) * ((high - self._low) / self.BINS)
        above = np.searchsorted(-self.headroom, -ends)
        self._limit = np.append(np.inf, self.seconds)[above]
        """for each bin of headroom, the least step time among points that have more headroom than all of the bin"""

    def plus(self, seconds: Column, headroom: Column) -> Sieve:
        """With more points."""
        return Sieve(np.concatenate([self.seconds, seconds]), np.concatenate([self.headroom, headroom]))

    def may_enter(self, seconds: Column, headroom: Column) -> Column:
        """False only where a point takes no more time and leaves more headroom; of the columns' shape."""
        return np.asarray(seconds < self.limit(headroom))

    def limit(self, headroom: Column) -> Column:
        """Seconds below which a layout may enter that leaves so much headroom, or less."""
        place = np.asarray((headroom - self._low) * self._per_byte).astype(np.int64)
        return self._limit.take(place, mode="clip")
