"""FLOPs and bytes of one layer, at the rate that their shapes achieve -> seconds.

Times are per micro-batch and per GPU: GEMMs, fused attention, operators bound by bandwidth, and gaps between kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from costmodel.collectives import leaves_node
from costmodel.flops import attended
from costmodel.gemms import (
    Gemm,
    Shape,
    attention_gemms,
    bandwidth,
    expert_gemms,
    linear,
    mla_up_gemms,
    mlp_gemms,
    pace,
)
from costmodel.held import vocab_per_rank
from costmodel.layouts import Column, Layouts, gather, shard_groups
from costmodel.problem import DTYPE_BYTES, LOW_PRECISIONS, Problem
from costmodel.recompute import RecomputeSet

SWIGLU_WORK = 6.0
ATTENTION_BACKWARD = 2.5
"""Forward FLOPs' multiple in fused attention's backward pass, which computes the scores again."""
TILE = 128.0
CAST_BYTES = 3.0
"""HBM bytes per element of a GEMM's input that its cast to fewer bits moves beyond the kernel that made it: copies by
row and by column are written, one of them from a second read."""
MISALIGNED = 8.0
"""Time of batched products without 16-byte alignment over that with it: BLOOM's tuning runs with heads of 108 and 144
elements take 153 and 110 s, of which attention is 6 s with the latter."""
SCORE_BYTES = 11.0
"""HBM bytes per attention score, causal or not, that unfused attention moves forward: the product writes it, softmax
and dropout read and write it (and a mask), and the product with the values reads it."""
CE_BYTES = 10.0
"""HBM bytes per logit that the fused cross entropy moves."""


@dataclass(frozen=True, slots=True)
class Work:
    """Seconds per micro-batch of a part of the model, float64 columns."""

    forward: Column
    """GEMMs of the forward pass"""
    dgrad: Column
    """GEMMs of the input gradients"""
    wgrad: Column
    """GEMMs of the weight gradients"""
    attention_forward: Column
    attention_backward: Column
    elementwise_forward: Column
    elementwise_backward: Column
    gaps_forward: Column
    """time between kernels, and what lifts a layer to the host's floor"""
    gaps_backward: Column
    recompute: Column
    """forward work done again in the backward pass"""

    @property
    def forward_total(self) -> Column:
        """Forward pass."""
        return self.forward + self.attention_forward + self.elementwise_forward + self.gaps_forward

    @property
    def backward_total(self) -> Column:
        """Backward pass with both gradients and what is recomputed."""
        gradients = self.dgrad + self.wgrad + self.attention_backward
        return gradients + self.elementwise_backward + self.gaps_backward + self.recompute


def _attention_core(problem: Problem, shape: Shape) -> Column:
    """Forward seconds of fused causal attention at a rate of 1 of the peak, corrected for few heads and tokens."""
    model, keys = problem.model, attended(problem.model, float(problem.workload.seq_len))
    per_token = keys * (model.heads / shape.tp) * (model.qk_head_dim + model.value_head_dim)
    tiles = (model.heads / shape.tp) * shape.tokens / TILE
    at_rate = shape.tokens * per_token / (problem.cluster.gpu.peak["bf16"] * pace(problem))
    return at_rate * (1.0 + problem.profile.time.attention_tiles / tiles)


def _misaligned(problem: Problem) -> float:
    """How much longer unfused attention takes where the head size is no multiple of 8 elements, 16 bytes: its batched
    products then miss the tensor cores' alignment. Fused kernels pad the heads."""
    unfused = problem.profile.memory.scores_saved > 0.0
    return MISALIGNED if unfused and problem.model.head_dim % 8 else 1.0


def _scores(problem: Problem, shape: Shape) -> Column:
    """Forward seconds in which unfused attention moves its scores; 0 where attention is fused and keeps none."""
    each = SCORE_BYTES * (problem.profile.memory.scores_saved > 0.0)
    moved = each * (problem.model.heads / shape.tp) * shape.tokens * float(problem.workload.seq_len)
    return moved / bandwidth(problem)


