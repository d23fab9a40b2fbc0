"""Memory: what one rank of a pipeline stage needs at its peak, term by term, in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodel.activations import layer_tables, per_token, shares
from costmodel.layouts import SCHEDULES, Column, Layouts
from costmodel.model import Model
from costmodel.params import counts, stage_parameters, vocab_per_rank
from costmodel.problem import Problem
from costmodel.quantity import quantity
from costmodel.split import OWN, StageTable
from costmodel.states import Shards, shards, state_bytes, states

MTP_INPUTS = 8.0
"""Bytes per token and hidden element that an MTP depth keeps beside its layer: two norms, inputs, outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one GPU of the pipeline stage that needs most, float64 columns [B]."""

    weights: Column = quantity("weights, with their copies in low precision", "B")
    gradients: Column = quantity("gradient buffers", "B")
    optimizer: Column = quantity("master weights and moments", "B")
    gathered: Column = quantity("layers gathered (ZeRO 3) and gradients not yet scattered (ZeRO 2, 3)", "B")
    activations: Column = quantity("activations of the micro-batches in flight", "B")
    recompute_buffer: Column = quantity("activations recomputed at one time", "B")
    logits: Column = quantity("output head and logits at the loss, on the last stage", "B")
    buffers: Column = quantity("weight-gradient, pipeline, tensor-parallel and expert-dispatch buffers", "B")
    fragmentation: Column = quantity("reserved by the allocator, not allocated, at the peak", "B")
    overhead: Column = quantity("context, kernels and communicators outside of the allocator", "B")

    @property
    def allocated(self) -> Column:
        """Peak of what the allocator hands out."""
        return _sum([getattr(self, name) for name in ALLOCATED])

    @property
    def reserved(self) -> Column:
        """Peak of what the allocator takes from the GPU."""
        return self.allocated + self.fragmentation

    @property
    def total(self) -> Column:
        """What must fit into the GPU's usable memory."""
        return self.reserved + self.overhead


TERMS: tuple[str, ...] = tuple(term.name for term in fields(Memory))
ALLOCATED: tuple[str, ...] = TERMS[: TERMS.index("fragmentation")]


def memory(problem: Problem, layouts: Layouts, stages: StageTable) -> Memory:
    """Peak memory of each layout, at the stage that needs most; `stages` must hold every pp in use.

    The peak of a stage is the sum of its states, its activations in flight and the transients that meet when
    the first backward pass starts: recomputed layer, head (last stage) and buffers.
    """
    rank = _rank(problem, layouts)
    rows = stages.rows(layouts.pp, rank.dual)
    worst = np.zeros(len(layouts), dtype=np.int64)
    most = _sum(_terms(problem, rank, stages.kind(0, rows)))
    for number in range(1, stages.kinds):
        need = _sum(_terms(problem, rank, stages.kind(number, rows)))
        worst = worst + (need > most) * (number - worst)
        most = np.maximum(most, need)
    stage = {name: values[rows, worst] for name, values in stages.columns.items()}
    terms = _terms(problem, rank, stage)
    rates = problem.profile.memory
    return Memory(
        **dict(zip(ALLOCATED, terms, strict=True)),
        fragmentation=(rates.reserved_ratio - 1.0) * _sum(terms),
        overhead=np.full(len(layouts), rates.overhead),
    )


