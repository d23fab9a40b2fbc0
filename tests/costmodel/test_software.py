"""Software: its age, what it overlaps, how it scales fp8; each against published pairs that differ in this alone."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.calibration.predict import predict
from costmodel.calibration.runs import read_runs
from costmodel.calibration.software import software_of
from costmodel.compute import layer_work
from costmodel.estimate import estimate
from costmodel.gemms import Gemm, Shape, gemm_seconds
from costmodel.layouts import Layouts
from costmodel.model import load_model
from costmodel.problem import Problem, Workload
from costmodel.profile import load_profile
from costmodel.traffic import expert_dispatch
from hardware.catalog import load_cluster
from hardware.errors import InputError


def case(model: str, cluster: str, profile: str = "megatron", **options) -> Problem:
    machine = load_cluster(cluster)
    workload = Workload(**({"seq_len": 4096} | options))
    own = load_profile(profile).on(machine.gpu)
    return Problem(model=load_model(model), cluster=machine, profile=own, workload=workload)


def seconds(problem: Problem, **degrees) -> float:
    return float(estimate(problem, Layouts.of(**degrees)).step_time[0])


def qwen(**options) -> Problem:
    return case("qwen3-30b-a3b", "gb200-nvl72", gpus=8, global_batch=512, precision="mxfp8", **options)


EIGHT = {"dp": 8, "dp_shard": 8, "ep": 8, "micro_batch": 4, "zero_stage": 1}


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_older_software_is_never_faster_and_age_saturates(precision):
    problem = replace(qwen(), workload=replace(qwen().workload, precision=precision))
    times = [
        seconds(replace(problem, workload=replace(problem.workload, software_age=age)), **EIGHT)
        for age in (0.0, 0.1, 0.3, 1.0, 3.0, 10.0)
    ]
    assert times == sorted(times)
    assert times[0] == seconds(problem, **EIGHT)
    assert times[-1] == pytest.approx(times[-2], rel=1e-3)


def test_experts_in_mxfp8_gain_most_from_newer_releases():
    """Megatron-Bridge performance summaries, Qwen3-30B on 8 GB200: 10.07 s with 26.04, 6.44 s with 26.06."""
    old, new = qwen(software_age=2 / 12), qwen()
    assert 1.15 < seconds(old, **EIGHT) / seconds(new, **EIGHT) < 1.7
    dense = [
        seconds(case("llama-3.1-8b", "gb200-nvl72", gpus=8, global_batch=512, software_age=age), dp=8, zero_stage=1)
        for age in (2 / 12, 0.0)
    ]
    assert dense[0] / dense[1] < 1.06


def test_pairing_micro_batches_hides_the_all_to_all_of_experts():
    """Megatron-Bridge, Qwen3-30B in bf16 on 16 H100, the overlap alone changed: 24.7 s without, 21.0 s with."""
    pair = [case("qwen3-30b-a3b", "dgx-h100", gpus=16, global_batch=1024, expert_overlap=on) for on in (False, True)]
    without, paired = (seconds(it, dp=16, dp_shard=16, ep=16, zero_stage=1) for it in pair)
    assert 0.8 < paired / without < 0.97


def test_asynchronous_tensor_parallelism_saves_as_published():
    """torchtitan, Llama-3 70B on 256 H100 with TP 8: 27.43 s, 25.11 s asynchronously."""
    pair = [
        case("llama-3.1-70b", "dgx-h100", "torchtitan", gpus=256, seq_len=8192, global_batch=512, tensor_overlap=on)
        for on in (False, True)
    ]
    degrees = {"tp": 8, "dp": 32, "dp_shard": 32, "micro_batch": 16, "zero_stage": 3, "sequence_parallel": 1}
    plain, asynchronous = (seconds(it, **degrees, recompute=it.profile.recompute_code("full")) for it in pair)
    assert 0.87 < asynchronous / plain < 0.97


def test_fp8_with_a_scale_per_row_gains_little_over_bf16():
    """torchtitan, the same runs: 27.3 s by row, 20.2 s by tensor, 27.4 s in bf16."""
    shape = Gemm(*(np.array([8192.0]),) * 3)
    problem = case("llama-3.1-8b", "dgx-h100", "torchtitan", gpus=8, global_batch=8)
    by = {
        kind: gemm_seconds(
            replace(problem, workload=replace(problem.workload, precision=kind[0], fp8_scaling=kind[1])), shape
        )[0]
        for kind in (("bf16", "tensor"), ("fp8", "tensor"), ("fp8", "row"))
    }
    assert by["fp8", "tensor"] < 0.75 * by["bf16", "tensor"]
    assert by["fp8", "row"] == pytest.approx(by["bf16", "tensor"], rel=0.2)


def test_a_dispatch_that_knows_no_nodes_costs_more_across_them_alone():
    degrees = {"micro_batch": 1}
    for ep, costs_more in ((64, True), (8, False)):
        layout = Layouts.of(ep=ep, **degrees)
        plain, knows = (
            expert_dispatch(problem, Shape.of(problem, layout), 2.0)[0]
            for problem in (
                case("deepseek-v3", "dgx-h100", gpus=512, global_batch=512, plain_dispatch=on) for on in (True, False)
            )
        )
        assert (plain > 1.2 * knows) if costs_more else plain == knows


def test_every_copy_of_a_routed_token_is_cast():
    """Casts of an expert's input go with top-k: bytes of routed tokens, not of tokens."""
    problem = case("qwen3-30b-a3b", "dgx-h100", gpus=8, global_batch=64, precision="fp8")
    few, many = (
        layer_work(replace(problem, model=replace(problem.model, experts_per_token=k)), Layouts.of(ep=8), moe=True)
        for k in (1, 8)
    )
    per_copy = (many.elementwise_forward - few.elementwise_forward)[0] / 7.0 / 4096.0
    assert per_copy > problem.profile.time.routed_cast * problem.model.hidden / problem.cluster.gpu.memory_bandwidth


