"""Waits of the pipeline schedules: the published ones of equal stages, and those of an event simulation of others."""

from collections.abc import Sequence

import numpy as np
import pytest

from costmodel.layouts import SCHEDULES
from costmodel.schedule import Path, sends
from tests.pipeline_events import dualpipe, interleaved, makespan, one_f_one_b, zero_bubble

MAKESPAN = {"1f1b": one_f_one_b, "zero-bubble": zero_bubble, "dualpipe": dualpipe}
Stages = tuple[Sequence[float], float, float]
"""Forward seconds of each stage, and its gradient passes, of the input and of the weights, over the forward one."""


def wait(name: str, stages: Stages, batches: int, *, vpp: int = 1) -> float:
    """What the slowest stage waits for in a step: the longest path less its own work."""
    return step(name, stages, batches, vpp=vpp) - batches * float(max(stages[0])) * (1 + stages[1] + stages[2])


def step(name: str, stages: Stages, batches: int, *, vpp: int = 1) -> float:
    """The longest of the paths that `estimate` takes: through the slowest stage (the last of equals), and the last."""
    pp = len(stages[0])
    forward = np.array(stages[0], dtype=float)
    passes = np.stack([forward, forward * (stages[1] + stages[2]), forward * stages[2]])
    if name == "dualpipe":
        passes = (passes + passes[:, ::-1]) / 2
    busy = passes[0] + passes[1]
    slowest = pp - 1 - int(np.argmax(busy[::-1]))
    behind, later = passes[:, slowest + 1 :], pp - 1 - slowest
    if name == "dualpipe":
        edge = min(slowest, pp - 1 - slowest)
        behind, later = passes[:, edge + 1 : pp - 1 - edge], max(pp // 2 - 1 - edge, 0)
    sums = (passes[:, [slowest]], passes.sum(1)[:, None], behind.sum(1)[:, None])
    path = Path(*(np.array([float(value)]) for value in (batches, pp, vpp)), *sums, np.array([float(later)]))
    waits = path.longest(np.array([SCHEDULES.index(name)]), passes[:, [-1]])
    return float(batches * busy[slowest] + waits[0])


def simulated(name: str, stages: Stages, batches: int, *, vpp: int = 1, send: float = 0.0) -> float:
    orders = (
        interleaved(len(stages[0]), vpp, batches) if name == "interleaved" else MAKESPAN[name](len(stages[0]), batches)
    )
    forward = [seconds / vpp for seconds in stages[0]] * vpp
    return makespan(
        orders, {"F": forward, "B": [stages[1] * f for f in forward], "W": [stages[2] * f for f in forward]}, send
    )


EQUAL: Stages = ([1.0] * 8, 1.0, 1.0)


def test_equal_stages_follow_the_published_table():
    """F = 1, B = 2, W = 1 on 8 stages: (P-1)(F+B), /V, (P-1)(F+B-2W), (P/2-1)(F&B+B-3W) (DualPipe README)."""
    assert wait("1f1b", EQUAL, 32) == pytest.approx(7 * 3)
    assert wait("interleaved", EQUAL, 32, vpp=4) == pytest.approx(7 * 3 / 4)
    assert wait("zero-bubble", EQUAL, 32) == pytest.approx(7 * 1)
    assert wait("dualpipe", EQUAL, 32) == pytest.approx(3 * (3 + 2 - 3))


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_simulation_follows_the_published_table(name):
    """So that what it says of unequal stages is said of the same schedules."""
    vpp = 4 if name == "interleaved" else 1
    assert simulated(name, EQUAL, 32, vpp=vpp) == pytest.approx(32 * 3 + wait(name, EQUAL, 32, vpp=vpp))


def test_four_stages_and_sixteen_micro_batches_wait_16_percent_of_the_step():
    """The chapter's self-check: 3/16 of ideal time is 3/19 of the step."""
    waits = wait("1f1b", ([1.0] * 4, 1.0, 1.0), 16)
    assert waits / (16 * 3 + waits) == pytest.approx(3 / 19)


def test_fewer_micro_batches_than_stages_wait_longer_than_they_work():
    assert wait("1f1b", EQUAL, 4) == pytest.approx(7 * 3)
    assert simulated("1f1b", EQUAL, 4) == pytest.approx(4 * 3 + 7 * 3)


def test_a_slow_first_stage_waits_less_than_the_others_take():
    """It runs the other micro-batches meanwhile: the sum of the other stages would be 9."""
    stages = ([2.0, 1.0, 1.0, 1.0], 1.0, 1.0)
    assert wait("1f1b", stages, 16) == pytest.approx(9 - 3 * 2)
    assert simulated("1f1b", stages, 16) == pytest.approx(16 * 6 + 3)


UNEQUAL = {
    "light ends": [7, 8, 8, 8, 8, 8, 8, 7],
    "heavy head": [4, 4, 4, 4, 4, 4, 4, 5.3],
    "one more layer": [4, 4, 5, 4, 4, 4, 4, 4],
    "more layers first": [6, 6, 6, 6, 5, 5, 5, 5],
    "more layers last": [5, 5, 5, 5, 6, 6, 6, 6],
    "slow in the middle": [4, 4, 4, 4.5, 5, 4, 4, 4],
    "two": [5, 6],
    "four": [8, 9, 9, 7],
}


BATCHES = {("1f1b", 1): (4, 16, 32, 128), ("interleaved", 2): (16, 32, 128), ("interleaved", 4): (16, 32, 128)}
BATCHES |= {("zero-bubble", 1): (16, 32, 128), ("dualpipe", 1): (40, 128)}


@pytest.mark.parametrize("stages", UNEQUAL.values(), ids=UNEQUAL)
@pytest.mark.parametrize(("backward", "weight"), [(1.0, 1.0), (1.4, 0.8), (2.2, 0.9)])
@pytest.mark.parametrize(("name", "vpp", "batches"), [(*key, batches) for key in BATCHES for batches in BATCHES[key]])
def test_unequal_stages_take_as_long_as_an_event_simulation(name, vpp, batches, backward, weight, stages):
    """With the fewest micro-batches that they run, interleaving (1 a stage) is 1.4 % off, DualPipe (2) 1.2 %."""
    case = (stages, backward, weight)
    assert step(name, case, batches, vpp=vpp) == pytest.approx(simulated(name, case, batches, vpp=vpp), rel=0.01)


@pytest.mark.parametrize("hop", [0.01, 0.02])
@pytest.mark.parametrize("batches", [16, 64, 128])
@pytest.mark.parametrize("pp", [4, 8])
def test_1f1b_shows_its_sends_and_schedules_with_other_work_hide_them(pp, batches, hop):
    """A hop takes up to 2 % of a forward pass; the share that is visible in between is a rate of the profile."""
    equal = ([1.0] * pp, 1.0, 1.0)
    for name, vpp, visible in (("1f1b", 1, 1.0), ("interleaved", 2, 0.0), ("zero-bubble", 1, 0.0)):
        shown = sends(*(np.array([float(value)]) for value in (hop, batches, pp, vpp)), visible)[0]
        taken = simulated(name, equal, batches, vpp=vpp, send=hop)
        assert step(name, equal, batches, vpp=vpp) + shown == pytest.approx(taken, rel=0.01)


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_stage_never_waits(name):
    assert wait(name, ([3.0], 1.0, 1.0), 8) == 0.0
