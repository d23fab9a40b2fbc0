"""Cases that users of other tools reported, each with the verdict that they should have got."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from costmodel.estimate import estimate
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.model import load_model
from costmodel.problem import Problem
from hardware.errors import InputError
from search.engine import search
from search.rule import violations
from search.rules import rules
from search.space import load_space
from tests.commands import Outcome
from tests.strategies import problem

INTERLEAVED = SCHEDULES.index("interleaved")


def broken(case: Problem, *, lifted: bool = False, **degrees: int) -> list[str]:
    """The rules that a layout breaks, memory apart."""
    space = load_space(case, tp_across_domains=lifted)
    row = Layouts.of(**{"zero_stage": 1} | degrees).row(0)
    return [name for name, _ in violations(rules(case, space), row) if name != "memory_floor"]


def headroom(case: Problem, **degrees: int) -> float:
    return float(estimate(case, Layouts.of(**{"zero_stage": 1} | degrees)).memory_headroom[0])


# -- pipelines


def test_llama3_70b_runs_with_five_virtual_stages():
    """Megatron-Bridge #5391: 80 layers on PP 8 x VPP 5, two a chunk."""
    case = problem("llama-3.1-70b", gpus=64)
    degrees = {"tp": 4, "pp": 8, "dp": 2, "schedule": INTERLEAVED, "sequence_parallel": 1}
    assert broken(case, **degrees, vpp=5) == []
    assert broken(case, **degrees, vpp=16) == ["virtual_stages"]


def test_interleaving_needs_whole_rounds_of_micro_batches():
    """RL #1126: micro-batches % PP under VPP."""
    case = problem("llama-3.1-70b", gpus=64, global_batch=20)
    degrees = {"tp": 8, "pp": 4, "dp": 2, "sequence_parallel": 1}
    assert broken(case, **degrees, vpp=5, schedule=INTERLEAVED) == ["micro_batches"]
    assert broken(case, **degrees) == []


def test_fewer_micro_batches_than_stages_are_legal():
    """Without interleaving: slow, not wrong."""
    assert broken(problem("llama-3.1-70b", gpus=64, global_batch=4), tp=8, pp=8, dp=1, sequence_parallel=1) == []


# -- mixtures of experts


def test_expert_and_context_parallelism_go_together():
    """Megatron-LM #1459."""
    assert broken(problem("mixtral-8x7b", gpus=64), tp=2, cp=2, dp=16, ep=8, sequence_parallel=1) == []


def test_experts_need_no_tensor_parallelism():
    """SimAI #298."""
    assert broken(problem("mixtral-8x7b", gpus=64), tp=1, dp=64, ep=8) == []


def test_the_verdict_depends_on_how_evenly_tokens_are_routed():
    """DeepEP #99: routing is uneven early in training, and runs die that fit later."""
    need = [
        headroom(
            problem("deepseek-v3", "hgx-h800", 2048, "deepseek", precision="fp8", global_batch=15360, expert_load=load),
            pp=16,
            dp=128,
            ep=64,
            schedule=SCHEDULES.index("dualpipe"),
            recompute=1,
        )
        for load in (1.0, 3.0)
    ]
    assert need[0] > 0 > need[1]


def test_experts_that_do_not_divide_are_named_first():
    """marin #7981."""
    assert broken(problem("deepseek-v3", gpus=64), tp=1, dp=64, ep=48)[0] == "experts"


