"""Bubbles of the published schedules, with equal and unequal stages."""

import numpy as np
import pytest

from costmodel.layouts import SCHEDULES, Layouts
from costmodel.schedule import bubble


def wait(name: str, stages: list[float], *, vpp: int = 1, backward: float = 2 / 3, weight: float = 1 / 3) -> float:
    """Bubble of stages that take these seconds a micro-batch, `backward` and `weight` of it in these passes."""
    row = Layouts.of(pp=len(stages), vpp=vpp, schedule=SCHEDULES.index(name))
    total, slowest = np.array([sum(stages)]), np.array([max(stages)])
    return float(bubble(row, total, slowest, backward * total, weight * total)[0])


def test_equal_stages_follow_the_published_table():
    """F = 1, B = 2, W = 1 on 8 stages: (P-1)(F+B), /V, (P-1)(F+B-2W), (P/2-1)(F&B+B-3W) (DualPipe README)."""
    stages = [3.0] * 8
    assert wait("1f1b", stages) == pytest.approx(7 * 3)
    assert wait("interleaved", stages, vpp=4) == pytest.approx(7 * 3 / 4)
    assert wait("zero-bubble", stages) == pytest.approx(7 * 1)
    assert wait("dualpipe", stages) == pytest.approx(3 * (3 + 2 - 3))


def test_four_stages_and_sixteen_micro_batches_wait_16_percent_of_the_step():
    """The chapter's self-check: 3/16 of ideal time is 3/19 of the step."""
    busy = 16 * 1.0
    assert wait("1f1b", [1.0] * 4) / (busy + wait("1f1b", [1.0] * 4)) == pytest.approx(3 / 19)


def test_a_slow_stage_waits_for_the_others_only():
    assert wait("1f1b", [1.0, 1.0, 5.0, 1.0]) == pytest.approx(3.0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_stage_never_waits(name):
    assert wait(name, [3.0]) == 0.0
