"""Bytes per unit of what a pipeline stage holds: its layers, its ends and what is in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.activations import layer_tables, per_token, shares
from costmodel.held import StageParameters, units, vocab_per_rank
from costmodel.layouts import Column, Layouts, is_partial, usual_set
from costmodel.model import Model
from costmodel.params import counts
from costmodel.problem import Problem
from costmodel.split import MOVED, SET, StageTable, own_set
from costmodel.states import Shards, StateBytes, shards, state_bytes, states

RESIDENT: tuple[str, ...] = ("weights", "gradients", "optimizer", "gathered")
"""Terms that ZeRO divides; they depend on neither micro-batch, recomputation nor virtual stages."""
WORKING: tuple[str, ...] = ("recompute_buffer", "logits", "buffers", "activations")
"""Terms that do not depend on ZeRO."""
MTP_INPUTS = 8.0
"""Bytes per token and hidden element that an MTP depth keeps beside its layer: two norms, inputs, outputs."""
Costs = dict[str, dict[str, Column]]
"""Bytes per unit of a quantity of the stage, by quantity and term."""
TRANSIENT = ("recompute_buffer", "buffers")
FLIES = " in flight"
"""After the name of a quantity: for each micro-batch of it in flight."""
COST_AXES = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel", "recompute")
"""Axes that WORKING bytes per unit of a stage's quantities depend on, beside whether there is a pipeline, and whether
`recompute_layers` is 0."""


def distinct_costs(problem: Problem, layouts: Layouts, stages: StageTable) -> tuple[Costs, Column]:
    """WORKING bytes per unit of a stage's quantities, for each combination of what they depend on, and each row's place
    among these."""
    some = is_partial(layouts)
    first, at = layouts.distinct(COST_AXES, some.astype(np.int64), (layouts.pp > 1).astype(np.int64))
    extras = (*stages.extras, *own_set(problem.model, some))
    return _working_costs(problem, _rank(problem, layouts.take(first)), extras), at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What a layout fixes for every stage, float64 columns; needs COST_AXES, pp and recompute_layers."""

    layouts: Layouts
    tp: Column
    ep: Column
    etp: Column
    tokens: Column
    share: Mapping[str, Column]
    usual: Column
    """recompute set of a layer, but of those that another one computes again"""


def _rank(problem: Problem, layouts: Layouts) -> _Rank:
    tp, ep, etp, cp = (getattr(layouts, name).astype(np.float64) for name in ("tp", "ep", "etp", "cp"))
    return _Rank(
        layouts=layouts,
        tp=tp,
        ep=ep,
        etp=etp,
        tokens=layouts.micro_batch * float(problem.workload.seq_len) / cp,
        share=shares(problem.model, layouts),
        usual=usual_set(layouts),
    )


def unit_bytes(problem: Problem, layout: Layouts, extras: Sequence[str]) -> dict[str, float]:
    """Allocated bytes per unit of each quantity of a stage (`in flight`: per micro-batch in flight), for the one row of
    `layout`."""
    costs = [resident_costs(problem, layout), _working_costs(problem, _rank(problem, layout), extras)]
    found: dict[str, float] = {}
    for name, parts in (item for part in costs for item in part.items()):
        found[name] = found.get(name, 0.0) + sum(float(np.ravel(cost)[0]) for cost in parts.values())
    return found


def resident_costs(problem: Problem, layouts: Layouts) -> Costs:
    """Bytes of training states per unit of each quantity of a stage, by term."""
    model, per, shard = problem.model, state_bytes(problem), shards(problem, layouts)
    tp, ep, etp = (getattr(layouts, name).astype(np.float64) for name in ("tp", "ep", "etp"))
    each = units(model, tp, ep, etp)
    kinds = _kinds(model)
    ends = ["depths"] * bool(model.mtp_layers) + ["positions"] * bool(each["positions"].ends.any())
    costs: Costs = {
        name: dict(zip(RESIDENT, states(per, shard, each[name]), strict=False))
        for name in (*kinds, "matrix", "head", *ends)
    }
    wide = problem.workload.grad_dtype == "fp32"
    bucket = problem.profile.memory.bucket_bytes * wide * (layouts.dp * layouts.cp > 1)
    for name, parts in costs.items():
        parts["gradients"] = parts["gradients"] + bucket * (each[name].dense + each[name].expert)
    costs["ends"] = {"gathered": per.used * (shard.weight[0] > 1.0) * each["matrix"].ends}
    least = problem.profile.memory.gather_buffer
    layers = [_gathered(per, shard, each[kind], least) for kind in kinds]
    costs |= {f"only {kind}": {"gathered": size} for kind, size in zip(kinds, layers, strict=True)}
    if len(layers) == 2:
        costs["dense and moe"] = {"gathered": np.maximum(*layers)}
    return costs


