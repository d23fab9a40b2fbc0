"""The streaming frontier of random points, most of which are beaten."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.measure import ROWS, Measure, in_turn, kernel
from costmodel.layouts import AXES, Layouts
from search.pareto import Frontier, Points

CHUNKS = 16


def run(rounds: int) -> Iterator[Measure]:
    """Sixteen chunks of points whose MFU and headroom trade off."""
    random = np.random.default_rng(1)
    layouts = Layouts.from_columns({axis: np.arange(ROWS) for axis in AXES})
    chunks = []
    for _ in range(CHUNKS):
        angle, radius = random.uniform(0.0, np.pi / 2, ROWS), random.uniform(0.0, 1.0, ROWS) ** 0.1
        chunks.append(Points(radius * np.sin(angle), 1e10 * radius * np.cos(angle), layouts))

    def stream() -> object:
        frontier = Frontier()
        for points in chunks:
            frontier.add(points)
        return frontier

    seconds, reference = in_turn(rounds, stream, kernel())
    yield Measure(name="frontier", work=CHUNKS * ROWS, unit="points", seconds=seconds, reference=reference)
