"""The memory floors never prune a layout that fits, and are near enough to prune those that do not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.floor import activation_floor, dense_floor, expert_floor, fixed_floor
from costmodel.layouts import Layouts
from costmodel.memory import memory
from costmodel.problem import Problem
from costmodel.split import split_table
from tests.strategies import candidates, problem, problems


def need(problem: Problem, layouts: Layouts) -> np.ndarray:
    stages = split_table(problem.model, problem.workload.seq_len, layouts.pp.tolist())
    return memory(problem, layouts, stages).total


def floor(problem: Problem, layouts: Layouts) -> np.ndarray:
    dense = dense_floor(problem, layouts.tp, layouts.pp)
    experts = expert_floor(problem, layouts.pp, layouts.ep, layouts.etp)
    return dense + experts + activation_floor(problem, layouts.tp, layouts.cp, layouts.pp) + fixed_floor(problem)


@given(st.data())
def test_floor_is_below_the_memory_of_every_layout(data: st.DataObject):
    case = data.draw(problems())
    layouts = data.draw(candidates(case, rows=16))
    layouts = layouts.take(launchable(case, layouts))
    if len(layouts):
        assert (floor(case, layouts) <= need(case, layouts)).all()


def launchable(case: Problem, layouts: Layouts) -> np.ndarray:
    """Rows that keep the rules which the floors build on: a layer a stage, the profile's ZeRO stages, shard groups
    that divide the data-parallel ranks."""
    stage, profile = layouts.zero_stage, case.profile
    piped, flat = np.isin(stage, profile.zero_stages_with_pp), np.isin(stage, profile.zero_stages)
    groups = layouts.dp * layouts.cp % layouts.dp_shard == 0
    return np.where(layouts.pp > 1, piped, flat) & groups & (layouts.pp <= case.model.layers)


@pytest.mark.parametrize(
    ("model", "machine", "gpus", "framework", "degrees", "share"),
    [
        ("llama-3.1-70b", "dgx-h100", 64, "megatron", {"tp": 8, "pp": 1, "dp": 8}, 0.95),
        ("llama-3.1-405b", "dgx-h100", 8192, "megatron", {"tp": 8, "pp": 16, "dp": 64}, 0.85),
        ("deepseek-v3", "hgx-h800", 2048, "megatron", {"tp": 1, "pp": 16, "dp": 128, "ep": 64}, 0.65),
    ],
)
def test_floor_is_near_the_leanest_layout(model, machine, gpus, framework, degrees, share):
    """Full recompute, micro-batches of one sequence, the deepest ZeRO stage: what the floor must come near."""
    case = problem(model, machine, gpus, framework)
    stage = (case.profile.zero_stages if degrees["pp"] == 1 else case.profile.zero_stages_with_pp)[-1]
    full = case.profile.recompute_code("full")
    lean = Layouts.of(**degrees, zero_stage=stage, recompute=full, sequence_parallel=int(degrees["tp"] > 1))
    bound = floor(case, lean) / need(case, lean)
    assert share < bound[0] <= 1.0
