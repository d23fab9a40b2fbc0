"""Memory against published measurements, published layouts, and the laws it must keep."""

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.calibration.layout import LIGER
from costmodel.flight import in_flight
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.memory import ALLOCATED, Memory, memory
from costmodel.model import Model, load_model
from costmodel.params import mtp, total
from costmodel.problem import Problem
from costmodel.recompute import RecomputeSet
from costmodel.split import split_table
from tests.strategies import candidates, problem, problems

GIB = 2.0**30
STATES = ("weights", "gradients", "optimizer")


def price(case: Problem, layouts: Layouts, also: tuple[int, ...] = ()) -> Memory:
    stages = split_table(case.model, case.workload.seq_len, [*layouts.pp.tolist(), *also])
    return memory(case, layouts, stages)


def one(case: Problem, **degrees: int) -> Memory:
    return price(case, Layouts.of(**{"zero_stage": 1} | degrees))


def cut(name: str, layers: int, **changes: Any) -> Model:
    return replace(load_model(name), layers=layers, **changes)


DEEPSEEK_V2 = Model(
    name="deepseek-v2 cut to 4 layers",
    source="config.json of deepseek-ai/DeepSeek-V2",
    layers=4,
    hidden=5120,
    heads=128,
    kv_heads=128,
    head_dim=192,
    ffn_hidden=12288,
    vocab=102400,
    seq_len=4096,
    attention="mla",
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    experts=160,
    experts_per_token=6,
    expert_ffn_hidden=1536,
    shared_experts=2,
    first_dense_layers=1,
)
QWEN3_30B = Model(
    name="qwen3-30b-a3b",
    source="config.json of Qwen/Qwen3-30B-A3B",
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    ffn_hidden=0,
    vocab=151936,
    seq_len=4096,
    experts=128,
    experts_per_token=8,
    expert_ffn_hidden=768,
    qk_norm=True,
)
LLAMA_70B = cut("llama-3.1-70b", 12)
LLAMA_405B = cut("llama-3.1-405b", 4, kv_heads=16)


