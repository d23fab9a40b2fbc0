"""What tensor, context, expert, pipeline and data parallelism send: bytes, group, exposed seconds.

Ranks are laid TP innermost, then CP, DP, PP outermost, or PP before DP (`Layouts.rank_order`); expert parallelism has
its own grid on the same ranks: ETP innermost, then EP, then expert data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.collectives import Runs, collective, leaves_node, members, point_to_point
from costmodel.compute import DENSE_AXES, WORK_AXES, Work, whole_layer_again
from costmodel.gemms import Shape
from costmodel.layouts import Column, Layouts, shard_groups, stages_inside
from costmodel.problem import DTYPE_BYTES, Problem
from costmodel.schedule import is_dual

ACTIVATION = 2.0
"""bytes per element of activations on the wire"""


@dataclass(frozen=True, slots=True)
class LayerTraffic:
    """Exposed seconds per layer and micro-batch, float64 columns."""

    tp_forward: Column
    tp_backward: Column
    cp_forward: Column
    cp_backward: Column
    ep_forward: Column
    ep_backward: Column

    @property
    def forward(self) -> Column:
        """Exposed in the forward pass."""
        return self.tp_forward + self.cp_forward + self.ep_forward

    @property
    def backward(self) -> Column:
        """Exposed in the backward pass."""
        return self.tp_backward + self.cp_backward + self.ep_backward


def network_share(problem: Problem) -> float:
    """Share of the network's bandwidth that a job gets: less with its nodes where all of them share some links.

    nanotron's sweep logged for its slow state an all-reduce over all GPUs at 331, 160, 92, 50, 27 and 13 GB/s on 2 to
    64 nodes, and half as much for a gather.
    """
    rates, nodes = problem.profile.time, problem.workload.gpus / problem.cluster.gpus_per_node
    return rates.network * float(max(nodes / 2.0, 1.0) ** -rates.network_taper)


def exposed(seconds: Column, beside: Column, overlap: float | Column, contention: float) -> Column:
    """What stays of communication that runs beside `overlap` of some compute, which it slows by `contention`."""
    return seconds - (1.0 - contention) * np.minimum(seconds, overlap * beside)


def tensor_parallel(problem: Problem, layouts: Layouts, shape: Shape, *, moe: bool) -> tuple[Column, Column]:
    """Forward and backward seconds of a layer's TP collectives.

    With sequence parallelism each of the two blocks gathers its input and scatters its output, and the backward pass
    gathers again for the weight gradient; without, each pass all-reduces twice (Megatron-LM; Korthikanti 2205.05198).
    An MoE layer's block has them only for its shared experts; its routed experts use the expert-TP group. Across nodes
    each step of a ring takes its own time, whatever its bytes: on 16 and 32 GPUs nanotron's layers take 7 and 15 ms
    more than on 8, from a hidden size of 2,048 to one of 8,192. No GEMM hides it.
    """
    model, cluster, network = problem.model, problem.links, network_share(problem)
    one = np.ones_like(shape.tokens)
    blocks = 1.0 + (1.0 * (model.shared_ffn_hidden > 0) if moe else 1.0)

    def run(op: str, bytes_: Column, size: Column) -> Column:
        return collective(cluster, op, bytes_, size, one, network=network)

    sequence = layouts.sequence_parallel.astype(np.float64)
    gather, scatter, reduce = layouts.once(DENSE_AXES, lambda few: _whole_input(problem, Shape.of(problem, few)))
    forward = blocks * (sequence * (gather + scatter) + (1.0 - sequence) * reduce)
    backward = blocks * (sequence * (2.0 * gather + scatter) + (1.0 - sequence) * reduce)
    if moe:
        routed = ACTIVATION * shape.dispatched * model.experts_per_token * model.hidden * shape.etp
        again = run("all_gather", routed, shape.etp) + run("reduce_scatter", routed, shape.etp)
        forward, backward = forward + again, backward + again
    keep = 1.0 - _tp_overlap(problem)
    steps = blocks * leaves_node(cluster, shape.tp) * (shape.tp - 1.0) * problem.profile.time.ring_step
    return keep * forward + 2.0 * steps, keep * backward + (2.0 + sequence) * steps


def _tp_overlap(problem: Problem) -> float:
    """Share of tensor-parallel traffic that is hidden."""
    rates = problem.profile.time
    return rates.tp_overlap_async if problem.workload.tensor_overlap else rates.tp_overlap


def _whole_input(problem: Problem, shape: Shape) -> tuple[Column, Column, Column]:
    """Seconds to gather, to reduce-scatter and to all-reduce a layer's input over the TP group."""
    volume, one = ACTIVATION * shape.tokens * problem.model.hidden, np.ones_like(shape.tokens)

    def run(op: str) -> Column:
        return collective(problem.links, op, volume, shape.tp, one, network=network_share(problem))

    return run("all_gather"), run("reduce_scatter"), run("all_reduce")