def test_block_scaled_kernels_serve_gpus_that_scale_blocks_in_hardware():
    """B200's table of per-tensor fp8 is slower at narrow matrices than its block-scaled one; training is not."""
    problem = case("llama-3.1-8b", "dgx-b200", gpus=8, global_batch=8, precision="mxfp8")
    gpu = problem.cluster.gpu
    thin = Gemm(np.array([4096.0]), np.array([2048.0]), np.array([8192.0]))
    per_tensor = replace(gpu, gemm=dict(gpu.gemm, fp8_block=gpu.gemm["fp8"]))
    other = replace(problem, cluster=replace(problem.cluster, gpu=per_tensor))
    assert gemm_seconds(problem, thin)[0] < gemm_seconds(other, thin)[0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"release": "26.06"}, {"software_age": 0.0}),
        ({"release": "25.12"}, {"software_age": 0.5}),
        ({"release": "26.04.01"}, {"software_age": 1.5 / 12}),
        ({"release": "27.01"}, {"software_age": 0.0}),
        ({"release": "v0.5"}, {"software_age": 0.0, "plain_dispatch": False}),
        ({}, {"software_age": 0.0, "plain_dispatch": False, "fp8_scaling": "tensor"}),
        ({"release": "25.05.05"}, {"plain_dispatch": True}),
        ({"release": "25.05", "overlap_flags": "DeepEP"}, {"plain_dispatch": False}),
        ({"overlap_flags": "alltoall dispatcher; no permute fusion"}, {"plain_dispatch": True}),
        ({"overlap_flags": "hybridep; ep overlap on"}, {"expert_overlap": True}),
        ({"overlap_flags": "hybridep; ep overlap off"}, {"expert_overlap": False}),
        ({"overlap_flags": "moe_a2a_overlap=True; x"}, {"expert_overlap": True}),
        ({"overlap_flags": "torch.compile; asynctp TP; fp8row"}, {"tensor_overlap": True, "fp8_scaling": "row"}),
        ({"overlap_flags": "torch.compile + Float8 + async TP"}, {"tensor_overlap": True}),
        ({"overlap_flags": "torch.compile; vanilla TP; fp8tw"}, {"tensor_overlap": False, "fp8_scaling": "tensor"}),
    ],
)
def test_what_a_run_says_of_its_software(row, says):
    found = software_of(row)
    assert {name: found[name] for name in says} == {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in says.items()
    }


def test_expert_parallelism_that_is_not_stated_is_what_fits(tmp_path):
    """DeepSeek-V3 on 256 GB200 cannot hold 256 experts a rank: its run spread them over the stage's ranks."""
    header = "id,model,hidden,layers,heads,vocab,experts,topk,moe_ffn_hidden,ffn_hidden,shared_experts,first_k_dense,"
    header += "attention,gpu,gpus,framework,precision,gbs,mbs,seq,pp,ep,step_time_s"
    body = "deepseek-v3,7168,61,128,129280,256,8,2048,18432,1,3,mla,GB200,256,megatron-bridge,mxfp8,2048,1,4096,8"
    small = "qwen3-30b-a3b,2048,48,32,151936,128,8,768,,,,,GB200,256,megatron-bridge,mxfp8,2048,1,4096,8"
    table = tmp_path / "runs.csv"
    table.write_text(f"{header}\nunstated,{body},,12\nstated,{body},1,12\nsmall,{small},,12\n")
    unstated, stated, small_run = predict(read_runs(table)[0])
    assert int(unstated.run.layout.ep[0]) == 32
    assert int(stated.run.layout.ep[0]) == 1
    assert int(small_run.run.layout.ep[0]) == 1


@pytest.mark.parametrize("age", [-0.1, float("inf"), float("nan")])
def test_an_age_that_is_none_is_refused(age):
    with pytest.raises(InputError, match="software_age"):
        Workload(gpus=8, seq_len=4096, global_batch=8, software_age=age)
