"""What a buyer asks of the rows: the best of each size, the knee, the cheapest, the fewest GPUs in time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from search.sweep.rows import ENDS, LEAVES, Row, fits, machine_of, settings_of

KNEE = 0.8
"""Share of the GPUs' growth that the speed must still gain for a size to lie before the knee."""
PARTS = 8
"""Steps of an octave in which the fewest GPUs are looked for."""


@dataclass(frozen=True, slots=True)
class Fewest:
    """The fewest GPUs of a machine that train in time: by the prediction, by the fast and by the slow end of its
    interval (None where no size of the sweep does), and the row; `smallest` where no smaller size was swept."""

    machine: tuple[Any, ...]
    gpus: int | None
    low: int | None
    high: int | None
    row: Row | None
    smallest: bool


@dataclass(frozen=True, slots=True)
class Knee:
    """The last size of a machine before the knee, what the next one gains, and whether a knee was met at all."""

    machine: tuple[Any, ...]
    row: Row
    gain: float
    met: bool


Answers = tuple[list[Knee], list[Fewest]]


def best(rows: Sequence[Row], objective: str) -> list[Row]:
    """The best row of each machine and size, or its reason, in the order of the rows."""
    settings = settings_of(rows)
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (*machine_of(row, settings), row["gpus"])
        if key not in found or _key(row, objective) < _key(found[key], objective):
            found[key] = row
    return list(found.values())


def _key(row: Row, objective: str) -> tuple[bool, float, float]:
    if not fits(row):
        return True, math.inf, math.inf
    value = row[LEAVES[objective]]
    return False, math.inf if value is None else value, row["days_to_train"]


def winners(rows: Sequence[Row], objective: str) -> list[Row]:
    """The best row of each model; a model of which nothing fits, or nothing has a price, has none."""
    found: dict[str, Row] = {}
    for row in rows:
        if fits(row) and row[LEAVES[objective]] is not None:
            old = found.get(row["model"])
            if old is None or _key(row, objective) < _key(old, objective):
                found[row["model"]] = row
    return list(found.values())


def knees(rows: Sequence[Row]) -> Iterator[Knee]:
    """The knee of each machine with two sizes or more.

    The gain from one size to the next is d ln(tokens/s) / d ln(GPUs): 1 where twice the GPUs train twice as fast. Sizes
    below the line between their neighbours, which divide the model badly, are passed over.
    """
    for machine, own in _machines(best(rows, "time")):
        hull: list[Row] = []
        for row in own:
            while len(hull) > 1 and _gain(hull[-1], row) >= _gain(hull[-2], hull[-1]):
                hull.pop()
            hull.append(row)
        gains = [_gain(before, after) for before, after in pairwise(hull)]
        if not gains:
            continue
        last = max((index for index, gain in enumerate(gains, 1) if gain >= KNEE), default=0)
        met = last < len(gains)
        yield Knee(machine, hull[last], gains[last] if met else gains[-1], met)


def _gain(before: Row, after: Row) -> float:
    return math.log(_speed(after) / _speed(before)) / math.log(after["gpus"] / before["gpus"])


def _machines(rows: Sequence[Row]) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    """The rows that fit, by machine, sizes rising."""
    settings = settings_of(rows)
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        own = grouped.setdefault(machine_of(row, settings), [])
        if fits(row):
            own.append(row)
    for machine, own in grouped.items():
        yield machine, sorted(own, key=lambda row: row["gpus"])


def _speed(row: Row) -> float:
    return float(row["tokens_per_second_per_gpu"]) * float(row["gpus"])


def fewest(rows: Sequence[Row], days: float) -> list[Fewest]:
    """The fewest GPUs of each machine, among the sizes of the rows, that train within `days`."""
    found = []
    for machine, own in _machines(best(rows, "time")):
        sizes: dict[str, Row] = {}
        for end in ENDS:
            quick = [row for row in own if row[f"days_to_train{end}"] <= days]
            if quick:
                sizes[end] = quick[0]
        row = sizes.get("")
        gpus, low, high = (sizes[end]["gpus"] if end in sizes else None for end in ENDS)
        found.append(Fewest(machine, gpus, low, high, row, bool(own) and gpus == own[0]["gpus"]))
    return found


def between(sizes: Sequence[int], node: int, fits_at: Sequence[bool]) -> list[int]:
    """Sizes in whole nodes to look at between the first that trains in time and the one below it.

    An eighth of an octave apart: 9/8, 10/8 ... 15/8 of the lower size. Empty if no size is in time, or the first is.
    """
    first = next((index for index, ok in enumerate(fits_at) if ok), 0)
    if first == 0:
        return []
    low, high = sizes[first - 1], sizes[first]
    steps = {math.ceil(low * (1 + k / PARTS) / node) * node for k in range(1, PARTS * math.ceil(high / low))}
    return sorted(size for size in steps if low < size < high)