def in_flight(layouts: Layouts, rank: Column, micro_batches: Column) -> Column:
    """Micro-batches whose activations stage r = `rank` of the pipeline holds at most; float64.

    1F1B and zero-bubble (ZB1P) min(P - r, m); interleaved min(2(P-r-1) + (V-1)P + 1, mV) chunks of 1/V of the
    stage (Megatron-LM schedules.py), P + (P-1)/V at the first; DualPipe runs half of the micro-batches from
    either end, min(P - r, m/2) for each of the two stages on a rank, P + 1 in all (DualPipe README).
    """
    pp, vpp = layouts.pp.astype(np.float64), layouts.vpp.astype(np.float64)
    after = pp - rank
    interleaved = layouts.schedule == SCHEDULES.index("interleaved")
    dual = layouts.schedule == SCHEDULES.index("dualpipe")
    chunks = 2.0 * (after - 1.0) + (vpp - 1.0) * pp + 1.0
    held: Column = np.minimum(after + interleaved * (chunks / vpp - after), micro_batches * (1.0 - 0.5 * dual))
    return held


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What a layout fixes for every stage, float64 columns; pairs are (dense layer, MoE layer)."""

    layouts: Layouts
    tp: Column
    ep: Column
    etp: Column
    dual: Column
    tokens: Column
    micro_batches: Column
    share: Mapping[str, Column]
    shard: Shards
    kept: tuple[Column, Column]
    recomputed: tuple[Column, Column]
    units: tuple[Column, Column]
    wgrad: tuple[Column, Column]


def _rank(problem: Problem, layouts: Layouts) -> _Rank:
    model, work = problem.model, problem.workload
    tp, ep, etp, cp = (getattr(layouts, name).astype(np.float64) for name in ("tp", "ep", "etp", "cp"))
    size = layouts.micro_batch.astype(np.float64)
    share = shares(model, layouts)
    dense, moe = (
        [per_token(table, layouts.recompute, share) for table in layer_tables(problem, moe=moe)]
        for moe in (False, True)
    )
    return _Rank(
        layouts=layouts,
        tp=tp,
        ep=ep,
        etp=etp,
        dual=(layouts.schedule == SCHEDULES.index("dualpipe")).astype(np.int64),
        tokens=size * work.seq_len / cp,
        micro_batches=np.maximum(work.global_batch / (layouts.dp * size), 1.0),
        share=share,
        shard=shards(problem, layouts),
        kept=(dense[0], moe[0]),
        recomputed=(dense[1], moe[1]),
        units=(_unit(problem, layouts, "dense"), _unit(problem, layouts, "moe")),
        wgrad=wgrad_buffers(problem, tp, etp),
    )


def _terms(problem: Problem, rank: _Rank, stage: Mapping[str, Column]) -> list[Column]:
    """The terms of ALLOCATED, in that order, for one stage of each layout."""
    model = problem.model
    held = {name: stage[name] + stage[f"mirror_{name}"] for name in OWN}
    parameters = stage_parameters(model, held, rank.tp, rank.ep, rank.etp)
    has = tuple(np.minimum(count, 1.0) for count in layers(model, held))
    vocab = vocab_per_rank(model, rank.tp)
    unit = np.maximum(has[0] * rank.units[0], has[1] * rank.units[1])
    ends = (rank.layouts.zero_stage == 3) * (rank.layouts.dp_shard > 1) * (held["embedding"] + held["head"])
    recomputed = np.maximum(has[0] * rank.recomputed[0], has[1] * rank.recomputed[1])
    return [
        *states(state_bytes(problem), rank.shard, parameters),
        unit + ends * 2.0 * vocab * model.hidden,
        rank.tokens * _held_tokens(problem, rank, stage),
        rank.tokens * recomputed,
        held["head"] * _head(problem, rank, vocab),
        _buffers(problem, rank, has),
    ]


def layers(model: Model, stage: Mapping[str, Column], prefix: str = "") -> tuple[Column, Column]:
    """(dense, MoE) layers of a stage, those of its multi-token-prediction module included."""
    last_is_moe = model.layer_is_moe[-1]
    mtp = stage[f"{prefix}mtp"]
    return stage[f"{prefix}dense"] + mtp * (not last_is_moe), stage[f"{prefix}moe"] + mtp * last_is_moe


def _held_tokens(problem: Problem, rank: _Rank, stage: Mapping[str, Column]) -> Column:
    """Bytes of activations in flight per token of a micro-batch, over both stages of a DualPipe rank."""
    total = np.zeros(len(rank.tp))
    for prefix, place in (("", stage["rank"]), ("mirror_", rank.layouts.pp - 1.0 - stage["rank"])):
        dense, moe = layers(problem.model, stage, prefix)
        extra = stage[f"{prefix}mtp"] * MTP_INPUTS * problem.model.hidden * rank.share["residual"]
        held = in_flight(rank.layouts, place, rank.micro_batches)
        total = total + held * (dense * rank.kept[0] + moe * rank.kept[1] + extra)
    return total


def _head(problem: Problem, rank: _Rank, vocab: Column) -> Column:
    """At the loss: the logits (of each MTP depth too), the final norm's input and output, the gathered hidden
    state, and the head's weight gradient, which Megatron allocates in bf16 when accumulation is fused."""
    rates, hidden = problem.profile.memory, problem.model.hidden
    logits = rates.logit_bytes * (1.0 + problem.model.mtp_layers) * vocab
    states_in_out = hidden * (4.0 * rank.share["residual"] + 2.0)
    return rank.tokens * (logits + states_in_out) + rates.wgrad_buffer * 2.0 * vocab * hidden


def _buffers(problem: Problem, rank: _Rank, has: tuple[Column, ...]) -> Column:
    """Weight-gradient buffers, pipeline send and receive (2 tensors each way), one gathered tensor-parallel
    input, permuted tokens sent to and received from the experts (2 x 2 k c h), dispatch kernels' buffers."""
    model, rates = problem.model, problem.profile.memory
    residual = 4.0 * rank.share["residual"] * (rank.layouts.pp > 1) + 2.0 * rank.share["gathered"]
    copies = 4.0 * model.experts_per_token * problem.workload.expert_load * rank.share["routed"]
    tokens = rank.tokens * model.hidden * (residual + has[1] * copies)
    static = rates.dispatch_buffer * (rank.ep > 1.0) * has[1]
    attention = rates.wgrad_buffer * 2.0 * counts(model).attention / rank.tp
    wgrad = attention + has[0] * rank.wgrad[0] + has[1] * rank.wgrad[1]
    total: Column = wgrad + tokens + static
    return total


def wgrad_buffers(problem: Problem, tp: Column, etp: Column) -> tuple[Column, Column]:
    """Transformer Engine keeps a bf16 weight gradient per weight shape: the MLP's in a (dense, MoE) layer."""
    rate, parts = 2.0 * problem.profile.memory.wgrad_buffer, counts(problem.model)
    return rate * parts.dense_mlp / tp, rate * (parts.shared / tp + parts.expert / etp)


def _unit(problem: Problem, layouts: Layouts, kind: str) -> Column:
    """Two layers un-sharded at a time, in use and prefetched: weights under ZeRO 3, gradients under 2 and 3.

    A unit is a transformer layer (Megatron-LM, docs megatron_fsdp.md: at least two units of each). Nothing is
    gathered where the shard group is one rank.
    """
    per = state_bytes(problem)
    tp, ep, etp = (getattr(layouts, name).astype(np.float64) for name in ("tp", "ep", "etp"))
    zero = np.zeros(len(layouts))
    stage = {name: zero for name in OWN} | {kind: zero + 1.0}
    layer = stage_parameters(problem.model, stage, tp, ep, etp)
    group = shards(problem, layouts)
    total = zero
    for states_, per_parameter in ((group.weight, per.weight + per.copies), (group.gradient, per.gradient)):
        dense, expert = (states_[0] > 1.0) * layer.dense, (states_[1] > 1.0) * layer.expert
        total = total + 2.0 * per_parameter * (dense + expert)
    return total


def _sum(terms: Sequence[Column]) -> Column:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
