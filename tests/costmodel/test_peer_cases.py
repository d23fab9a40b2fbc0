"""Cases that users of other tools reported, each with the value that the cost model must give."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.estimate import Estimate, estimate
from costmodel.flight import in_flight
from costmodel.held import stage_parameters
from costmodel.layouts import SCHEDULES, Layouts, shard_groups
from costmodel.memory import memory
from costmodel.model import Model, load_model
from costmodel.params import counts, total
from costmodel.problem import Problem
from costmodel.recompute import RecomputeSet
from costmodel.split import StageTable, split_table
from tests.strategies import problem

GIB = 2.0**30
FULL = RecomputeSet(name="full", full=True)


def price(case: Problem, **degrees: int) -> Estimate:
    return estimate(case, Layouts.of(**{"zero_stage": 1} | degrees))


def with_sets(case: Problem, *modules: tuple[str, ...]) -> Problem:
    """The problem with these recompute sets, by code; the last one more is full."""
    sets = (*(RecomputeSet(name=f"{number}", modules=each) for number, each in enumerate(modules)), FULL)
    return replace(case, profile=replace(case.profile, recompute=sets))


def with_memory(case: Problem, **rates: float) -> Problem:
    return replace(case, profile=replace(case.profile, memory=replace(case.profile.memory, **rates)))


# -- memory


def test_a_gated_mlp_has_three_matrices():
    """cookbook #36: gate, up and down of Qwen-72B."""
    model = load_model("qwen2.5-72b")
    assert counts(model).dense_mlp == 3 * 8192 * 29568
    assert total(model) == pytest.approx(72.7e9, rel=0.001)


@pytest.mark.parametrize(("ep", "etp"), [(1, 1), (4, 1), (1, 2), (4, 2)])
def test_experts_divide_by_ep_and_etp_not_tp(ep: int, etp: int):
    """Megatron-LM #4050."""
    model, ones = load_model("mixtral-8x7b"), np.ones(1)
    stage = {"dense": 0 * ones, "moe": 32 * ones, "mtp": 0 * ones, "embedding": 0 * ones, "head": 0 * ones}
    for tp in (1, 2, 4):
        held = stage_parameters(model, stage, tp * ones, ep * ones, etp * ones).expert
        assert held[0] == 32 * 8 * 3 * 4096 * 14336 / (ep * etp)


def test_expert_parallelism_trades_tokens_and_removes_none():
    """Megatron-LM #6782: each rank still keeps k s b / TP routed tokens, whatever EP is."""
    case = problem("mixtral-8x7b", gpus=64)
    kept = [price(case, dp=64, ep=ep).memory.activations[0] for ep in (1, 2, 8)]
    assert kept[0] == kept[1] == kept[2]
    weights = [price(case, dp=64, ep=ep).memory.weights[0] for ep in (1, 8)]
    assert weights[1] < 0.2 * weights[0]


def uneven(model: Model, *layers: int) -> StageTable:
    """A stage table with these dense layers per stage."""
    table = split_table(model, model.seq_len, [len(layers)])
    size = len(layers)
    columns = {name: np.zeros((len(table.columns["count"]), size)) for name in table.columns}
    columns["count"][:], columns["rank"][:] = 1.0, np.arange(float(size))
    columns["dense"][:] = layers
    columns["embedding"][:, 0] = columns["head"][:, -1] = 1.0
    return replace(table, columns=columns)


def test_uneven_stages_are_not_averaged():
    """Megatron-Bridge #5077: layers [1, 2, 2, 3] averaged came out 31.8 % low."""
    model = replace(load_model("llama-3.1-70b"), layers=8)
    case = problem(model, gpus=4, global_batch=64)
    layout, table = Layouts.of(tp=1, pp=4, dp=1), uneven(model, 1, 2, 2, 3)
    alone = [
        memory(
            case, layout, replace(table, columns={name: column[:, [stage]] for name, column in table.columns.items()})
        )
        for stage in range(4)
    ]
    states = [float(need.weights[0] + need.gradients[0] + need.optimizer[0]) for need in alone]
    whole = memory(case, layout, table)
    assert whole.total[0] == max(need.total[0] for need in alone)
    assert whole.weights[0] + whole.gradients[0] + whole.optimizer[0] == states[3]
    assert np.mean(states) < (1 - 0.3) * states[3]


