"""Times of one layer: the rates of the measured tables, the shapes' effects, FLOPs of published counts."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import flops, params
from costmodel.compute import head_work, layer_work
from costmodel.gemms import Gemm, Shape, gemm_efficiency, gemm_seconds
from costmodel.layouts import Layouts
from costmodel.model import load_model
from costmodel.problem import Problem, Workload
from costmodel.profile import load_profile
from costmodel.traffic import expert_dispatch
from hardware.catalog import load_cluster


def case(model: str = "llama-3.1-70b", cluster: str = "dgx-h100", **options) -> Problem:
    machine, trained = load_cluster(cluster), load_model(model)
    workload = Workload(**({"gpus": 64, "seq_len": 4096, "global_batch": 256} | options))
    return Problem(model=trained, cluster=machine, profile=load_profile("megatron"), workload=workload)


def one(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float64)


def test_gemm_efficiency_returns_measured_points_and_falls_with_few_rows():
    table = load_cluster("dgx-h100").gpu.gemm["bf16"]
    for i, m in enumerate(table.m):
        assert gemm_efficiency(table, one(m), one(table.n[1]))[0] == pytest.approx(table.eta[i][1])
    assert gemm_efficiency(table, one(table.m[0] / 4), one(table.n[0]))[0] == pytest.approx(table.eta[0][0] / 4)


def test_a_large_gemm_runs_at_the_sustained_share_of_the_measured_rate():
    problem = case()
    seconds = gemm_seconds(problem, Gemm(one(8192), one(8192), one(8192)))[0]
    rate = 2 * 8192**3 / seconds / 989e12
    assert 0.78 * problem.profile.time.gemm < rate < 0.81 * problem.profile.time.gemm


def test_a_thin_gemm_is_bound_by_memory_bandwidth():
    problem = case()
    seconds = gemm_seconds(problem, Gemm(one(1), one(8192), one(8192)))[0]
    assert seconds >= 2 * 8192**2 / problem.cluster.gpu.memory_bandwidth


def test_tensor_parallel_makes_gemms_smaller_and_less_efficient():
    """Issue of every sweep: TP8 does not divide a layer's time by eight."""
    problem = case("llama-3.1-8b")
    whole, split = (layer_work(problem, Layouts.of(tp=tp, sequence_parallel=1), moe=False) for tp in (1, 8))
    assert whole.forward_total[0] / 8 < split.forward_total[0] < whole.forward_total[0]


def test_few_rows_an_expert_are_slow():
    """Grouped GEMMs with few rows reach a part of the rate: the same FLOPs over 8 ranks' tokens run faster."""
    problem = case("mixtral-8x7b", seq_len=512)
    alone, gathered = (layer_work(problem, Layouts.of(ep=ep), moe=True).forward[0] for ep in (1, 8))
    assert gathered < alone


def test_recompute_costs_what_it_repeats():
    problem = case()
    none, selective, full = (
        layer_work(problem, Layouts.of(recompute=problem.profile.recompute_code(name)), moe=False)
        for name in ("none", "norms", "full")
    )
    assert none.recompute[0] == 0
    assert 0 < selective.recompute[0] < 0.1 * none.forward_total[0]
    assert full.recompute[0] == pytest.approx(none.forward_total[0])


def test_fp8_is_faster_but_not_twice():
    """Published fp8 runs give 1.35 to 1.6 times the bf16 rate on H100, not 2."""
    bf16, fp8 = (
        layer_work(case(precision=precision, seq_len=8192), Layouts.of(tp=4, sequence_parallel=1), moe=False)
        for precision in ("bf16", "fp8")
    )
    gain = (bf16.forward_total + bf16.backward_total)[0] / (fp8.forward_total + fp8.backward_total)[0]
    assert 1.3 < gain < 1.7


def test_head_counts_in_units_of_layers():
    """Llama-3.1-8B: the head is two layers' worth of FLOPs, why the last stage must be lighter."""
    model = load_model("llama-3.1-8b")
    assert flops.head(model) / flops.layer(model, 8192, moe=False) == pytest.approx(2.0, abs=0.3)
    assert head_work(case("llama-3.1-8b"), Layouts.of()).forward[0] > 0


