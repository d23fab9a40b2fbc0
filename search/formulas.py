"""The formulas that give the model's figures of a layout, and the stage whose memory is meant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.held import StageParameters, stage_parameters
from costmodel.layouts import SCHEDULES, Layouts, shard_groups
from costmodel.memory import neediest
from costmodel.problem import Problem
from costmodel.split import OWN, StageTable
from costmodel.states import gradient_stage, state_bytes

BUBBLE = {
    "1f1b": "longest path through the stages; were all equal, (PP - 1)(F + B)",
    "interleaved": "longest path through the stages; were all equal, (PP - 1)(F + B) / VPP",
    "zero-bubble": "longest path through the stages; were all equal, (PP - 1)(F + B - 2 W)",
    "dualpipe": "longest path through the stages; were all equal, (PP / 2 - 1)(F + B + B - 3 W)",
}
"""Seconds of a micro-batch: forward, backward, its weight part. What is used is the longest path through the stages as
they are (costmodel/schedule.py), which is the closed form where all take as long."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The pipeline stage that needs most memory: its name, what is on it, and the parameters of a rank before ZeRO."""

    name: str
    parts: str
    held: StageParameters

    @classmethod
    def of(cls, problem: Problem, layout: Layouts, stages: StageTable) -> Stage:
        """The neediest of these stages of the one row of `layout`."""
        found = neediest(problem, layout, stages)
        tp, ep, etp = (getattr(layout, axis).astype(np.float64) for axis in ("tp", "ep", "etp"))
        both = {name: found[name] + found[f"mirror_{name}"] for name in OWN}
        held = stage_parameters(problem.model, both, tp, ep, etp)
        stage, pp = {name: int(column[0]) for name, column in found.items()}, int(layout.pp[0])
        return cls(_name(stage, pp), _parts(stage), held)


def _name(stage: dict[str, int], pp: int) -> str:
    """ "stage 1 of 4"; a DualPipe rank has two."""
    if pp == 1:
        return "the only stage"
    if any(stage[f"mirror_{kind}"] for kind in OWN):
        return f"stages {stage['rank'] + 1} and {pp - stage['rank']} of {pp}"
    return f"stage {stage['rank'] + 1} of {pp}"


def _parts(stage: dict[str, int]) -> str:
    """ "20 layers, embedding"."""
    both = {kind: stage[kind] + stage[f"mirror_{kind}"] for kind in OWN}
    layers = both["dense"] + both["moe"]
    parts = [f"{layers} layer{'s' * (layers != 1)}", *["MTP"] * (both["mtp"] > 0)]
    return ", ".join([*parts, *(end for end in ("embedding", "head") if both[end])])


def state_formulas(problem: Problem, layout: Layouts) -> dict[str, str]:
    """weights, gradients, optimizer: bytes from n and e, what a rank holds outside of the routed experts and in them.

    S is the shard group of n, R that of e, w the matrices in n.
    """
    per, zero = state_bytes(problem), int(layout.zero_stage[0])
    bucket = problem.profile.memory.bucket_bytes * (layout.dp[0] * layout.cp[0] > 1)
    dual = SCHEDULES[layout.schedule[0]] == "dualpipe"
    weights = _sized(problem, layout, per.weight, sharded=zero >= 3)
    if per.copies:
        weights = f"{weights} + fp8 copies: {_sized(problem, layout, per.copies, sharded=zero >= 3, dense='w')}"
    gradients = _sized(problem, layout, per.gradient, sharded=zero >= gradient_stage(problem.profile))
    if bucket:
        gradients = f"{gradients} + buckets: {_sized(problem, layout, bucket, sharded=False)}"
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": _sized(problem, layout, per.optimizer, sharded=zero >= 1, copies=2 if dual else 1),
    }


def _sized(problem: Problem, layout: Layouts, size: float, *, sharded: bool, copies: int = 1, dense: str = "n") -> str:
    """ "2 n", "2 (n + e)", "4 (n / S + e / R)"; with two copies of a stage the groups are twice as large."""
    twice = "2 " if copies == 2 else ""
    ranks = [int(group[0]) * copies for group in shard_groups(layout)]
    over = [f" / {twice}{name}" if sharded and count > 1 else "" for name, count in zip("SR", ranks, strict=True)]
    over = [f" / ({part[3:]})" if twice and part else part for part in over]
    if problem.model.is_moe:
        return f"{size:g} ({dense}{over[0]} + e{over[1]})"
    return f"{size:g} {dense}{over[0]}"


def divided(problem: Problem, layout: Layouts) -> dict[str, str]:
    """Whether ZeRO divides weights, gradients and optimizer of this layout, in words."""
    zero, group = int(layout.zero_stage[0]), int(layout.dp_shard[0])
    first = {"weights": 3, "gradients": gradient_stage(problem.profile), "optimizer": 1}
    said = {}
    for state, stage in first.items():
        whole = f"whole on every rank: ZeRO {stage} would divide them"
        if state == "gradients" and stage == 3 and zero == 2:
            whole = f"whole until the step ends: profile {problem.profile.name} accumulates them before it scatters"
        said[state] = f"divided over {group} ranks (ZeRO {zero})" if zero >= stage else whole
    return said