def _elementwise(problem: Problem, shape: Shape, *, moe: bool) -> Column:
    """Forward bytes of a layer's bandwidth-bound operators: norms, residuals, RoPE, activation, permutation."""
    model = problem.model
    norms = (2 * 4 + 2 * 6) * model.hidden / shape.norm_split
    cast = CAST_BYTES * (problem.workload.precision in LOW_PRECISIONS)
    inputs = cast * (2.0 * model.hidden + model.heads * model.value_head_dim / shape.tp)
    around = norms + _rope(problem, shape) + inputs
    activation = SWIGLU_WORK + cast
    if not moe:
        return shape.tokens * (around + activation * model.ffn_hidden / shape.tp)
    routed = _routed(problem) + activation * model.experts_per_token * model.expert_ffn_hidden
    experts = problem.workload.expert_load * routed
    return shape.tokens * (around + (experts + activation * model.shared_ffn_hidden) / shape.tp)


def _rope(problem: Problem, shape: Shape) -> Column:
    """Bytes per token of RoPE: queries and keys are read and written."""
    return 4.0 * (problem.model.heads + problem.model.kv_heads) * problem.model.qk_head_dim / shape.tp


def _routed(problem: Problem) -> float:
    """Bytes per token that its copies for the experts move: permutation, padding, dispatch buffers and casts.

    MoE in mxfp8 became 1.2 to 1.5 times as fast over releases while bf16 stood still, by time that goes with the bytes
    of routed tokens and neither with experts nor with FLOPs (Qwen3-30B, DeepSeek-V3; NVIDIA-NeMo/Megatron-Bridge
    performance summaries): casts that were kernels of their own joined others.
    """
    rates, low = problem.profile.time, problem.workload.precision in LOW_PRECISIONS
    cast = low * rates.routed_cast * (1.0 + rates.routed_behind * problem.lag)
    return problem.model.experts_per_token * problem.model.hidden * (rates.routed_bytes + cast)


KERNELS = {"attention": 8.0, "mlp": 6.0, "moe": 24.0, "ring": 6.0}
"""Kernels launched per pass: norm, projections, RoPE, attention; MLP with norm and residual; router, permutation,
grouped GEMMs and shared experts; each further step of a context-parallel ring, attention in two halves, corrected and
merged. The backward pass launches twice as many."""


WORK_AXES = ("tp", "cp", "ep", "etp", "micro_batch", "sequence_parallel")
"""Axes that the work and the collectives of a layer depend on, recomputation apart."""
DENSE_AXES = ("tp", "cp", "micro_batch")
"""Those that GEMMs outside of the experts and the ring of keys and values depend on."""


def layer_work(problem: Problem, layouts: Layouts, *, moe: bool) -> Work:
    """Seconds of one transformer layer and micro-batch, without communication."""
    first, rows = layouts.distinct(WORK_AXES)
    work, modules = _layer_work(problem, layouts.take(first).only(WORK_AXES), moe=moe)
    sets, place = np.unique(layouts.recompute, return_inverse=True)
    chosen = [problem.profile.recompute[code] for code in sets]
    again = np.stack([_again(work, modules, choice) for choice in chosen])
    return replace(gather(work, rows), recompute=again[place, rows])


def _again(work: Work, modules: dict[str, Column], choice: RecomputeSet) -> Column:
    """Seconds that a recompute set repeats in the backward pass, `modules` those of each module."""
    total = np.zeros_like(work.forward)
    for part in [work.forward_total] if choice.full else [modules[module] for module in choice.outermost]:
        total = total + part
    return total