def test_logits_in_fp32_of_a_large_vocabulary():
    """Automodel #3907: 248k words cost 10.8 GB more in fp32 per 11.6k tokens."""
    model = replace(load_model("qwen2.5-7b"), vocab=248_320)
    case = problem(model, gpus=8, seq_len=11_600, global_batch=8)
    cast = with_memory(case, logit_bytes=case.profile.memory.logit_bytes + 4.0)
    more = price(cast, dp=8).memory.logits[0] - price(case, dp=8).memory.logits[0]
    assert more == pytest.approx(10.8 * GIB, rel=0.01)


def test_the_gradient_type_is_an_input():
    """Megatron-LM #1345."""
    found = [price(problem(gpus=8, grad_dtype=kind), dp=8).memory.gradients[0] for kind in ("fp32", "bf16")]
    assert found[0] == 2 * found[1]


def test_an_estimate_that_is_too_high_refuses_runs_that_fit():
    """ART #915 was 60 % high. Qwen3-30B on 16 H100 ran in 62.2 GiB (Megatron-Bridge@067f987d): it fits."""
    cost = price(problem("qwen3-30b-a3b", gpus=16, global_batch=1024), ep=16, dp=16)
    assert cost.memory_headroom[0] > 0
    assert cost.memory.allocated[0] / GIB == pytest.approx(62.166, rel=0.03)


# -- recompute


def test_core_attention_is_not_worth_recomputing_with_flash_attention():
    """Megatron-LM #1225: selective recomputation saved 25.5 -> 24.9 GB, since the scores are not stored."""
    case = with_sets(problem("llama-2-7b", gpus=8), (), ("core_attn",))
    none, core = (price(case, dp=8, recompute=code).memory_total[0] for code in (0, 1))
    assert 0 < 1 - core / none < 0.6 / 25.5 * 1.1


def test_full_recompute_may_raise_the_peak():
    """Megatron-LM #1300, #1226: the layer that is recomputed is held whole; with one layer that is all."""
    case = with_sets(problem(replace(load_model("llama-3.1-8b"), layers=1), gpus=8), ())
    none, full = (price(case, dp=8, recompute=code) for code in (0, 1))
    assert full.memory.activations[0] < 0.1 * none.memory.activations[0]
    assert full.memory_total[0] > none.memory_total[0]


def test_recomputing_an_activation_function_is_cheap_and_saves_little():
    """Megatron-Bridge #5570: moe_act -1.9 % memory, below mla_up_proj in time."""
    case = problem("deepseek-v3", "gb200-nvl72", 256, precision="mxfp8", global_batch=2048)
    case = with_sets(case, (), ("moe_act",), ("mla_up_proj",))
    degrees = {"pp": 4, "dp": 64, "ep": 64, "vpp": 4, "schedule": SCHEDULES.index("interleaved")}
    none, act, mla = (price(case, **degrees, recompute=code) for code in range(3))
    assert 1 - act.memory_total[0] / none.memory_total[0] == pytest.approx(0.019, abs=0.01)
    assert none.step_time[0] < act.step_time[0] < mla.step_time[0] < 1.06 * none.step_time[0]


def test_recomputing_the_mlp_of_a_dense_model_costs_a_sixth_of_the_step():
    """Megatron-Bridge #5570: Llama-70B, 16 %."""
    case = with_sets(problem("llama-3.1-70b", gpus=64), (), ("mlp",))
    degrees = {"tp": 8, "pp": 2, "dp": 4, "sequence_parallel": 1}
    none, mlp = (price(case, **degrees, recompute=code).step_time[0] for code in (0, 1))
    assert mlp / none - 1 == pytest.approx(0.16, abs=0.04)


# -- pipelines