@pytest.mark.parametrize(
    ("model", "seq_len", "degrees", "measured"),
    [
        (LLAMA_405B, 4096, {"tp": 1, "pp": 2, "dp": 4}, 87.08),
        (LLAMA_405B, 131072, {"tp": 2, "cp": 4, "dp": 1}, 118.13),
        (LLAMA_405B, 4096, {"tp": 8, "dp": 1}, 38.57),
        (LLAMA_70B, 131072, {"tp": 1, "cp": 8, "dp": 1}, 147.99),
        (LLAMA_70B, 4096, {"tp": 2, "dp": 4}, 60.68),
        (DEEPSEEK_V2, 4096, {"tp": 1, "ep": 8, "dp": 8}, 45.63),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else None,
)
def test_megatron_core_allocates_what_was_measured(model, seq_len, degrees, measured):
    """Peak allocated [GiB] of Megatron-Core with TE 2.11 on eight B200, bf16, distributed optimizer, no recompute:
    SimuMax, docs/b200/b200_release_v1.2_summary.json@4dcaae51."""
    case = problem(model, "dgx-b200", 8, seq_len=seq_len, global_batch=32)
    found = one(case, **degrees, sequence_parallel=int(degrees["tp"] > 1)).allocated[0] / GIB
    assert found == pytest.approx(measured, rel=0.01)


def test_qwen3_allocates_what_was_measured():
    """57.138 GiB on 16 H100, EP16 by NCCL's all-to-all, gradients in bf16: Megatron-Bridge@067f987d, the 48 layers
    whole. HybridEP's buffers take it to 62.166."""
    case = problem(QWEN3_30B, "dgx-h100", 16, global_batch=1024, grad_dtype="bf16")
    found = one(case, ep=16, dp=16).allocated[0] / GIB
    assert found == pytest.approx(57.138, rel=0.035)


@pytest.mark.parametrize(("degrees", "measured"), [({"tp": 4, "pp": 4, "dp": 2}, 51.78), ({"tp": 8, "pp": 4}, 46.75)])
def test_fp8_on_hopper_keeps_two_bytes_a_weight(degrees, measured):
    """Llama 3 70B in fp8 with bf16 gradients, MLP recomputed at TP 4: Megatron-Bridge's table of an SFT on 32 H100."""
    case = problem("llama-3.1-70b", gpus=32, precision="fp8", grad_dtype="bf16", seq_len=4096, global_batch=32)
    sets = (RecomputeSet(name="none"), RecomputeSet(name="mlp", modules=("mlp",)))
    case = replace(case, profile=replace(case.profile, recompute=(*sets, RecomputeSet(name="full", full=True))))
    layout = {
        "vpp": 5,
        "schedule": SCHEDULES.index("interleaved"),
        "sequence_parallel": 1,
        "recompute": degrees["tp"] < 8,
    }
    assert one(case, **degrees, **layout).allocated[0] / GIB == pytest.approx(measured, rel=0.06)


def test_deepseek_v3_on_gb200_holds_what_nvidia_accounts_for():
    """A stage of 15 MoE layers, PP4 VPP4 EP64 on 256 GB200: 36.4 GB weights and gradients, 32.1 optimizer, 131.0
    activations (arXiv 2603.07685, before recomputation)."""
    case = problem("deepseek-v3", "gb200-nvl72", 256, global_batch=2048)
    table = split_table(case.model, case.workload.seq_len, [4])
    held = {"count": 4.0, "moe": 15.0}
    columns = {name: np.full_like(column, held.get(name, 0.0)) for name, column in table.columns.items()}
    layout = Layouts.of(pp=4, vpp=4, dp=64, ep=64, zero_stage=1, schedule=SCHEDULES.index("interleaved"))
    need = memory(case, layout, replace(table, columns=columns))
    assert need.weights[0] + need.gradients[0] == pytest.approx(36.4e9, rel=0.03)
    assert need.optimizer[0] == pytest.approx(32.1e9, rel=0.03)
    assert need.activations[0] == pytest.approx(131.0e9, rel=0.03)


def test_llama3_405b_fits_because_activations_are_released_early():
    """TP8 PP16 on 8,192 H100 without recomputation, arXiv 2407.21783, table 4 and section 3.3.2."""
    degrees = {"tp": 8, "pp": 16, "dp": 64, "vpp": 8, "sequence_parallel": 1, "zero_stage": 1, "schedule": 1}
    usable = problem("llama-3.1-405b", gpus=8192).cluster.gpu.usable_memory
    need = {
        name: one(problem("llama-3.1-405b", gpus=8192, framework=name, global_batch=2048), **degrees)
        for name in ("llama3-meta", "megatron")
    }
    assert need["llama3-meta"].total[0] < usable < need["megatron"].total[0]
    kept = need["llama3-meta"].activations[0] / need["megatron"].activations[0]
    assert kept == pytest.approx(0.67, abs=0.02)


def test_deepseek_v3_fits_as_it_was_trained():
    """PP16 EP64 ZeRO-1 DualPipe in fp8 on 2,048 H800, norms, SwiGLU and MLA up-projection recomputed:
    arXiv 2412.19437, sections 3.2 and 3.3."""
    case = problem("deepseek-v3", "hgx-h800", 2048, "deepseek", precision="fp8", global_batch=15360)
    degrees = {"pp": 16, "dp": 128, "ep": 64, "schedule": SCHEDULES.index("dualpipe")}
    trained, kept = (one(case, **degrees, recompute=code) for code in (case.profile.recompute_code("selective"), 0))
    assert trained.total[0] < case.cluster.gpu.usable_memory < kept.total[0]


@pytest.mark.parametrize("framework", ["megatron", "deepseek", "llama3-meta"])
def test_recompute_sets_go_from_least_to_most(framework):
    """What the sets keep falls along the profile's list, and what they hold at a time is less than they save."""
    case = problem("deepseek-v3", "hgx-h800", 256, framework, global_batch=256)
    declared = [code for code, choice in enumerate(case.profile.recompute) if choice.declared]
    needs = [one(case, pp=8, dp=32, ep=32, recompute=code) for code in declared]
    kept = [float(need.activations[0]) for need in needs]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < 0.2 * kept[0]
    for need, left in zip(needs[1:], kept[1:], strict=True):
        assert 0.0 <= need.recompute_buffer[0] <= kept[0] - left


@given(st.data())
def test_states_never_rise_with_the_zero_stage(data: st.DataObject):
    case = data.draw(problems())
    layouts = splittable(case, data.draw(candidates(case)))
    layouts = replace(layouts, pp=np.ones_like(layouts.pp))  # one stage, for the one reported may change with ZeRO
    states = []
    for stage in range(4):
        need = price(case, replace(layouts, zero_stage=np.full_like(layouts.tp, stage)))
        states.append(sum(getattr(need, name) for name in STATES))
    for above, below in pairwise(states):
        assert (below <= above).all()


@given(st.data())
def test_a_row_does_not_depend_on_the_rows_beside_it(data: st.DataObject):
    """Bit for bit, whatever other splits the stage table holds."""
    case = data.draw(problems())
    layouts = splittable(case, data.draw(candidates(case)))
    together = price(case, layouts, also=tuple(range(1, case.model.layers + 1)))
    for row in range(len(layouts)):
        alone = price(case, layouts.take([row]))
        for term in fields(Memory):
            assert getattr(alone, term.name)[0] == getattr(together, term.name)[row], term.name


@given(st.data())
def test_the_stage_that_needs_most_is_reported(data: st.DataObject):
    case = data.draw(problems())
    layouts = splittable(case, data.draw(candidates(case)))
    stages = split_table(case.model, case.workload.seq_len, layouts.pp.tolist())
    alone = [
        replace(stages, columns={name: column[:, [kind]] for name, column in stages.columns.items()})
        for kind in range(stages.kinds)
    ]
    needs = [memory(case, layouts, kind).total for kind in alone]
    assert (np.max(needs, axis=0) == memory(case, layouts, stages).total).all()


def splittable(case: Problem, layouts: Layouts) -> Layouts:
    kept = layouts.take(layouts.pp <= case.model.layers)
    assume(len(kept))
    return kept


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3"])
def test_fully_sharded_states_add_up_to_the_model(name):
    """ZeRO-3 on 64 GPUs, pp 1, TP 1: 18 bytes of every parameter once over the cluster, the vocabulary padded."""
    case = problem(name, "dgx-h100", 64)
    need = one(case, dp=64, ep=min(case.model.experts, 8) or 1, zero_stage=3)
    everywhere = 64 * sum(float(getattr(need, name)[0]) for name in STATES)
    assert everywhere == pytest.approx(18 * (total(case.model) + mtp(case.model)), rel=1e-3)
    assert need.gathered[0] > 0


def test_smaller_shard_groups_hold_more_and_experts_shard_by_their_own_group():
    case = problem("mixtral-8x7b", "dgx-h100", 64)
    wide = one(case, dp=64, ep=8)
    narrow = one(case, dp=64, ep=8, dp_shard=8)
    experts = 12 * 32 * 8 * 3 * 4096 * 14336 / 8
    dense = 64 * wide.optimizer[0] - 8 * experts
    assert narrow.optimizer[0] == pytest.approx(experts + dense / 8)
    assert narrow.weights[0] == wide.weights[0]


def test_terms_of_the_stage_that_needs_most_are_reported():
    """A head of 128k words outweighs a stage of one layer, activations in flight outweigh it in a long pipeline."""
    short = one(problem(cut("llama-3.1-8b", 2), gpus=64, global_batch=512), pp=2, dp=32)
    long = one(problem("llama-3.1-8b", gpus=64, global_batch=512), pp=8, dp=8)
    assert short.logits[0] > 0
    assert long.logits[0] == 0


@pytest.mark.parametrize(
    ("schedule", "vpp", "rank", "held"),
    [
        ("1f1b", 1, 0, 8.0),
        ("1f1b", 1, 7, 1.0),
        ("zero-bubble", 1, 3, 5.0),
        ("interleaved", 4, 0, 8 + 7 / 4),
        ("interleaved", 4, 7, (3 * 8 + 1) / 4),
        ("dualpipe", 1, 0, 8.0),
        ("dualpipe", 1, 7, 1.0),
    ],
)
def test_micro_batches_in_flight(schedule, vpp, rank, held):
    layout = Layouts.of(pp=8, vpp=vpp, schedule=SCHEDULES.index(schedule))
    assert in_flight(layout, np.array([float(rank)]), np.array([64.0]))[0] == held
    assert in_flight(layout, np.array([float(rank)]), np.array([2.0]))[0] <= 2.0


def test_sequence_parallelism_divides_norms_and_key_heads_are_copied():
    case = problem("llama-3.1-70b", gpus=64)
    tokens, layers, hidden = 8192, 80, 8192
    on, off = (one(case, tp=8, dp=8, sequence_parallel=flag) for flag in (1, 0))
    norms = tokens * layers * 8 * hidden
    assert off.activations[0] - on.activations[0] == pytest.approx(norms * 7 / 8)
    wide = one(case, tp=16, dp=4, sequence_parallel=1)
    keys = tokens * layers * 4 * 128
    assert wide.activations[0] == pytest.approx(on.activations[0] / 2 + keys / 2)
    assert wide.weights[0] > one(case, tp=8, dp=8).weights[0] / 2


def test_context_parallelism_divides_tokens_and_expert_load_multiplies_the_hottest_rank():
    case = problem("mixtral-8x7b", gpus=64, seq_len=32768, global_batch=64)
    ring = replace(case, profile=replace(case.profile, memory=replace(case.profile.memory, cp_saved=0.0)))
    assert one(ring, cp=8, dp=8).activations[0] == pytest.approx(one(ring, dp=64).activations[0] / 8)
    hot = replace(case, workload=replace(case.workload, expert_load=1.5))
    routed = 32768 * 32 * 2 * (2 * 4096 + 6 * 14336)
    assert one(hot, dp=64).activations[0] - one(case, dp=64).activations[0] == pytest.approx(0.5 * routed)


def test_gradient_and_moment_types_are_inputs():
    """6 + 12/d with fp32, 4 + 8/d with bf16 gradients and moments (Megatron-Bridge, Moonlight), 4 + 16/d in fp16."""
    bytes_of = {}
    for job in (("bf16", "fp32", "fp32"), ("bf16", "bf16", "bf16"), ("fp16", "fp16", "fp32")):
        names = dict(zip(("precision", "grad_dtype", "moments_dtype"), job, strict=True))
        need = one(problem(LLAMA_70B, gpus=8, **names), dp=8)
        bytes_of[job] = sum(float(getattr(need, name)[0]) for name in STATES)
    full, lean, half = bytes_of.values()
    assert lean / full == pytest.approx((4 + 8 / 8) / (6 + 12 / 8))
    assert half / full == pytest.approx((4 + 16 / 8) / (6 + 12 / 8))


def test_sixteen_bit_gradients_lie_beside_fp32_ones_and_fp16_training_has_those_alone():
    """Megatron-DeepSpeed: BF16Optimizer accumulates in fp32 beside bf16 gradients, FP16Optimizer in fp16."""
    over_weights = []
    for job, degrees in (({}, {"dp": 8}), ({}, {"tp": 8}), ({"precision": "fp16", "grad_dtype": "fp16"}, {"dp": 8})):
        need = one(problem(LLAMA_70B, gpus=8, framework="megatron-2021", **job), **degrees)
        over_weights.append(need.gradients[0] / need.weights[0])
    assert over_weights == [3.0, 2.0, 1.0]


def test_torchtitan_keeps_every_second_matmul():
    """Its per-op checkpointing keeps the layer's input, q, v, attention's output, w1 and w2: 63.6 kB a token of 8B."""
    case = problem("llama-3.1-8b", framework="torchtitan", seq_len=8192, global_batch=8)
    kept = one(case, dp=8, zero_stage=3, recompute=case.profile.recompute_code("selective")).activations[0]
    heads, keys = 32 * 128, 8 * 128
    assert kept / (8192 * 32) == 2 * (4096 + heads + keys + heads + 14336 + 4096) + 4 * 32


@pytest.mark.parametrize(
    ("seq_len", "stage", "rates", "measured"),
    [(8192, 2, {}, 99.0), (32768, 3, LIGER, 25.8), (131072, 3, LIGER, 66.5), (262144, 3, LIGER, 124.5)],
)
def test_deepspeed_reserves_what_was_measured(seq_len, stage, rates, measured):
    """Llama 3.1 8B with Hugging Face's layers on eight H200, ZeRO-2 without recomputation, ZeRO-3 with the optimizer in
    host memory and Liger's kernels: stas00/ml-engineering, sequence-length tables."""
    offload = float(stage == 3)
    case = problem(
        "llama-3.1-8b", "dgx-h200", 8, "deepspeed", seq_len=seq_len, global_batch=8, optimizer_offload=offload
    )
    case = replace(case, profile=replace(case.profile, memory=replace(case.profile.memory, **rates)))
    full = case.profile.recompute_code("full")
    found = one(case, dp=8, zero_stage=stage, recompute=full * (stage == 3)).reserved[0]
    assert found / GIB == pytest.approx(measured, rel=0.05)


def test_total_is_every_term_and_every_term_is_described():
    need = one(problem(), dp=8)
    assert need.total[0] == pytest.approx(sum(float(getattr(need, term.name)[0]) for term in fields(Memory)))
    assert set(ALLOCATED) < {term.name for term in fields(Memory)}
    assert all(term.metadata["unit"] == "B" and term.metadata["meaning"] for term in fields(Memory))