def _layer_work(problem: Problem, layouts: Layouts, *, moe: bool) -> tuple[Work, dict[str, Column]]:
    """A layer's work without recomputation, and what each module takes that is computed again."""
    shape, rates, model = Shape.of(problem, layouts), problem.profile.time, problem.model

    def dense(gemms: Callable[..., list[Gemm]], *width: int) -> tuple[Column, Column, Column]:
        return layouts.once(DENSE_AXES, lambda few: linear(problem, gemms(problem, Shape.of(problem, few), *width)))

    attention = dense(attention_gemms)
    shared = np.zeros_like(shape.tokens)
    if moe:
        feed = linear(problem, expert_gemms(problem, shape))
        if model.shared_ffn_hidden:
            beside = dense(mlp_gemms, model.shared_ffn_hidden)
            feed, shared = (feed[0] + beside[0], feed[1] + beside[1], feed[2] + beside[2]), beside[0]
    else:
        feed = dense(mlp_gemms, model.ffn_hidden)
    core, scores = _attention_core(problem, shape) * _misaligned(problem), _scores(problem, shape)
    moved = _elementwise(problem, shape, moe=moe) / bandwidth(problem)
    kernels = KERNELS["attention"] + KERNELS["moe" if moe else "mlp"] + KERNELS["ring"] * (shape.cp - 1.0)
    gaps = rates.kernel * kernels
    work = Work(
        forward=attention[0] + feed[0],
        dgrad=attention[1] + feed[1],
        wgrad=attention[2] + feed[2],
        attention_forward=core / rates.attention_forward + scores,
        attention_backward=ATTENTION_BACKWARD * core / rates.attention_backward + 2.0 * scores,
        elementwise_forward=moved,
        elementwise_backward=2.0 * moved,
        gaps_forward=gaps,
        gaps_backward=2.0 * gaps,
        recompute=np.zeros_like(core),
    )
    return work, _modules(problem, layouts, work, feed[0], shared, moe=moe)


def wait_for_host(problem: Problem, layouts: Layouts, work: Work, forward: Column, backward: Column) -> Work:
    """The layer's work with gaps that lift each pass to the host's floor; `forward`, `backward`: exposed traffic.

    A layer whose kernels are shorter than their launches takes the host's time, whatever its size; collectives of
    tensor parallelism launch in lock-step, so the slowest of TP hosts counts. The backward pass launches two passes'
    kernels, and those of a layer that it recomputes.
    """
    rates = problem.profile.time
    tp = layouts.tp.astype(np.float64)
    each = rates.tp_floor + leaves_node(problem.links, tp) * (rates.tp_floor_network - rates.tp_floor)
    floor = rates.layer_floor + each * (tp - 1.0)
    missing = np.maximum(floor - work.forward_total - forward, 0.0)
    passes = 2.0 + whole_layer_again(problem, layouts)
    missing_backward = np.maximum(passes * floor - work.backward_total - backward, 0.0)
    return replace(work, gaps_forward=work.gaps_forward + missing, gaps_backward=work.gaps_backward + missing_backward)


def whole_layer_again(problem: Problem, layouts: Layouts) -> Column:
    """1 where the row's recompute set runs whole layers again, their collectives included."""
    full = np.array([1.0 * choice.full for choice in problem.profile.recompute])
    again: Column = full[layouts.recompute]
    return again


def _modules(
    problem: Problem, layouts: Layouts, work: Work, feed: Column, shared: Column, *, moe: bool
) -> dict[str, Column]:
    """Seconds of forward work by module; `feed` and `shared` are the forward GEMMs of the MLP or experts, and of the
    shared experts among them."""
    shape, model, rate = Shape.of(problem, layouts), problem.model, bandwidth(problem)
    t = shape.tokens
    width = model.experts_per_token * model.expert_ffn_hidden if moe else model.ffn_hidden
    cast = CAST_BYTES * (problem.workload.precision in LOW_PRECISIONS)
    activation = (SWIGLU_WORK + cast) * t * width / shape.tp / rate
    routed = problem.workload.expert_load * _routed(problem) * t / shape.tp / rate
    latent = _rope(problem, shape) * t / rate
    zero = up = np.zeros_like(t)
    if model.attention == "mla":
        gemms = layouts.once(DENSE_AXES, lambda few: linear(problem, mla_up_gemms(problem, Shape.of(problem, few))))
        up = gemms[0] + latent
    return {
        "layernorm": 8.0 * model.hidden * t / shape.norm_split / rate,
        "activation": zero if moe else activation,
        "moe_act": activation if moe else zero,
        "core_attn": work.attention_forward,
        "mla_up_proj": up,
        "mlp": zero if moe else feed + activation,
        "shared_experts": shared,
        "moe": feed + activation + routed if moe else zero,
        "second_matmul": 0.5 * (work.forward - feed) + (zero if moe else feed / 3.0 + activation),
    }


