"""Lower bounds of memory that need only a skeleton's degrees, so that a search may drop it unseen.

The need of the worst stage is at least the mean over the stages, and a mean of sums is a sum of means. Each
function bounds the mean of its terms over every choice that the skeleton leaves open, so the sum
`dense_floor + expert_floor + activation_floor + fixed_floor` never exceeds `memory(...).total`.
Degrees are equal-length columns of integers; beyond the model's layers pp divides states alone.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from costmodel.activations import WAYS, layer_tables, per_token
from costmodel.held import StageParameters, key_share, stage_parameters, vocab_per_rank
from costmodel.layouts import Column
from costmodel.model import Model
from costmodel.params import counts
from costmodel.problem import Problem
from costmodel.profile import Profile
from costmodel.split import OWN, split_table
from costmodel.states import Shards, gradient_stage, state_bytes, states
from costmodel.unit_memory import wgrad_buffers

_ROUNDING = 1.0 - 1e-9


def dense_floor(problem: Problem, tp: Column, pp: Column) -> Column:
    """States of all but the routed experts, least over ZeRO stages and shard groups, and their buffers [B].

    A tied or copied embedding counts once: DualPipe keeps it so.
    """
    tp, pp = tp.astype(np.float64), pp.astype(np.float64)
    model, per = problem.model, state_bytes(problem)
    held = _parameters(model, _whole(model), tp)
    held = StageParameters(matrices=held.matrices / pp, ends=held.ends / pp, expert=0.0 * pp)
    layer = _least([_parameters(model, {kind: 1.0}, tp).dense for kind in _kinds(model)])
    layer = 2.0 * layer * (problem.workload.gpus > tp * pp)
    root = 4.0 * vocab_per_rank(model, tp) * model.hidden / pp
    gradients = per.gradient * layer
    early = gradients * (gradient_stage(problem.profile) == 2)
    gathered = (0.0, 0.0, early, gradients + (per.used + per.copies) * layer)
    need = _least_stage(problem, held, pp, problem.workload.gpus / (tp * pp), gathered, root)
    wgrad = wgrad_buffers(problem, tp, np.inf * tp)
    mlp = _least([wgrad[kind == "moe"] for kind in _kinds(model)])
    attention = problem.profile.memory.wgrad_buffer * 2.0 * counts(model).attention / tp
    return _required(problem, need + attention + mlp)


def expert_floor(problem: Problem, pp: Column, ep: Column, etp: Column) -> Column:
    """States of the routed experts, least over ZeRO stages and shard groups, and their buffers [B]."""
    pp, ep, etp = pp.astype(np.float64), ep.astype(np.float64), etp.astype(np.float64)
    model, zero = problem.model, 0.0 * pp
    held = stage_parameters(model, _columns(_whole(model), pp), zero + 1.0, ep, etp).expert / pp
    only = StageParameters(matrices=zero, ends=zero, expert=held)
    group = problem.workload.gpus / (pp * ep * etp)
    need = _least_stage(problem, only, pp, group, (0.0, 0.0, 0.0, 0.0), zero)
    if not model.dense_layers:
        wgrad = wgrad_buffers(problem, np.inf * etp, etp)[1]
        need = need + wgrad + problem.profile.memory.dispatch_buffer * (ep > 1.0)
    return _required(problem, need)


def activation_floor(problem: Problem, tp: Column, cp: Column, pp: Column) -> Column:
    """Activations in flight and head, least over micro-batch, recompute set and schedule [B].

    1F1B with micro-batches of one sequence holds least: interleaving holds more micro-batches, DualPipe as
    many twice, and larger micro-batches as many tokens or more.
    """
    stages = np.minimum(pp, problem.model.layers).astype(np.int64)
    tp, cp, pp = tp.astype(np.float64), cp.astype(np.float64), pp.astype(np.float64)
    model, rates, hidden = problem.model, problem.profile.memory, problem.model.hidden
    tokens = problem.workload.seq_len / cp
    batches = np.clip(problem.workload.global_batch * tp * pp * cp / problem.workload.gpus, 1.0, stages)
    share = _least_shares(model, tp, cp)
    mean = _mean_in_flight(model, problem.workload.seq_len, tuple(sorted(set(stages.tolist()))))
    choices = []
    for code, buffered in _recompute_sets(problem.profile):
        tables = {kind: layer_tables(problem, (code,), moe=kind == "moe") for kind in _kinds(model)}
        kept, row = 0.0 * tp, np.full(len(tp), code)
        for kind, (table, _) in tables.items():
            kept = kept + mean[kind][stages, batches.astype(np.int64)] * per_token(table, row, share)
        again = _least([per_token(table, row, share) for _, table in tables.values()])
        choices.append(kept + buffered * again)
    vocab = vocab_per_rank(model, tp)
    logits = rates.logit_bytes * (1.0 + model.mtp_layers) * vocab + hidden * (4.0 / tp + 2.0)
    sent = 4.0 * hidden / tp * (pp > 1.0)
    copies = 4.0 * model.experts_per_token * problem.workload.expert_load * hidden / tp * (not model.dense_layers)
    need = tokens * (_least(choices) + logits / pp + sent + copies)
    return _required(problem, need + rates.wgrad_buffer * 2.0 * vocab * hidden / pp)


def _recompute_sets(profile: Profile) -> list[tuple[int, bool]]:
    """Codes of sets of which one keeps no more than any other, and whether what it computes again counts: the declared
    ones, and all free modules together for every choice of them. Fewer layers of a stage never need less."""
    found = [(code, True) for code, choice in enumerate(profile.recompute) if choice.declared]
    free = {module for choice in profile.recompute if not choice.declared for module in choice.modules}
    codes = [code for code, choice in enumerate(profile.recompute) if set(choice.modules) == free and free]
    return found + [(code, False) for code in codes[:1]]


def fixed_floor(problem: Problem) -> float:
    """What every rank needs whatever the layout [B]."""
    return problem.profile.memory.overhead


def _required(problem: Problem, allocated: Column) -> Column:
    need: Column = allocated * (problem.profile.memory.reserved_ratio * _ROUNDING)
    return need


def _least(columns: list[Column]) -> Column:
    least: Column = np.minimum.reduce(columns)
    return least


def _kinds(model: Model) -> list[str]:
    """Kinds of layer that the model has."""
    return ["dense"] * bool(model.dense_layers) + ["moe"] * bool(model.moe_layers)


def _whole(model: Model) -> dict[str, float]:
    layers = {"dense": float(model.dense_layers), "moe": float(model.moe_layers), "mtp": float(model.mtp_layers)}
    return layers | {"embedding": 1.0, "head": 1.0}


def _columns(contents: dict[str, float], like: Column) -> dict[str, Column]:
    return {name: np.full_like(like, contents.get(name, 0.0)) for name in OWN}


def _parameters(model: Model, contents: dict[str, float], tp: Column) -> StageParameters:
    one = np.ones_like(tp)
    return stage_parameters(model, _columns(contents, tp), tp, one, one)


def _least_stage(
    problem: Problem,
    held: StageParameters,
    pp: Column,
    group: Column,
    gathered: tuple[Column | float, ...],
    root: Column,
) -> Column:
    """States with what a ZeRO stage gathers, least over the stages that the profile allows at this pp.

    Stage 0 is always among them: a shard group of one rank divides nothing, whatever the stage.
    """
    profile, one = problem.profile, np.ones_like(pp)
    least = (3, gradient_stage(profile), 1)
    group = np.maximum(group, 1.0)
    best = np.full_like(pp, np.inf)
    for stage in range(4):
        shard = [(size, size) for size in (group if stage >= start else one for start in least)]
        terms = states(state_bytes(problem), Shards(*shard), held)
        need = terms[0] + terms[1] + terms[2] + gathered[stage] + root * (stage == 3) * (group > 1.0)
        allowed = np.where(pp > 1.0, stage in profile.zero_stages_with_pp, stage in profile.zero_stages)
        best = np.minimum(best, np.where(allowed | (stage == 0), need, np.inf))
    return best


def _least_shares(model: Model, tp: Column, cp: Column) -> dict[str, Column]:
    """`activations.shares` at their least: with sequence parallelism, ETP 1."""
    share = {way: 1.0 / tp for way in WAYS}
    return share | {"keys": key_share(model, tp), "context": (cp > 1.0) / tp, "gathered": 0.0 * tp}


@lru_cache(maxsize=16)
def _mean_in_flight(model: Model, seq_len: int, stages: tuple[int, ...]) -> dict[str, Column]:
    """Layers in flight, mean over the stages under 1F1B, by kind: [pp, micro-batches up to pp]."""
    table = split_table(model, seq_len, stages)
    last = "moe" if model.layer_is_moe[-1] else "dense"
    mean = {kind: np.zeros((max(stages) + 1, max(stages) + 1)) for kind in ("dense", "moe")}
    for pp in stages:
        counted = table.split(pp)
        batches, start = np.arange(pp + 1), 0
        for rank, layers in enumerate(counted):
            moe = sum(model.layer_is_moe[start : start + layers])
            held = np.minimum(pp - rank, batches) / pp
            mean["moe"][pp, : pp + 1] += moe * held
            mean["dense"][pp, : pp + 1] += (layers - moe) * held
            start += layers
        mean[last][pp, : pp + 1] += model.mtp_layers * np.minimum(1, batches) / pp
    return mean