def test_flops_conventions_differ_as_the_references_say():
    """8B at 8k: attention adds 27 % over 6N counted in full, 13 % causal."""
    model = load_model("llama-3.1-8b")
    active = float(params.active(model))
    six = flops.step_flops_per_token(model, 8192, "6n", active)
    full = flops.step_flops_per_token(model, 8192, "full", active)
    causal = flops.step_flops_per_token(model, 8192, "causal", active)
    assert six == 6 * active
    assert (full - causal) / six == pytest.approx(0.134, abs=0.01)


def test_deepseek_v3_flops_per_token():
    """385 TFLOP/s causal at 1,542 tokens/s per GPU: 2.5e11 FLOPs a token (arXiv 2505.09343, table 4), MTP apart."""
    model = replace(load_model("deepseek-v3"), mtp_layers=0)
    found = flops.step_flops_per_token(model, 4096, "causal", float(params.active(model)))
    assert found == pytest.approx(385e12 / 1542, rel=0.03)


def test_attention_windows_save_time_as_they_save_flops():
    """gpt-oss-120b at 8k: every other layer attends to 128 tokens."""
    problem = case("gpt-oss-120b", seq_len=8192)
    wide = replace(problem, model=replace(problem.model, windows=()))
    times = [layer_work(p, Layouts.of(), moe=True).attention_forward[0] for p in (problem, wide)]
    assert times[0] / times[1] == pytest.approx(flops.attended(problem.model, 8192) / 8192)


def test_mitigations_of_expert_traffic_are_inputs():
    """The chapter's three: balanced routing, node-limited routing, fp8 dispatch."""
    problem = case("deepseek-v3", "hgx-h800", gpus=512)
    shape = Shape.of(problem, Layouts.of(ep=64, dp=512))

    def seconds(bytes_per_element: float = 2.0, **options) -> float:
        changed = replace(problem, workload=replace(problem.workload, **options))
        return float(expert_dispatch(changed, shape, bytes_per_element)[0])

    assert seconds(1.0) < seconds()
    assert seconds(routed_nodes=4) < seconds()
    assert seconds(expert_load=1.5) == pytest.approx(1.5 * seconds(), rel=0.05)


def test_a_gpu_without_an_fp8_table_takes_the_shape_of_bf16():
    """A card with a 4-bit peak alone is an ordinary input."""
    problem = case(cluster="dgx-b200", precision="nvfp4")
    gpu = replace(problem.cluster.gpu, gemm={"bf16": problem.cluster.gpu.gemm["bf16"]})
    bare = replace(problem, cluster=replace(problem.cluster, gpu=gpu))
    assert layer_work(bare, Layouts.of(), moe=False).forward_total[0] > 0


def unfused(**model) -> Problem:
    """Llama-3.1-8B's shape with other heads under Megatron of 2021, at no time between kernels."""
    found = case("llama-3.1-8b", "dgx-a100", seq_len=2048)
    profile = load_profile("megatron-2021")
    profile = replace(profile, time=replace(profile.time, memory_bandwidth=1.0))
    return replace(found, model=replace(found.model, **model), profile=profile)


def test_unfused_attention_moves_every_score_eleven_bytes():
    """The scores are written, scaled, dropped out and read: all of the square, twice as much backward."""
    job = unfused()
    fused = replace(job.profile, memory=replace(job.profile.memory, scores_saved=0.0))
    slow, fast = (layer_work(each, Layouts.of(), moe=False) for each in (job, replace(job, profile=fused)))
    gpu = job.cluster.gpu
    moved = 11 * 32 * 2048**2 / (gpu.memory_bandwidth * gpu.memory_efficiency)
    assert slow.attention_forward[0] - fast.attention_forward[0] == pytest.approx(moved)
    assert slow.attention_backward[0] - fast.attention_backward[0] == pytest.approx(2 * moved)


def test_heads_that_miss_the_tensor_cores_alignment_are_slow_where_attention_is_not_fused():
    """BLOOM's tuning runs: 153 s with heads of 108 elements, 110 s with heads of 144."""
    odd, even = unfused(head_dim=108), unfused(head_dim=112)
    cores = [layer_work(job, Layouts.of(), moe=False).attention_forward[0] for job in (odd, even)]
    assert cores[0] > 2 * cores[1]
    padded = [replace(job, profile=load_profile("megatron")) for job in (odd, even)]
    cores = [layer_work(job, Layouts.of(), moe=False).attention_forward[0] for job in padded]
    assert cores[0] < cores[1]
