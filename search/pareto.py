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


class Sieve:
    """Step times and headrooms seen so far, which tell apart what another beats in both from what may be best.

    A layout that another beats strictly in step time and in headroom is not on the frontier, whatever MFU rounds to.
    """

    BINS = 256

    def __init__(self) -> None:
        self.seconds = np.empty(0)
        self.headroom = np.empty(0)
        self._low, self._per_byte, self._limit = 0.0, 0.0, np.full(self.BINS + 1, np.inf)

    def add(self, seconds: Column, headroom: Column) -> None:
        """Take in points; those that others beat are dropped."""
        seconds, headroom = np.concatenate([self.seconds, seconds]), np.concatenate([self.headroom, headroom])
        order = np.lexsort((seconds, -headroom))
        seconds, headroom = seconds[order], headroom[order]
        best = np.minimum.accumulate(np.concatenate([[np.inf], seconds]))[:-1]
        kept = seconds < best
        self.seconds, self.headroom = seconds[kept], headroom[kept]
        self._bin()

    def _bin(self) -> None:
        """For each bin of headroom the least step time among points that have more headroom than all of it."""
        low, high = float(self.headroom[-1]), float(self.headroom[0])
        self._low, self._per_byte = low, self.BINS / (high - low) if high > low else 0.0
        edges = low + (np.arange(1, self.BINS + 1) + 0.001) * ((high - low) / self.BINS)
        beyond = np.searchsorted(-self.headroom, -edges, side="left")
        fastest = np.append(np.inf, self.seconds)[beyond]
        self._limit = np.append(fastest, np.inf)

    def may_enter(self, seconds: Column, headroom: Column) -> Column:
        """False only where a point seen has a shorter step and more headroom; shape of `seconds`."""
        if not self._per_byte:
            return np.ones(seconds.shape, dtype=bool)
        place = np.clip((headroom - self._low) * self._per_byte, 0.0, float(self.BINS)).astype(np.int64)
        limit = self._limit.take(place)
        return np.asarray(seconds <= limit)