def head_work(problem: Problem, layouts: Layouts) -> Work:
    """Seconds of the output projection and the cross entropy, per micro-batch."""
    shape, model = Shape.of(problem, layouts), problem.model
    h = model.hidden * np.ones_like(shape.tokens)
    vocab = vocab_per_rank(model, shape.tp)
    forward, dgrad, wgrad = linear(problem, [Gemm(shape.tokens, vocab, h)])
    loss = CE_BYTES * shape.tokens * vocab / (bandwidth(problem) * problem.profile.time.loss_bandwidth)
    zero = np.zeros_like(loss)
    gaps = 6.0 * problem.profile.time.kernel * np.ones_like(loss)
    return Work(forward, dgrad, wgrad, zero, zero, 0.5 * loss, 0.5 * loss, gaps, 2.0 * gaps, zero)


def mtp_projection(problem: Problem, layouts: Layouts) -> Work:
    """Seconds of the projection 2h -> h before a multi-token-prediction layer."""
    shape = Shape.of(problem, layouts)
    h = problem.model.hidden * np.ones_like(shape.tokens)
    forward, dgrad, wgrad = linear(problem, [Gemm(shape.tokens, h / shape.tp, 2.0 * h)])
    return Work(forward, dgrad, wgrad, *(np.zeros_like(h),) * 7)


def embedding_work(problem: Problem, layouts: Layouts) -> Work:
    """Seconds of the embedding lookup and its gradient, per micro-batch."""
    shape = Shape.of(problem, layouts)
    zero = np.zeros_like(shape.tokens)
    moved = 4.0 * problem.model.hidden * shape.tokens / shape.norm_split / bandwidth(problem)
    return Work(zero, zero, zero, zero, zero, moved, 2.0 * moved, zero, zero, zero)


def optimizer_seconds(problem: Problem, layouts: Layouts, dense: Column, expert: Column) -> Column:
    """Seconds of the Adam step for a rank that holds `dense` and `expert` parameters.

    Per parameter of its shard: read gradient, master and two moments, write the latter three and the 16-bit weight
    (30 B with fp32 moments); per parameter it holds: read the gradient for its norm and zero it.
    """
    workload = problem.workload
    gradient, moment = DTYPE_BYTES[workload.grad_dtype], DTYPE_BYTES[workload.moments_dtype]
    sharded = 1.0 * (layouts.zero_stage >= 1)
    shard, expert_shard = shard_groups(layouts)
    own = dense / (1.0 + sharded * (shard - 1.0)) + expert / (1.0 + sharded * (expert_shard - 1.0))
    moved = own * (gradient + 2.0 * 4.0 + 4.0 * moment + 2.0) + (dense + expert) * 2.0 * gradient
    return moved / (bandwidth(problem) * problem.profile.time.optimizer)


def exchange_seconds(problem: Problem, layouts: Layouts, layers: Column) -> Column:
    """Seconds in which data parallelism exchanges the gradients or shards of `layers` layers, beyond the bytes' time.

    Frameworks that scatter and gather ZeRO-1's shards tensor by tensor pay host time for each layer and, for each, a
    ring over all ranks that share the states: nanotron's step grows by 3 to 10 ms a layer from 16 to 256 of them.
    Gradients that are all-reduced beside the last backward pass meet its six tensor-parallel rings a layer where these
    leave the node: they take twice their steps. Without ZeRO nanotron's step is 4 ms a layer longer at TP 16, 9 at 32.
    """
    rates, (shard, _) = problem.profile.time, shard_groups(layouts)
    tp, together = layouts.tp.astype(np.float64), 1.0 * (shard > 1.0)
    sharded = together * (layouts.zero_stage >= 1) * (layouts.zero_stage < 3)
    whole = together * (layouts.zero_stage == 0) * leaves_node(problem.cluster, tp)
    exchange = sharded * (rates.shard_layer + rates.ring_step * (shard - 1.0))
    seconds: Column = layers * (exchange + whole * 6.0 * rates.ring_step * (tp - 1.0))
    return seconds
