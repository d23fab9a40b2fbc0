"""Days, money and energy of a training run agree with a calculation by hand."""

import numpy as np
import pytest

from costmodel.economy import training
from costmodel.model import load_model
from costmodel.problem import Problem, Workload
from costmodel.profile import load_profile
from hardware.catalog import load_cluster


def problem(gpus: int, **changes: float) -> Problem:
    cluster = load_cluster("dgx-h100", dict(changes))
    work = Workload(gpus=gpus, seq_len=8192, global_batch=2048)
    return Problem(model=load_model("llama-3.1-405b"), cluster=cluster, profile=load_profile("megatron"), workload=work)


def test_by_hand() -> None:
    """15e12 tokens in steps of 2,048 x 8,192 = 16,777,216 tokens are 894,070 steps; at 5.4 s each 55.88 days. 16,384
    GPUs for 1,341.1 h are 21.973e6 GPU-hours, $46.14e6 at $2.10. 2,048 nodes of 10.2 kW at PUE 1.2 draw 25.07 MW."""
    run = training(problem(16384, price=2.10), 15e12, np.array([5.4]))
    assert run.days_to_train[0] == pytest.approx(894070 * 5.4 / 86400)
    assert run.days_to_train[0] == pytest.approx(55.88, abs=0.005)
    assert run.gpu_hours[0] == pytest.approx(21.973e6, rel=1e-4)
    assert run.cost[0] == pytest.approx(46.14e6, rel=1e-3)
    assert run.energy[0] == pytest.approx(894070 * 5.4 * 2048 * 10200 * 1.2)


def test_steps_are_whole() -> None:
    """One token more than a step holds is a second step."""
    one = problem(8)
    assert training(one, one.tokens, np.array([2.0])).days_to_train[0] == pytest.approx(2.0 / 86400)
    assert training(one, one.tokens + 1, np.array([2.0])).days_to_train[0] == pytest.approx(4.0 / 86400)


def test_a_part_of_a_node_draws_its_share() -> None:
    half, whole = (training(problem(gpus), 1e9, np.array([1.0])).energy[0] for gpus in (4, 8))
    assert half == pytest.approx(whole / 2)


def test_no_price_no_cost() -> None:
    unpriced = problem(8)
    object.__setattr__(unpriced.cluster, "price", None)
    assert np.isnan(training(unpriced, 1e9, np.array([1.0])).cost[0])