def context_parallel(problem: Problem, shape: Shape) -> Column:
    """Forward seconds of the key-value ring: C - 1 hops that send a rank's keys and values on (backward twice)."""
    model = problem.model
    heads = np.maximum((model.heads if model.attention == "mla" else model.kv_heads) / shape.tp, 1.0)
    hop = ACTIVATION * shape.tokens * heads * (model.qk_head_dim + model.value_head_dim)
    one_hop = point_to_point(problem.links, hop, shape.cp, shape.tp, network=network_share(problem))
    return (shape.cp - 1.0) * one_hop


def expert_dispatch(problem: Problem, shape: Shape, bytes_per_element: float) -> Column:
    """Seconds of one all-to-all of routed tokens over the EP group.

    A rank sends each of its tokens k times (1/E_p of them to itself). Kernels that know the nodes send a token once to
    each node that holds its experts and fan out over the fast links there; `routed_nodes` limits these nodes.
    """
    model, cluster, rates = problem.model, problem.links, problem.profile.time
    k = float(model.experts_per_token)
    element = bytes_per_element * shape.dispatched * model.hidden * problem.workload.expert_load
    plain = collective(cluster, "all_to_all", element * k, shape.ep, shape.etp, network=network_share(problem))
    if problem.workload.plain_dispatch or not rates.node_dedup:
        return plain
    inside = members(cluster.levels[0], shape.ep, shape.etp)
    nodes = np.ceil(shape.ep / inside)
    reached = nodes * (1.0 - (1.0 - 1.0 / nodes) ** k)
    if problem.workload.routed_nodes:
        reached = np.minimum(reached, float(problem.workload.routed_nodes))
    copies = reached * (nodes - 1.0) / nodes
    across = collective(
        cluster,
        "all_to_all",
        element * copies * nodes / np.maximum(nodes - 1.0, 1.0),
        nodes,
        shape.etp * inside,
        network=network_share(problem),
    )
    fan = collective(cluster, "all_to_all", element * k, inside, shape.etp)
    seconds: Column = (nodes > 1.0) * np.maximum(across, fan) + (nodes <= 1.0) * plain
    return seconds


def layer_traffic(problem: Problem, layouts: Layouts, work: Work, *, moe: bool) -> LayerTraffic:
    """Exposed communication of one transformer layer and micro-batch."""
    rates = problem.profile.time
    tp_forward, tp_backward, ring, dispatch = layouts.once(WORK_AXES, lambda few: _layer_sends(problem, few, moe=moe))
    cp_forward = exposed(ring, work.attention_forward, rates.cp_overlap, rates.contention)
    cp_backward = exposed(2.0 * ring, work.attention_backward, rates.cp_overlap, rates.contention)
    paired = np.maximum(is_dual(layouts), problem.workload.expert_overlap)
    overlap = rates.ep_overlap + paired * (rates.ep_overlap_dualpipe - rates.ep_overlap)
    ep_forward = exposed(dispatch, work.forward_total, overlap, rates.contention)
    ep_backward = exposed(dispatch, work.backward_total, overlap, rates.contention)
    again = whole_layer_again(problem, layouts)
    return LayerTraffic(
        tp_forward, tp_backward + again * tp_forward, cp_forward, cp_backward + again * cp_forward,
        ep_forward, ep_backward + _experts_again(problem, layouts) * ep_forward,
    )  # fmt: skip


def _layer_sends(problem: Problem, layouts: Layouts, *, moe: bool) -> tuple[Column, Column, Column, Column]:
    """Seconds of a layer's collectives: TP forward and backward, the ring, and tokens to the experts and back."""
    shape, rates = Shape.of(problem, layouts), problem.profile.time
    forward, backward = tensor_parallel(problem, layouts, shape, moe=moe)
    ring = layouts.once(DENSE_AXES, lambda few: context_parallel(problem, Shape.of(problem, few)))
    if not moe:
        return forward, backward, ring, np.zeros_like(ring)
    there = expert_dispatch(problem, shape, rates.dispatch_bytes)
    return forward, backward, ring, there + expert_dispatch(problem, shape, rates.combine_bytes)


def _experts_again(problem: Problem, layouts: Layouts) -> Column:
    """1 where the row's recompute set runs experts again, dispatch and combine included."""
    sets = [choice.full or "moe" in choice.modules for choice in problem.profile.recompute]
    return np.array(sets, dtype=np.float64)[layouts.recompute]


def head_traffic(problem: Problem, layouts: Layouts) -> LayerTraffic:
    """Exposed TP collectives at the head: its input is gathered, and the gradient of it scattered (or all-reduced)."""
    shape, keep = Shape.of(problem, layouts), 1.0 - _tp_overlap(problem)
    zero = np.zeros_like(shape.tokens)
    sequence = layouts.sequence_parallel.astype(np.float64)
    gather, scatter, reduce = _whole_input(problem, shape)
    forward = keep * sequence * gather
    backward = keep * (sequence * (gather + scatter) + (1.0 - sequence) * reduce)
    return LayerTraffic(forward, backward, zero, zero, zero, zero)


