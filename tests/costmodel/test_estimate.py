"""The estimate as a whole: exact rows, sane directions, and two published runs."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.model import load_model
from costmodel.problem import Problem, Workload
from costmodel.profile import load_profile
from hardware.catalog import load_cluster


def problem(model: str, cluster: str, profile: str, gpus: int, **options) -> Problem:
    machine, trained = load_cluster(cluster), load_model(model)
    framework = load_profile(profile).on(machine.gpu)
    defaults = {
        "seq_len": trained.seq_len,
        "global_batch": 512,
        "grad_dtype": framework.grad_dtype,
        "moments_dtype": framework.moments_dtype,
        "routed_nodes": trained.routed_nodes,
    }
    workload = Workload(gpus=gpus, **(defaults | options))
    return Problem(model=trained, cluster=machine, profile=framework, workload=workload)


def numbers(tree: object, row: int) -> list[float]:
    """Every figure of one row of an estimate."""
    found = []
    for part in fields(tree):
        value = getattr(tree, part.name)
        found += [float(value[row])] if isinstance(value, np.ndarray) else numbers(value, row)
    return found


DENSE = problem("llama-3.1-70b", "dgx-h100", "megatron", 64)
MOE = problem("deepseek-v3", "gb200-nvl72", "deepseek", 256, precision="fp8")
SCHEDULE = {name: code for code, name in enumerate(SCHEDULES)}


@st.composite
def layouts(draw: st.DrawFn, case: Problem) -> Layouts:
    """Layouts of any kind, most of which no framework would launch: estimates must not care."""
    power = st.sampled_from([1, 2, 4, 8])
    rows = []
    for _ in range(draw(st.integers(2, 12))):
        tp, pp, cp = draw(power), draw(power), draw(st.sampled_from([1, 2]))
        dp = max(1, case.workload.gpus // (tp * pp * cp))
        ep = draw(st.sampled_from([1, 2, 4, 8])) if case.model.is_moe else 1
        pp = pp if tp * pp * cp * dp == case.workload.gpus else 1
        rows.append(
            Layouts.of(
                tp=tp, pp=pp, cp=cp, dp=dp, ep=ep, vpp=draw(st.sampled_from([1, 2])), micro_batch=draw(power),
                dp_shard=draw(st.sampled_from([1, dp])) * cp, zero_stage=draw(st.integers(0, 3)),
                recompute=draw(st.integers(0, len(case.profile.recompute) - 1)),
                recompute_layers=draw(st.sampled_from([0, 0, 1, 3, 8, 100])),
                sequence_parallel=draw(st.sampled_from([0, 1])) if tp > 1 else 0,
                schedule=draw(st.integers(0, len(SCHEDULES) - 1)), rank_order=draw(st.sampled_from([0, 1])),
            )
        )  # fmt: skip
    return Layouts.from_columns({a: np.concatenate([getattr(r, a) for r in rows]) for a in rows[0].row(0)})


@pytest.mark.parametrize("case", [DENSE, MOE], ids=["dense", "moe"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_row_of_a_table_is_the_one_row_table_bit_for_bit(case, data):
    table = data.draw(layouts(case))
    whole = estimate(case, table)
    for row in range(len(table)):
        assert numbers(estimate(case, table.take([row])), 0) == numbers(whole, row)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_both_orders_cost_the_same_where_they_are_the_same_layout(data):
    table = data.draw(layouts(DENSE))
    one, other = (replace(table, rank_order=np.full_like(table.rank_order, code)) for code in (0, 1))
    same = np.flatnonzero((table.pp == 1) | (table.dp == 1))
    for row in same:
        assert numbers(estimate(DENSE, one), row) == numbers(estimate(DENSE, other), row)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), level=st.integers(0, 2))
def test_a_faster_link_never_costs_time(data, level):
    table = data.draw(layouts(DENSE))
    levels = list(DENSE.cluster.levels)
    levels[level] = replace(levels[level], bandwidth=2 * levels[level].bandwidth)
    better = replace(DENSE, cluster=replace(DENSE.cluster, levels=tuple(levels)))
    assert (estimate(better, table).step_time <= estimate(DENSE, table).step_time).all()


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_terms_are_finite_not_negative_and_add_up(data):
    found = estimate(MOE, data.draw(layouts(MOE)))
    for tree, total in ((found.time, found.step_time), (found.memory, found.memory_total)):
        terms = [getattr(tree, part.name) for part in fields(tree)]
        assert all((term >= 0).all() and np.isfinite(term).all() for term in terms)
        assert np.allclose(sum(terms), total)


def only(case: Problem, **axes: int) -> Estimate:
    return estimate(case, Layouts.of(**axes))


def test_llama3_405b_as_published():
    """8,192 H100, TP8 PP16 DP64, 8k, 16M tokens: 430 TFLOP/s, full attention count (arXiv 2407.21783, table 4).

    The report does not say how many virtual stages; the model spans that speed over 1 to 8.
    """
    case = problem(
        "llama-3.1-405b", "dgx-h100", "llama3-meta", 8192, seq_len=8192, global_batch=2048, flops_convention="full"
    )
    found = [
        only(
            case, tp=8, pp=16, dp=64, vpp=vpp, zero_stage=2, sequence_parallel=1, micro_batch=1,
            schedule=SCHEDULE["interleaved" if vpp > 1 else "1f1b"],
        )
        for vpp in (1, 2, 4, 8)
    ]  # fmt: skip
    speeds = [float(e.mfu[0]) * case.peak / 1e12 for e in found]
    assert min(speeds) < 430 < max(speeds)
    assert found[0].memory_headroom[0] > 0


def test_deepseek_v3_as_published():
    """2,048 H800, PP16 EP64, DualPipe, fp8: 1,542 tokens/s per GPU (arXiv 2505.09343, table 4)."""
    case = problem("deepseek-v3", "hgx-h800", "deepseek", 2048, precision="fp8", global_batch=15360)
    recompute = case.profile.recompute_code(case.profile.default_recompute)
    found = only(case, tp=1, pp=16, dp=128, ep=64, zero_stage=1, recompute=recompute, schedule=SCHEDULE["dualpipe"])
    assert found.tokens_per_second_per_gpu[0] == pytest.approx(1542, rel=0.15)
    assert found.memory_headroom[0] > 0


def test_dense_bf16_on_h100_lies_near_published_runs():
    """Llama-3 70B on 64 H100, bf16, 8k: 500-530 TFLOP/s over layouts and sizes (Megatron-Bridge, NeMo tables)."""
    case = problem("llama-3.1-70b", "dgx-h100", "megatron", 64, global_batch=128)
    found = only(case, tp=4, pp=4, dp=4, vpp=5, zero_stage=1, sequence_parallel=1, schedule=SCHEDULE["interleaved"])
    assert found.mfu[0] * 989 == pytest.approx(515, rel=0.1)


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_without_a_pipeline_nothing_waits(micro_batch):
    """Not even by what rounding leaves between two sums of the same stage."""
    moe = problem("qwen3-30b-a3b", "gb200-nvl72", "megatron", 16, precision="mxfp8")
    table = Layouts.of(dp=16, ep=8, zero_stage=1, micro_batch=micro_batch)
    assert estimate(moe, table).time.bubble[0] == 0.0
