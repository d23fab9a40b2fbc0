"""The layout that a run states, and the recomputation that ran."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from costmodel.calibration.cells import flag, whole
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.problem import Problem
from costmodel.profile import Profile
from costmodel.recompute import MODULES, RecomputeSet
from hardware.errors import InputError

LIGER = {"logit_bytes": 0.0, "norm_saved": 2.0}
"""Rates of memory where Liger's kernels ran."""

ZERO = {"none": 0, "distopt": 1, "distopt(ZeRO-1)": 1, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}


def layout_of(row: Mapping[str, str], problem: Problem) -> Layouts:
    """The layout that ran; what a row leaves out is 1, DP what the other degrees leave."""
    workload, profile = problem.workload, problem.profile
    tp, pp, vpp, cp = (whole(row, name, 1) or 1 for name in ("tp", "pp", "vpp", "cp"))
    ep = whole(row, "ep", 1) or 1 if problem.model.is_moe else 1
    etp = whole(row, "etp", 1) or 1 if problem.model.is_moe else 1
    inner = tp * pp * cp
    if workload.gpus % inner:
        raise InputError(f"tp {tp} x pp {pp} x cp {cp} does not divide {workload.gpus} GPUs")
    if pp > problem.model.layers:
        raise InputError(f"pp {pp} is more than {problem.model.layers} layers")
    dp, micro_batch = workload.gpus // inner, whole(row, "mbs")
    if workload.global_batch % (dp * micro_batch):
        raise InputError(f"dp {dp} x micro-batch {micro_batch} does not divide global batch {workload.global_batch}")
    schedule = "interleaved" if vpp > 1 else ("1f1b" if pp == 1 else profile.default_schedule)
    shard = dp * cp
    if row.get("zero") == "hsdp":
        shard = min(shard, problem.cluster.gpus_per_node)
    return Layouts.of(
        tp=tp, pp=pp, vpp=vpp, dp=dp, dp_shard=shard, cp=cp, ep=ep, etp=etp, micro_batch=micro_batch,
        zero_stage=_zero(row, profile), recompute=1 if _modules(row) else 0,
        sequence_parallel=int(flag(row, "sp", profile.sequence_parallel) and tp > 1),
        schedule=SCHEDULES.index(schedule), rank_order=profile.rank_order,
    )  # fmt: skip


def _zero(row: Mapping[str, str], profile: Profile) -> int:
    stated = row.get("zero", "")
    if not stated:
        return profile.default_zero_stage
    if "ZeRO-2" in stated:
        return 2
    return ZERO.get(stated.split("/")[0].split(" ")[0], profile.default_zero_stage)


def as_run(profile: Profile, row: Mapping[str, str]) -> Profile:
    """The profile with what ran as its second recompute set, so that any choice of modules can be predicted.

    Liger's kernels compute the logits in chunks with the head and keep none, and norms that keep no fp32 copies.
    """
    if "Liger" in row.get("framework", "") + row.get("overlap_flags", ""):
        profile = replace(profile, memory=replace(profile.memory, **LIGER))
    modules = _modules(row)
    if not modules:
        return profile
    if modules == ("full",):
        choice = RecomputeSet(name="as run", full=True)
    elif modules == ("selective",):
        choice = profile.recompute[profile.recompute_code("selective")]
    else:
        choice = RecomputeSet(name="as run", modules=modules)
    full = profile.recompute[profile.recompute_code("full")]
    return replace(profile, recompute=(profile.recompute[0], choice, full), selective=choice.name)


def _modules(row: Mapping[str, str]) -> tuple[str, ...]:
    """("full",), ("selective",) for the profile's own set, a tuple of modules, or () for none."""
    stated = row.get("recompute", "").lower()
    if not stated or stated.startswith("none"):
        return ()
    if stated == "full":
        return ("full",)
    named = tuple(m for m in MODULES if re.search(rf"\b{m}\b", stated))
    return named or ("selective",)