def no_traffic(layouts: Layouts) -> LayerTraffic:
    """For parts that send nothing."""
    return LayerTraffic(*(np.zeros(len(layouts)),) * 6)


def pipeline_send(problem: Problem, layouts: Layouts) -> Column:
    """Seconds to hand one micro-batch's activations to the next stage: 2 t h bytes, a share of them by each TP rank.

    Sequence parallelism has split them; without it Megatron scatters and gathers them (2104.04473, section 4.1).
    """
    shape = Shape.of(problem, layouts)
    between = np.where(stages_inside(layouts) == 1, 1.0, layouts.dp.astype(np.float64))
    stride = shape.tp * shape.cp * between
    volume = ACTIVATION * shape.tokens * problem.model.hidden / shape.tp
    pp = layouts.pp.astype(np.float64)
    return point_to_point(problem.links, volume, pp, stride, network=network_share(problem))


@dataclass(frozen=True, slots=True)
class DataTraffic:
    """Seconds per step of data-parallel collectives by what they may hide behind, float64 columns."""

    gather_forward: Column
    """weights gathered during the first forward pass (ZeRO-1, 2) or during each (ZeRO-3: for one micro-batch)"""
    gather_backward: Column
    """weights gathered again in each backward pass (ZeRO-3, one micro-batch)"""
    reduce_last: Column
    """gradients reduced once a step, during the last backward pass"""
    reduce_each: Column
    """gradients reduced in each backward pass (ZeRO-2 and 3, one micro-batch)"""


def data_parallel(problem: Problem, layouts: Layouts, dense: Column, expert: Column) -> DataTraffic:
    """Data-parallel traffic of a rank that holds `dense` and `expert` parameters.

    ZeRO-0 all-reduces gradients; ZeRO-1 reduce-scatters them and gathers weights once a step; ZeRO-3 gathers weights
    twice and reduce-scatters gradients for every micro-batch (three volumes, ZeRO 1910.02054). Where states are
    sharded over fewer ranks than hold copies (HSDP), the shards are all-reduced over the replicas.
    """
    tp, cp, etp = (getattr(layouts, axis).astype(np.float64) for axis in ("tp", "cp", "etp"))
    copies, groups = layouts.dp * cp, layouts.ep * etp
    shard, expert_shard = shard_groups(layouts)
    gap = np.where(stages_inside(layouts) == 1, layouts.pp.astype(np.float64), 1.0)
    parts = [_Held(dense, copies, shard, tp, np.where(gap > 1.0, cp, 1.0), gap)]
    if problem.model.is_moe:
        experts = np.maximum(copies * tp / groups, 1.0)
        parts.append(_Held(expert, experts, expert_shard, groups, np.ones_like(tp), gap))
    zero = np.zeros_like(tp)
    total = DataTraffic(zero, zero, zero, zero)
    for part in parts:
        one = _states_traffic(problem, layouts.zero_stage, part)
        total = DataTraffic(*(getattr(total, f.name) + getattr(one, f.name) for f in fields(DataTraffic)))
    return total


@dataclass(frozen=True, slots=True)
class _Held:
    """One kind of parameters: `copies` ranks hold them, `shard` of these share the states. They lie `stride` apart in
    runs of `beside` (those of context parallelism), with `gap` stages between the runs."""

    parameters: Column
    copies: Column
    shard: Column
    stride: Column
    beside: Column
    gap: Column

    def runs(self, size: Column, step: Column) -> Runs:
        """Of a group of `size` that takes every `step`-th of the ranks."""
        length = np.maximum(np.floor(self.beside / step), 1.0)
        whole = np.gcd(length.astype(np.int64), np.rint(size).astype(np.int64))
        return Runs(whole.astype(np.float64), self.gap)


def _states_traffic(problem: Problem, stage: Column, held: _Held) -> DataTraffic:
    """Traffic of one kind of parameters."""
    network, shard, copies = network_share(problem), held.shard, held.copies
    gradient = DTYPE_BYTES[problem.workload.grad_dtype] * held.parameters
    weight = ACTIVATION * held.parameters
    one, replicas = np.ones_like(shard), copies / shard

    def run(op: str, volume: Column, size: Column, step: Column) -> Column:
        runs = held.runs(size, step)
        return collective(problem.links, op, volume, size, held.stride * step, network=network, runs=runs)

    plain = run("all_reduce", gradient, copies, one)
    scatter = run("reduce_scatter", gradient, shard, one) + run("all_reduce", gradient / shard, replicas, shard)
    gather = run("all_gather", weight, shard, one)
    sharded, third = 1.0 * (stage >= 1), 1.0 * (stage == 3)
    each = third if problem.profile.gradients_in_step else 1.0 * (stage >= 2)
    return DataTraffic(
        gather_forward=sharded * gather,
        gather_backward=third * gather,
        reduce_last=(1.0 - sharded) * plain + (sharded - each) * scatter,
        reduce_each=each * scatter,
    )
