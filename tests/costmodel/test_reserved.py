"""What the allocator holds beside what must fit, against published runs and the laws it must keep."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layouts import Layouts
from costmodel.memory import memory
from costmodel.model import load_model
from costmodel.problem import Problem
from costmodel.reserved import reserved, waiting
from costmodel.split import split_table
from tests.strategies import candidates, problem, problems

GIB = 2.0**30
MODEL_8B = replace(load_model("llama-3.1-8b"), kv_heads=32, vocab=131072)


def held(case: Problem, layouts: Layouts) -> np.ndarray:
    """Reserved memory of the first stage [B], which is what nanotron logs."""
    stages = split_table(case.model, case.workload.seq_len, layouts.pp.tolist(), rule="filled")
    return reserved(case, layouts, memory(case, layouts, stages.first()))


def sweep(framework: str, **degrees: int) -> tuple[Problem, Layouts]:
    """nanotron's published sweep: 8B, sequences of 4,096, 256 a step."""
    gpus = degrees["tp"] * degrees["pp"] * degrees["dp"]
    case = problem(MODEL_8B, "dgx-h100", gpus, framework, seq_len=4096, global_batch=256)
    return case, Layouts.of(zero_stage=1, sequence_parallel=int(degrees["tp"] > 1), **degrees)


@pytest.mark.parametrize(
    ("framework", "degrees", "measured"),
    [
        ("nanotron", {"tp": 16, "pp": 1, "dp": 8, "micro_batch": 8}, 34.61),
        ("nanotron", {"tp": 8, "pp": 1, "dp": 16, "micro_batch": 4}, 30.91),
        ("nanotron-slow", {"tp": 16, "pp": 1, "dp": 2, "micro_batch": 16}, 36.46),
        ("nanotron-slow", {"tp": 8, "pp": 2, "dp": 8, "micro_batch": 4}, 20.09),
        ("nanotron-slow", {"tp": 8, "pp": 8, "dp": 2, "micro_batch": 8}, 45.70),
        ("nanotron-slow", {"tp": 1, "pp": 8, "dp": 2, "micro_batch": 1}, 54.37),
    ],
)
def test_nanotron_reserves_what_was_measured(framework, degrees, measured):
    """Reserved GiB of the first stage, sweep of The Ultra-Scale Playbook. A slow host launches nothing ahead of the GPU
    at PP 1 and 2, which halves what TP 16 reserves; in the warm-up of longer pipelines it does."""
    assert held(*sweep(framework, **degrees))[0] / GIB == pytest.approx(measured, rel=0.08)


def test_few_launches_leave_few_buffers():
    """A single pass over half of the layers cannot fill the launch queue."""
    case, layouts = sweep("nanotron", tp=16, pp=2, dp=8, micro_batch=32)
    short = replace(case, workload=replace(case.workload, global_batch=256))
    long = replace(case, workload=replace(case.workload, global_batch=1024))
    assert waiting(short, layouts)[0] == pytest.approx(1.8 * 16 * 2 * 32 * 4096 * 4096)
    assert waiting(long, layouts)[0] == 48 * 2 * 32 * 4096 * 4096


def test_a_slow_host_runs_ahead_in_the_warm_up_alone():
    """At TP 16 its 48 ms a layer outlast the GPU's; four stages launch three micro-batches before the first returns."""
    short, long = sweep("nanotron-slow", tp=16, pp=2, dp=8), sweep("nanotron-slow", tp=16, pp=4, dp=4)
    assert waiting(*short)[0] == 0
    assert waiting(*long)[0] == pytest.approx(1.8 * 8 * 3 * 2 * 4096 * 4096)


@given(st.data())
def test_what_waits_fills_free_memory_alone_and_no_layout_needs_it(data: st.DataObject):
    case = data.draw(problems())
    layouts = data.draw(candidates(case))
    layouts = layouts.take(layouts.pp <= case.model.layers)
    stages = split_table(case.model, case.workload.seq_len, [1, *layouts.pp.tolist()])
    more = replace(case.profile.memory, waiting_tensors=case.profile.memory.waiting_tensors + 10.0)
    greedy = replace(case, profile=replace(case.profile, memory=more))
    need = memory(greedy, layouts, stages)
    assert (need.total == memory(case, layouts, stages).total).all()
    found = reserved(greedy, layouts, need)
    assert (found >= need.reserved).all()
    assert (found <= need.reserved + waiting(greedy, layouts)).all()
    full = need.total > case.cluster.gpu.usable_memory
    assert (found[full] == need.reserved[full]).all()
    alone = (layouts.tp == 1) | (layouts.sequence_parallel == 0)
    assert (waiting(greedy, layouts)[alone] == 0).all()
    assert (waiting(greedy, layouts) >= waiting(case, layouts)).all()
    for row in range(len(layouts)):
        assert waiting(greedy, layouts.take([row]))[0] == waiting(greedy, layouts)[row]