def test_torchtitan_puts_whole_tensor_and_context_groups_into_an_expert_group():
    """torchtitan #1660: ep % (cp x tp) = 0 and (dp_shard x cp x tp) % ep = 0."""
    case = problem("mixtral-8x7b", gpus=64, framework="torchtitan")
    assert broken(case, tp=2, cp=2, dp=16, ep=8, zero_stage=3, sequence_parallel=1) == []
    assert broken(case, tp=2, cp=2, dp=16, ep=2, zero_stage=3, sequence_parallel=1) == ["expert_span"]
    assert broken(case, tp=2, dp=32, dp_shard=4, ep=4, etp=2, zero_stage=3, sequence_parallel=1) == ["expert_hsdp"]
    assert "expert_span" in broken(case, tp=2, dp=32, dp_shard=2, ep=8, zero_stage=3, sequence_parallel=1)
    assert broken(case, tp=4, dp=16, ep=4, etp=2, zero_stage=3, sequence_parallel=1) == ["expert_tp"]
    assert broken(case, tp=4, dp=16, zero_stage=3, sequence_parallel=1) == ["expert_tp"]
    assert broken(case, tp=4, dp=16, etp=4, zero_stage=3, sequence_parallel=1) == []


@pytest.mark.parametrize("degrees", [("--tp", "4"), ("--tp", "8", "--ep", "2"), ("--tp", "2", "--ep", "8")])
def test_an_expert_is_split_as_the_framework_launches_it(run: Callable[..., Outcome], degrees: tuple[str, ...]) -> None:
    """Where etp is left out, explain does not take one that torchtitan refuses."""
    argv = ("mixtral-8x7b", "dgx-h100", "--gpus", "64", "--profile", "torchtitan", *degrees)
    found = json.loads(run("explain", *argv, "--json").out)
    assert [part["rule"] for part in found["violations"] if part["rule"] != "memory"] == []


def test_other_frameworks_place_experts_freely():
    """The rules above are torchtitan's alone."""
    case = problem("mixtral-8x7b", gpus=64)
    assert broken(case, tp=2, cp=2, dp=16, ep=2, sequence_parallel=1) == []
    assert broken(case, tp=2, dp=32, dp_shard=8, ep=8, sequence_parallel=1) == []


def test_torchtitan_runs_no_shard_groups_with_experts_and_tensor_parallelism():
    """torchtitan #1529: HSDP with EP and TP."""
    case = problem("mixtral-8x7b", gpus=64, framework="torchtitan")
    assert broken(case, tp=2, dp=32, dp_shard=8, ep=8, zero_stage=3, sequence_parallel=1) == ["expert_hsdp"]
    assert broken(case, tp=1, dp=64, dp_shard=8, ep=8, zero_stage=3) == []


# -- divisibility


def test_more_tensor_ranks_than_key_heads():
    """torchtitan #2577: Megatron-Core copies the heads, torchtitan does not."""
    degrees = {"tp": 8, "dp": 8, "sequence_parallel": 1, "zero_stage": 2}
    model = replace(load_model("llama-3.1-8b"), kv_heads=4)
    assert broken(problem(model, gpus=64), **degrees) == []
    assert broken(problem(model, gpus=64, framework="torchtitan"), **degrees) == ["kv_heads"]


def test_heads_that_do_not_divide():
    """DeepSpeed #3634: 52 heads on TP 8."""
    model = replace(load_model("llama-3.1-8b"), heads=52, kv_heads=52, hidden=6656, head_dim=128)
    assert broken(problem(model, gpus=8), tp=8, sequence_parallel=1) == ["heads", "kv_heads"]
    assert broken(problem(model, gpus=4), tp=4, sequence_parallel=1) == []


def test_a_sequence_splits_into_two_parts_a_context_rank():
    """RL #3380: sequence % (2 CP) = 0."""
    case = problem(gpus=8, seq_len=4100)
    assert broken(case, cp=2, dp=4) == []
    assert broken(case, cp=4, dp=2) == ["sequence"]


def test_fp8_tokens_are_counted_after_the_split():
    """Speech #8869: multiples of 16 of what a context-parallel rank holds."""
    case = problem(gpus=8, seq_len=4128, precision="fp8")
    assert broken(case, cp=2, dp=4) == []
    assert broken(case, cp=4, dp=2) == ["fp8_tokens"]


def test_every_layout_trains_the_same_batch():
    """libai #345, examples #41: the global batch stays the same under every layout."""
    case = problem(gpus=8)
    result = search(case, load_space(case), threads=1)
    assert result.estimate is not None
    tokens = result.estimate.tokens_per_second_per_gpu * result.estimate.step_time * 8
    assert tokens == pytest.approx(512 * 8192)