@pytest.mark.parametrize(
    ("layers", "stages"),
    [(30, 4), *((layers, stages) for layers in (43, 61, 78, 94) for stages in (4, 8, 16))],
)
@pytest.mark.parametrize("mtp", [0, 1])
def test_stages_hold_every_layer(layers: int, stages: int, mtp: int):
    """Megatron-LM #1304: 30 layers on four stages silently trained 28."""
    model = replace(load_model("llama-3.1-8b"), layers=layers, mtp_layers=mtp)
    table = split_table(model, 4096, [stages])
    assert sum(table.split(stages)) == layers
    assert min(table.split(stages)) >= 1
    row = table.rows(Layouts.of(pp=stages))[0]
    held = {name: float((column[row] * table.columns["count"][row]).sum()) for name, column in table.columns.items()}
    assert (held["dense"], held["mtp"], held["embedding"], held["head"]) == (layers, mtp, 1, 1)


def test_fewer_micro_batches_than_stages_hold_no_more_than_there_are():
    """Legal, with a larger bubble."""
    layout, stage = Layouts.of(pp=8, dp=1), np.zeros(1)
    assert in_flight(layout, stage, np.array([4.0]))[0] == 4.0
    few, many = (price(problem(gpus=8, global_batch=batch), pp=8) for batch in (4, 64))
    assert few.memory.activations[0] < many.memory.activations[0]
    bubbles = [cost.time.bubble[0] / cost.step_time[0] for cost in (few, many)]
    assert bubbles[0] > 0.5 > 0.15 > bubbles[1]


# -- mixtures of experts


@pytest.mark.parametrize(("tp", "cp", "ep", "etp"), [(1, 1, 8, 1), (4, 1, 8, 1), (2, 2, 4, 2), (8, 1, 1, 8)])
def test_dense_and_expert_groups_share_one_set_of_ranks(tp: int, cp: int, ep: int, etp: int):
    """DeepSpeed #8064: tp x cp x dp = ep x etp x edp."""
    dp = 64 // (tp * cp)
    shard, experts = shard_groups(Layouts.of(tp=tp, cp=cp, dp=dp, ep=ep, etp=etp, zero_stage=1))
    assert shard[0] * tp == 64 == experts[0] * ep * etp


def test_experts_without_tensor_parallelism_have_a_price():
    """SimAI #298: TP 1 with EP above 1."""
    cost = price(problem("mixtral-8x7b", gpus=64), tp=1, pp=2, dp=32, ep=8)
    assert np.isfinite(cost.step_time[0])
    assert cost.time.expert_parallel[0] > 0


# -- ZeRO


def test_zero_3_gathers_weights_for_each_micro_batch():
    """torchtitan, FSDP2 with pipelines: four times the micro-batches, four times the traffic."""
    jobs = {batch: problem(gpus=64, framework="torchtitan", global_batch=batch) for batch in (256, 1024)}
    few, many = (price(case, pp=4, dp=16, zero_stage=3).time.data_parallel[0] for case in jobs.values())
    assert many == pytest.approx(4 * few, rel=0.2)
    assert many > price(jobs[1024], pp=4, dp=16, zero_stage=2).time.data_parallel[0]


# -- topology


def test_tensor_parallelism_across_trays_stays_on_nvlink():
    """slime #95, NVIDIA k8s-test-infra #727: four GPUs a tray and 72 a domain on GB200."""
    seconds = {}
    for machine in ("gb200-nvl72", "dgx-b200"):
        for tp in (8, 16):
            cost = price(problem("llama-3.1-70b", machine, 64), tp=tp, dp=64 // tp, sequence_parallel=1)
            seconds[machine, tp] = float(cost.time.tensor_parallel[0])
    assert seconds["gb200-nvl72", 8] == pytest.approx(seconds["dgx-b200", 8], rel=0.1)
    assert seconds["gb200-nvl72", 16] < 0.7 * seconds["dgx-b200", 16]


def test_tensor_parallelism_across_nodes_is_slow():
    """vTrain measured TP 16 on nodes of eight: it runs, and TP 8 with two stages is faster."""
    case = problem("llama-3.1-70b", gpus=64)
    wide = price(case, tp=16, dp=4, sequence_parallel=1)
    inside = price(case, tp=8, pp=2, dp=4, sequence_parallel=1)
    assert wide.mfu[0] < 0.85 * inside.mfu[0]
