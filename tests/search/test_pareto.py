"""The frontier: the right layouts, in one order, however the points arrive."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layouts import AXES, Layouts
from search.pareto import Frontier, Points, Sieve, concatenate

rows = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 3), st.integers(1, 3)), max_size=40)


def points(rows: list[tuple[int, ...]]) -> Points:
    """Few different values, so that ties in one or both objectives and equal layouts are common."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    axes = {axis: np.ones(len(table), dtype=np.int64) for axis in AXES} | {"tp": table[:, 2], "schedule": table[:, 3]}
    return Points(table[:, 0] / 7.0, table[:, 1] * 1e9, Layouts.from_columns(axes))


def keys(points: Points) -> list[tuple[float, ...]]:
    axes = zip(*(getattr(points.layouts, axis).tolist() for axis in AXES), strict=True)
    return [(-m, -h, *a) for m, h, a in zip(points.mfu.tolist(), points.headroom.tolist(), axes, strict=True)]


def oracle(points: Points) -> list[tuple[float, ...]]:
    """Quadratic: of the rows in their total order, those that no earlier row matches or beats."""
    kept: list[tuple[float, ...]] = []
    for key in sorted(keys(points)):
        if not any(other[0] <= key[0] and other[1] <= key[1] for other in kept):
            kept.append(key)
    return kept


@given(rows, st.integers(1, 9))
def test_equals_the_quadratic_definition_whatever_the_chunks(rows: list[tuple[int, ...]], size: int) -> None:
    everything, frontier = points(rows), Frontier()
    for start in range(0, len(rows), size):
        frontier.add(everything.take(np.arange(start, min(start + size, len(rows)))))
    assert keys(frontier.points) == oracle(everything)


@given(rows, rows)
def test_frontiers_of_parts_merge_to_the_frontier_of_the_whole(
    a: list[tuple[int, ...]], b: list[tuple[int, ...]]
) -> None:
    whole, left, right = Frontier(), Frontier(), Frontier()
    whole.add(concatenate([points(a), points(b)]))
    left.add(points(a))
    right.add(points(b))
    right.add(left.points)
    assert keys(right.points) == keys(whole.points)


@given(rows, rows)
def test_a_sieve_lets_through_whatever_the_frontier_takes(
    known: list[tuple[int, ...]], more: list[tuple[int, ...]]
) -> None:
    a, b = points(known), points(more)
    sieve = Sieve(1.0 - a.mfu, a.headroom)
    passed = sieve.may_enter(1.0 - b.mfu, b.headroom)
    assert passed.tolist() == (1.0 - b.mfu < sieve.limit(b.headroom)).tolist()
    assert np.all(sieve.limit(b.headroom) <= sieve.limit(b.headroom + 1e8))
    whole, sieved = Frontier(), Frontier()
    whole.add(concatenate([a, b]))
    sieved.add(concatenate([a, b.take(passed)]))
    assert keys(sieved.points) == keys(whole.points)


def test_a_sieve_holds_back_what_is_beaten() -> None:
    sieve = Sieve(np.array([1.0, 2.0, 4.0]), np.array([10.0, 20.0, 30.0]))
    seconds, headroom = np.array([2.0, 1.9, 2.1, 4.0, 4.0, 5.0]), np.array([19.0, 19.0, 20.0, 29.0, 30.0, 31.0])
    assert sieve.may_enter(seconds, headroom).tolist() == [False, True, True, False, True, True]


def test_more_headroom_is_always_paid_for_in_mfu() -> None:
    random = np.random.default_rng(0)
    frontier = Frontier()
    frontier.add(points([tuple(row) for row in random.integers(0, 1000, (5000, 4))]))
    pairs = list(pairwise(zip(frontier.points.mfu, frontier.points.headroom, strict=True)))
    assert pairs
    assert all(better[0] > worse[0] and better[1] < worse[1] for better, worse in pairs)


def test_not_a_number_is_refused() -> None:
    bad = points([(1, 1, 1, 1)])
    bad.mfu[0] = np.nan
    with pytest.raises(ValueError, match="not a number"):
        Frontier().add(bad)