def _working_costs(problem: Problem, rank: _Rank, extras: Sequence[str]) -> Costs:
    """Bytes of activations and buffers per unit of each quantity of a stage, by term."""
    model = problem.model
    costs: Costs = {"head": {"logits": _head(problem, rank)}, "any": {"buffers": _buffers(problem, rank)}}
    if model.mtp_layers:
        costs[f"depths{FLIES}"] = {"activations": rank.tokens * (MTP_INPUTS * model.hidden) * rank.share["residual"]}
    layers = []
    for kind in _kinds(model):
        kept, recomputed = _per_token(problem, rank, rank.usual, kind)
        costs[f"{kind}{FLIES}"] = {"activations": rank.tokens * kept}
        buffers = _moe_buffers(problem, rank) if kind == "moe" else _dense_buffers(problem, rank)
        layers.append((rank.tokens * recomputed, buffers))
        costs[f"only {kind}"] = dict(zip(TRANSIENT, layers[-1], strict=True))
    if len(layers) == 2:
        dense, moe = layers
        costs["dense and moe"] = {"recompute_buffer": np.maximum(dense[0], moe[0]), "buffers": dense[1] + moe[1]}
    for name in (name for name in extras if name != MOVED):
        costs |= _instead(problem, rank, name)
    return costs


def _instead(problem: Problem, rank: _Rank, name: str) -> Costs:
    """What a layer that another recompute set computes again (`KIND:CODE`, `KIND:set`) keeps, and holds at one time,
    more than a usual one."""
    kind, code = name.split(":")
    codes = rank.layouts.recompute if code == SET else np.full_like(rank.layouts.recompute, int(code))
    other, usual = (_per_token(problem, rank, chosen, kind) for chosen in (codes, rank.usual))
    kept, recomputed = (own - less for own, less in zip(other, usual, strict=True))
    return {
        f"{name}{FLIES}": {"activations": rank.tokens * kept},
        f"some {name}": {"recompute_buffer": rank.tokens * np.maximum(recomputed, 0.0)},
    }


def _kinds(model: Model) -> list[str]:
    """Kinds of layer that the model has."""
    return ["dense"] * bool(model.dense_layers) + ["moe"] * bool(model.moe_layers)


def _per_token(problem: Problem, rank: _Rank, codes: Column, kind: str) -> list[Column]:
    """Bytes per token of one layer that these recompute sets hold for: kept, and held at one time."""
    tables = layer_tables(problem, np.flatnonzero(np.bincount(codes)).tolist(), moe=kind == "moe")
    return [per_token(table, codes, rank.share) for table in tables]


def _head(problem: Problem, rank: _Rank) -> Column:
    """At the loss: the logits (of each MTP depth too), the final norm's input and output, the gathered hidden
    state, and the head's weight gradient, which Megatron allocates in bf16 when accumulation is fused, and which a loss
    that keeps no logits computes with them."""
    rates, hidden = problem.profile.memory, problem.model.hidden
    vocab = vocab_per_rank(problem.model, rank.tp)
    logits = rates.logit_bytes * (1.0 + problem.model.mtp_layers) * vocab
    states_in_out = hidden * (4.0 * rank.share["residual"] + 2.0)
    gradient = max(rates.wgrad_buffer, float(rates.logit_bytes == 0.0)) * 2.0 * hidden * vocab
    return rank.tokens * (logits + states_in_out) + gradient


def _buffers(problem: Problem, rank: _Rank) -> Column:
    """On every stage: attention's weight gradient, pipeline send and receive (two tensors each way), one input
    gathered for tensor parallelism."""
    piped = rank.layouts.pp > 1
    tensors = 4.0 * rank.share["residual"] * piped + 2.0 * rank.share["gathered"]
    attention = problem.profile.memory.wgrad_buffer * 2.0 * counts(problem.model).attention
    total: Column = rank.tokens * problem.model.hidden * tensors + attention / rank.tp
    return total


def _dense_buffers(problem: Problem, rank: _Rank) -> Column:
    return wgrad_buffers(problem, rank.tp, rank.etp)[0]


def _moe_buffers(problem: Problem, rank: _Rank) -> Column:
    """Weight gradients, tokens sent to and received from the experts (2 x 2 k c h), dispatch kernels' buffers."""
    model, rates = problem.model, problem.profile.memory
    copies = 4.0 * model.experts_per_token * problem.workload.expert_load * model.hidden
    static = rates.dispatch_buffer * (rank.ep > 1.0)
    wgrad = wgrad_buffers(problem, rank.tp, rank.etp)[1]
    total: Column = rank.tokens * copies * rank.share["routed"] + wgrad + static
    return total


def wgrad_buffers(problem: Problem, tp: Column, etp: Column) -> tuple[Column, Column]:
    """Transformer Engine keeps a bf16 weight gradient per weight shape: the MLP's in a (dense, MoE) layer."""
    rate, parts = 2.0 * problem.profile.memory.wgrad_buffer, counts(problem.model)
    return rate * parts.dense_mlp / tp, rate * (parts.shared / tp + parts.expert / etp)


def _gathered(per: StateBytes, shard: Shards, layer: StageParameters, least: float) -> Column:
    """Two layers un-sharded at a time, in use and prefetched: weights under ZeRO 3, gradients under 2 and 3; each kind
    in a buffer of `least` bytes at least.

    A unit is a transformer layer (Megatron-LM, docs megatron_fsdp.md: at least two units of each). Nothing is
    gathered where the shard group is one rank.
    """
    total = np.zeros(1)
    for group, size in ((shard.weight, per.used + per.copies), (shard.gradient, per.gradient)):
        split = (group[0] > 1.0) * layer.dense + (group[1] > 1.0) * layer.expert
        total = total + np.maximum(2.0 * size * split, least * (group[0] > 1.0))
    return total
