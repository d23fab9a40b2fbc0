"""Every rule: a layout on each side of it, and a reason that carries the numbers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.floor import activation_floor, dense_floor, expert_floor, fixed_floor
from costmodel.layouts import SCHEDULES
from costmodel.problem import Problem
from hardware.units import format_bytes
from search.rule import Rule, violations
from search.rules import rules
from search.rules_memory import floors, memory_budget
from search.space import load_space
from tests.strategies import candidates, problem, problems

F1B, INTERLEAVED, ZERO_BUBBLE, DUALPIPE = range(len(SCHEDULES))
LLAMA = {"model": "llama-3.1-70b", "gpus": 64}
V3 = {"model": "deepseek-v3", "gpus": 64}


def rule(problem: Problem, name: str) -> Rule:
    return next(rule for rule in rules(problem, load_space(problem)) if rule.name == name)


def own(parts: dict[str, Any]) -> Problem:
    """A problem; keys `profile_*` and `model_*` change one field of these."""
    case = problem(**{key: value for key, value in parts.items() if not key.startswith(("profile_", "model_"))})
    for part in ("profile", "model"):
        changes = {key.removeprefix(f"{part}_"): value for key, value in parts.items() if key.startswith(f"{part}_")}
        case = replace(case, **{part: replace(getattr(case, part), **changes)})
    return case


@pytest.mark.parametrize(
    ("name", "parts", "good", "bad", "because"),
    [
        ("heads", LLAMA, (8,), (5,), "64 attention heads do not divide by tp 5"),
        ("kv_heads", LLAMA, (16,), (3,), "8 KV heads neither divide by tp 3 nor replicate evenly over it"),
        (
            "kv_heads",
            LLAMA | {"profile_kv_replication": False},
            (8,),
            (16,),
            "8 KV heads do not divide by tp 16, and profile megatron does not replicate them",
        ),
        ("hidden", LLAMA, (64,), (3,), "hidden 8192 does not divide by tp 3"),
        ("ffn", LLAMA, (7, 1), (11, 1), "does not divide: MLP width 28672 by tp 11"),
        ("ffn", V3, (8, 8), (8, 3), "does not divide: expert width 2048 by etp 3"),
        (
            "tp_domain",
            LLAMA,
            (8, 1),
            (16, 1),
            "tp 16 is neither a part of a node of 8 GPUs nor whole nodes that divide 8 GPUs on nvlink",
        ),
        (
            "tp_domain",
            V3 | {"machine": "gb200-nvl72"},
            (16, 64),
            (1, 6),
            "etp 6 is neither a part of a node of 4 GPUs nor whole nodes that divide 64 GPUs on nvlink",
        ),
        ("pp_layers", LLAMA, (80,), (81,), "80 layers cannot fill 81 stages"),
        ("sequence", LLAMA, (4,), (3,), "a sequence of 8192 tokens does not divide into 2 x cp 3 parts"),
        ("experts", V3, (64,), (48,), "256 experts do not divide by ep 48"),
        (
            "expert_group",
            V3,
            (2, 8, 4),
            (2, 16, 4),
            "ep 16 x etp 4 does not divide the 32 GPUs of a pipeline stage (tp x cp x dp)",
        ),
        (
            "fp8_width",
            V3 | {"precision": "fp8"},
            (8, 128),
            (1, 256),
            "fp8 GEMMs need widths in multiples of 16: expert 2048 / etp 256 = 8",
        ),
        ("global_batch", LLAMA, (32,), (24,), "a global batch of 512 does not divide by dp 24"),
        (
            "sequence_parallel",
            LLAMA,
            (2, 0),
            (1, 1),
            "sequence parallelism splits over the tensor-parallel group, and tp is 1",
        ),
        ("sequence_parallel", V3, (2, 1), (2, 0), "experts with tp 2 need sequence parallelism"),
        (
            "sequence_split",
            LLAMA | {"seq_len": 4104},
            (8, 1, 1),
            (16, 1, 1),
            "4104 tokens (sequence / cp 1) do not divide by tp 16 for sequence parallelism",
        ),
        ("schedule", LLAMA, (4, 2, INTERLEAVED), (4, 2, F1B), "vpp 2 with 1f1b: virtual stages and the interleaved"),
        ("schedule", LLAMA, (1, 1, F1B), (1, 1, ZERO_BUBBLE), "zero-bubble needs a pipeline, and pp is 1"),
        ("schedule", LLAMA, (4, 1, DUALPIPE), (5, 1, DUALPIPE), "dualpipe needs an even number of stages, and pp is 5"),
        ("rank_order", LLAMA, (2, 2, 1), (1, 2, 1), "with pp 1, tp-cp-pp-dp is the same layout as tp-cp-dp-pp"),
        ("rank_order", LLAMA, (1, 1, 0), (2, 1, 1), "with dp 1, tp-cp-pp-dp is the same layout as tp-cp-dp-pp"),
        (
            "expert_order",
            V3,
            (2, 4, 1, 2, 1, 1),
            (2, 4, 1, 8, 1, 1),
            "tp-cp-pp-dp needs experts over as many ranks as the rest of a layer: ep 8 x etp 1 = 8, tp 2 x cp 1 = 2",
        ),
        ("expert_order", V3, (2, 4, 1, 8, 1, 0), (1, 2, 1, 8, 1, 1), "tp-cp-pp-dp needs experts over"),
        (
            "virtual_stages",
            {"model": "llama-3.1-8b", "gpus": 8},
            (8, 4),
            (8, 5),
            "vpp 5 with pp 8 needs a layer on each of 40 virtual stages, embedding and loss counted; "
            "32 layers allow vpp 4",
        ),
        (
            "micro_batch",
            LLAMA,
            (32, 16),
            (64, 16),
            "a global batch of 512 does not divide by dp 64 x micro-batch 16 = 1024",
        ),
        (
            "micro_batches",
            LLAMA,
            (8, INTERLEAVED, 4, 16),
            (16, INTERLEAVED, 64, 1),
            "interleaving needs a multiple of pp 16 micro-batches; there are 8",
        ),
        (
            "micro_batches",
            LLAMA,
            (4, DUALPIPE, 64, 1),
            (8, DUALPIPE, 64, 1),
            "dualpipe needs an even number of micro-batches, at least 2 x pp 8; there are 8",
        ),
        (
            "fp8_tokens",
            V3 | {"precision": "fp8"},
            (512, 2),
            (512, 1),
            "fp8 GEMMs need tokens in multiples of 16: 4096 / cp 512 x 1 sequences = 8",
        ),
        ("zero_with_pp", LLAMA, (1, 3), (2, 3), "profile megatron runs ZeRO 0, 1 with pipelines, not 3 with pp 2"),
        (
            "shard_group",
            LLAMA,
            (8, 2, 1, 8),
            (8, 2, 1, 12),
            "dp x cp = 16 ranks do not divide into groups of dp_shard 12",
        ),
        (
            "shard_group",
            LLAMA,
            (8, 2, 0, 16),
            (8, 2, 0, 8),
            "zero_stage 0 with dp_shard 8 shards nothing: that is zero_stage 0",
        ),
        ("shard_group", LLAMA, (1, 1, 1, 1), (8, 1, 1, 1), "zero_stage 1 with dp_shard 1 shards nothing"),
        (
            "shard_group",
            LLAMA | {"profile_shard_groups": False},
            (8, 2, 1, 16),
            (8, 2, 1, 8),
            "profile megatron shards over all 16 ranks, not groups of 8",
        ),
        ("memory", LLAMA | {"usable": 80e9}, (0,), (-2e9,), "needs 76.4 GiB of 74.5 GiB usable"),
    ],
)
def test_a_layout_on_each_side(
    name: str, parts: dict[str, Any], good: tuple[int, ...], bad: tuple[int, ...], because: str
) -> None:
    found = rule(own(parts), name)
    good_row, bad_row = (dict(zip(found.columns, row, strict=True)) for row in (good, bad))
    assert violations([found], good_row) == []
    [(broken, reason)] = violations([found], bad_row)
    assert broken == name
    assert reason.startswith(because)


def test_fp8_rules_leave_bf16_alone() -> None:
    for name, row in (("fp8_width", {"tp": 1, "etp": 256}), ("fp8_tokens", {"cp": 512, "micro_batch": 1})):
        assert violations([rule(own(V3), name)], row) == []


def test_interleaving_may_leave_a_remainder_where_the_profile_allows_it() -> None:
    row = {"pp": 5, "schedule": INTERLEAVED, "dp": 64, "micro_batch": 1}
    assert violations([rule(own(LLAMA), "micro_batches")], row)
    assert not violations([rule(own(LLAMA | {"profile_microbatches_divide_pp": False}), "micro_batches")], row)


def test_tensor_parallel_may_leave_the_fast_domain_when_lifted() -> None:
    case = problem(**LLAMA)
    for lifted in (False, True):
        space = load_space(case, limits={"tp": [16]}, tp_across_domains=lifted)
        found = next(rule for rule in rules(case, space) if rule.name == "tp_domain")
        assert bool(found.mask({"tp": np.array([16]), "etp": np.array([1])})[0]) is lifted


@pytest.mark.parametrize(("gpus", "allowed"), [(64, True), (144, False), (1024, True)])
def test_tp_16_divides_an_nvl72_where_the_job_takes_64_of_its_72_gpus(gpus: int, allowed: bool) -> None:
    case = problem("llama-3.1-405b", "gb200-nvl72", gpus=gpus)
    assert (not violations([rule(case, "tp_domain")], {"tp": 16, "etp": 1})) is allowed


def test_embedding_and_loss_may_count_as_layers() -> None:
    case = problem("llama-3.1-405b", gpus=16 * 128, framework="llama3-meta")
    assert not violations([rule(case, "virtual_stages")], {"pp": 16, "vpp": 8})


def test_the_smallest_part_of_a_node_is_the_job() -> None:
    case = problem(gpus=6, global_batch=6)
    assert not violations([rule(case, "tp_domain")], {"tp": 6, "etp": 1})
    assert not violations([rule(case, "tp_domain")], {"tp": 3, "etp": 1})


def test_memory_floor_sums_parts_rounded_down() -> None:
    case = problem("deepseek-v3", gpus=64)
    found = rule(case, "memory_floor")
    row = {"tp": 1, "pp": 2, "cp": 1, "ep": 8, "etp": 1}
    tp, pp, cp, ep, etp = (np.array([value]) for value in row.values())
    need = dense_floor(case, tp, pp) + expert_floor(case, pp, ep, etp) + activation_floor(case, tp, cp, pp)
    megabytes = float((need + fixed_floor(case))[0]) / 1e6
    whole = sum(int(np.ravel(part.megabytes(*(np.array([row[c]]) for c in part.columns)))[0]) for part in floors(case))
    assert whole <= megabytes <= whole + len(floors(case))
    [(_, reason)] = violations([found], row)
    assert reason.startswith(f"needs at least {format_bytes(whole * 1e6)} (")
    assert reason.endswith(f"of {format_bytes(memory_budget(case) * 1e6)} usable")


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_reasons_are_one_line_for_whatever_is_rejected(data: st.DataObject) -> None:
    case = data.draw(problems())
    space = load_space(case)
    layouts = data.draw(candidates(case, space))
    every = rules(case, space)
    masks = {rule.name: rule.mask(vars_of(layouts)) for rule in every if rule.name != "memory"}
    for index in range(len(layouts)):
        broken = dict(violations(every, layouts.row(index)))
        assert set(broken) == {name for name, mask in masks.items() if not mask[index]}
        assert all(reason and "\n" not in reason for reason in broken.values())


def vars_of(layouts: Any) -> dict[str, Any]:
    return {name: getattr(layouts, name) for name in layouts.row(0)}