def test_llama3_trained_on_131072_tokens_with_four_dimensions():
    """llama3 #324: TP 8 x CP 16 x PP 16 x DP 4 = 8,192 GPUs."""
    case = problem("llama-3.1-405b", gpus=8192, framework="llama3-meta", seq_len=131072, global_batch=128)
    degrees = {"tp": 8, "cp": 16, "pp": 16, "dp": 4, "sequence_parallel": 1}
    assert broken(case, **degrees) == []
    assert headroom(case, **degrees) > 0


# -- ZeRO with pipelines


@pytest.mark.parametrize(
    ("framework", "allowed"),
    [("deepspeed", (0, 1)), ("megatron", (0, 1)), ("torchtitan", (2, 3))],
)
def test_zero_with_pipelines_is_the_frameworks_own(framework: str, allowed: tuple[int, ...]):
    """DeepSpeed #823, #1629: at most stage 1; torchtitan gathers again; Megatron-FSDP goes without pipelines."""
    case = problem(gpus=64, framework=framework)
    refused = [stage for stage in range(4) if "zero_with_pp" in broken(case, pp=4, dp=16, zero_stage=stage)]
    assert set(refused) == set(range(4)) - set(allowed)


@pytest.mark.parametrize(
    ("framework", "axis", "only"), [("deepspeed", "tp", 1), ("llm-foundry", "tp", 1), ("llm-foundry", "pp", 1)]
)
def test_no_layout_splits_what_the_framework_cannot(framework: str, axis: str, only: int):
    """DeepSpeed and llm-foundry have no tensor parallelism, llm-foundry no pipelines."""
    case = problem(gpus=64, framework=framework)
    assert load_space(case).axes[axis] == (only,)
    with pytest.raises(InputError, match=f"{axis} 2: profile {framework} has 1"):
        load_space(case, limits={axis: (2,)})


# -- topology


def test_tensor_groups_may_cross_trays_but_not_nodes():
    """slime #95, NVIDIA k8s-test-infra #727: the NVLink domain is 72 GPUs, a tray four; vTrain ran TP 16."""
    assert broken(problem("llama-3.1-70b", "gb200-nvl72", 64), tp=8, dp=8, sequence_parallel=1) == []
    degrees = {"tp": 16, "dp": 4, "sequence_parallel": 1}
    assert broken(problem("llama-3.1-70b", gpus=64), **degrees) == ["tp_domain"]
    assert broken(problem("llama-3.1-70b", gpus=64), **degrees, lifted=True) == []


# -- nothing fits

TOO_BIG = ("llama-3.1-405b", "dgx-h100", "--gpus", "8")


def test_what_does_not_fit_has_no_speed(run: Callable[..., Outcome]):
    """aiconfigurator #437, #461: no throughput for a layout that does not fit."""
    for command in ("search", "explain", "why"):
        code, out, err = run(command, *TOO_BIG)
        assert code == 3
        assert "tokens/s" not in out + err
        shown = out.split("what makes it feasible")[0] if command == "why" else out
        assert "MFU" not in shown + err


def test_nothing_fits_with_a_reason(run: Callable[..., Outcome]):
    """transformers #27830: "no optimal configuration found", without a reason."""
    found: dict[str, Any] = json.loads(run("why", *TOO_BIG, "--json").out)
    [core] = found["core"]
    assert core["rule"] == "memory"
    assert "902 GiB of 79.1 GiB: optimizer 567 GiB" in core["because"]
    assert found["fixes"][0]["change"]["gpus"][0] == 8


def test_every_layout_uses_all_gpus():
    """nnscaler #30: fewer GPUs than given is not an answer."""
    case = problem("llama-3.1-8b", gpus=24, global_batch=48)
    found = search(case, load_space(case), threads=1).frontier
    assert len(found)
    assert set((found.tp * found.pp * found.cp * found.dp).tolist()) == {24}
