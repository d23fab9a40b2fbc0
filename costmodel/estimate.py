"""estimate(): what a table of layouts costs in memory and time; the one entry point of the cost model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np

from costmodel import compute, flops, params, schedule, traffic
from costmodel.compute import DENSE_AXES, WORK_AXES, Work
from costmodel.layouts import Column, Layouts, gather, is_partial, usual_set
from costmodel.memory import Memory, memory
from costmodel.problem import Problem
from costmodel.quantity import quantity
from costmodel.split import MOVED, SET, StageTable, own_set
from costmodel.synchronise import Sync, exposed, synchronisation
from costmodel.traffic import LayerTraffic

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Where a step's time goes on the slowest pipeline stage; float64 columns, seconds per step."""

    gemm: Column = quantity("matrix multiplications of the forward and backward pass", "s", light="gpu")
    attention: Column = quantity("fused attention, forward and backward", "s", light="gpu")
    elementwise: Column = quantity(
        "bandwidth-bound operators: norms, activation functions, RoPE, permutation, loss", "s", light="gpu"
    )
    kernel_gaps: Column = quantity("gaps between kernels and layers that wait for the host", "s")
    recompute: Column = quantity("forward work done again in the backward pass", "s", light="gpu")
    tensor_parallel: Column = quantity("exposed tensor-parallel collectives", "s", light="links")
    context_parallel: Column = quantity("exposed context-parallel traffic", "s", light="links")
    expert_parallel: Column = quantity("exposed expert-parallel all-to-all", "s", light="links")
    pipeline_send: Column = quantity("exposed point-to-point sends between pipeline stages", "s", light="links")
    data_parallel: Column = quantity("exposed gradient reduction and weight gathering", "s", light="links")
    bubble: Column = quantity("waiting for other pipeline stages", "s")
    optimizer: Column = quantity("optimizer step", "s", light="gpu")
    overhead: Column = quantity("stragglers, data, logging and synchronisation", "s")

    @property
    def total(self) -> Column:
        """Step time, to rounding."""
        return _sum(getattr(self, term.name) for term in fields(self))

    @property
    def communication(self) -> Column:
        """Exposed communication."""
        inner = self.tensor_parallel + self.context_parallel + self.expert_parallel
        return inner + self.pipeline_send + self.data_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What N layouts cost, float64 columns; row i equals the estimate of a table that holds row i alone."""

    time: Time
    memory: Memory
    step_time: Column = quantity("time of one optimizer step", "s")
    mfu: Column = quantity("model FLOPs per second and GPU over the peak", "1")
    tokens_per_second_per_gpu: Column = quantity("training throughput", "1/s")
    communication_overhead: Column = quantity("exposed communication over step time", "1")
    memory_total: Column = quantity("memory that must fit, allocator slack and framework included", "B")
    memory_headroom: Column = quantity("usable memory minus memory", "B")

    def take(self, rows: Column) -> Estimate:
        """The rows that an index array or a boolean mask selects."""
        return _take(self, rows)


def _take(tree: T, rows: Column) -> T:
    parts = {}
    for part in fields(tree):  # type: ignore[arg-type]
        value = getattr(tree, part.name)
        parts[part.name] = value[rows] if isinstance(value, np.ndarray) else _take(value, rows)
    return type(tree)(**parts)


PASSES = tuple(part.name for part in fields(Time)[:8])
"""Terms of the passes of a micro-batch, which a layer has by itself."""

LAYER_AXES = (*WORK_AXES, "recompute", "schedule")
"""Axes that a layer's time depends on (of the schedule, whether it is DualPipe)."""
END_AXES = (*DENSE_AXES, "sequence_parallel")
"""Axes that the embedding, the head and a multi-token prediction's projection depend on."""
SEND_AXES = (*WORK_AXES, "pp", "dp", "rank_order")
"""Axes that a hop of the pipeline depends on."""


@dataclass(frozen=True, slots=True)
class Part:
    """One layer, or one end of the pipeline, per micro-batch: rows of seconds by column."""

    passes: Column
    """forward, backward, and the weight-gradient part of the backward pass; shape (3, N)"""
    terms: Column
    """PASSES, shape (8, N); (0, N) if they are not asked for"""

    def whole(self) -> Part:
        """Without the terms."""
        return Part(self.passes, self.terms[:0])


def estimate(problem: Problem, layouts: Layouts, stages: StageTable | None = None) -> Estimate:
    """Memory, step time and MFU of every row of `layouts`.

    `stages` is the split of layers over pipeline stages, by default the closed-form one. Pure and elementwise: no
    row depends on another. The layouts are taken as given; whether they may run is for the rules of the search.
    """
    stages = stages or problem.split(np.unique(layouts.pp).tolist())
    needed = memory(problem, layouts, stages)
    passes = passes_of(problem, layouts, stages)
    spent = spend(problem, layouts, layouts, passes, synchronisation(problem, layouts, stages, passes.slowest))
    time, total = spent.terms(problem, passes), seconds_of(problem, spent.own + spent.shared)
    tokens = throughput(problem, total)
    return Estimate(
        time=time,
        memory=needed,
        step_time=total,
        mfu=mfu(problem, tokens),
        tokens_per_second_per_gpu=tokens,
        communication_overhead=time.communication / total,
        memory_total=needed.total,
        memory_headroom=problem.cluster.gpu.usable_memory - needed.total,
    )


def throughput(problem: Problem, step: Column) -> Column:
    """Tokens per second and GPU where a step takes `step` seconds."""
    rate: Column = problem.tokens / (step * problem.workload.gpus)
    return rate


def mfu(problem: Problem, tokens: Column) -> Column:
    """Model FLOPs per second and GPU over the peak, where `tokens` are trained per second and GPU."""
    workload, active = problem.workload, float(params.active(problem.model))
    per_token = flops.step_flops_per_token(problem.model, workload.seq_len, workload.flops_convention, active)
    share: Column = tokens * per_token / problem.peak
    return share


def step_time(problem: Problem, layouts: Layouts, stages: StageTable) -> Time:
    """Seconds per step by term, on the stage that is slowest; `bubble` is what it waits for the others."""
    return step_of(problem, layouts, stages, passes_of(problem, layouts, stages))


def step_of(problem: Problem, layouts: Layouts, stages: StageTable, passes: Passes) -> Time:
    """`step_time` where the passes of a micro-batch are known."""
    spent = spend(problem, layouts, layouts, passes, synchronisation(problem, layouts, stages, passes.slowest))
    return spent.terms(problem, passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """A micro-batch on the stages of a pipeline, seconds; needs neither vpp, zero_stage nor dp_shard."""

    micro_batches: Column
    slowest: Column
    """kind of the slowest stage"""
    own: Column
    """on it: forward, backward, and the weight-gradient part of the backward pass; shape (3, N)"""
    waits: schedule.Waits
    """of a step"""
    work: Column
    """all micro-batches on the slowest stage"""
    terms: Column
    """PASSES, which these add up to, shape (8, N); (0, N) if they are not asked for"""
    send: Column
    """activations handed to the next stage"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of a step without its overhead, by what they depend on; columns have the shape of that."""

    work: Column
    sends: Column
    waits: Column
    exposed: Column
    alone: Column
    optimizer: Column

    @property
    def own(self) -> Column:
        """What a micro-batch's passes and the pipeline take; whatever ZeRO does."""
        seconds: Column = self.work + (self.sends + self.waits)
        return seconds

    @property
    def shared(self) -> Column:
        """What data parallelism and the optimizer take; whatever vpp and the schedule are, but for DualPipe."""
        return self.exposed + self.alone

    def terms(self, problem: Problem, passes: Passes) -> Time:
        """Term by term."""
        return Time(
            **dict(zip(PASSES, passes.terms, strict=True)),
            pipeline_send=self.sends,
            data_parallel=self.exposed + (self.alone - self.optimizer),
            bubble=self.waits,
            optimizer=self.optimizer,
            overhead=overhead(problem, self.own + self.shared),
        )


def passes_of(
    problem: Problem,
    layouts: Layouts,
    stages: StageTable,
    parts: dict[str, Part] | None = None,
    schedules: Column | None = None,
) -> Passes:
    """The passes of one micro-batch on the slowest stage, and what it waits for; `parts` if they are known, and the
    `schedules` to look for if they are not the rows' own."""
    layouts = stages.told(layouts)
    dual, some = schedule.is_dual(layouts), layouts.recompute_layers
    rows = stages.rows(layouts)
    parts = parts or gather(*distinct_parts(problem, layouts, stages))
    partial = any(name.endswith(SET) for name in parts)
    ranks = (layouts.micro_batch * layouts.dp).astype(np.float64)
    seen = _Stages(len(layouts))
    for number in stages.present(layouts):
        kind = stages.kind(number, rows) | (stages.some(number, rows, some) if partial else {})
        seen.add(number, _on_rank(parts, kind, dual, "passes"), kind)
    place = rows * stages.kinds + seen.slowest
    stage = {name: values.take(place) for name, values in stages.columns.items()}
    if partial:
        stage |= stages.some(seen.slowest, rows, some)
    micro_batches = float(problem.workload.global_batch) / ranks
    kinds = (np.stack(part) for part in (seen.each, seen.through, seen.later))
    path = schedule.Path(micro_batches, layouts.pp.astype(np.float64), *kinds)
    return Passes(
        micro_batches=micro_batches,
        slowest=seen.slowest,
        own=seen.own,
        waits=path.waits(layouts.schedule if schedules is None else schedules),
        work=micro_batches * (seen.own[0] + seen.own[1]),
        terms=micro_batches * _on_rank(parts, stage, dual, "terms"),
        send=layouts.once(SEND_AXES, lambda few: traffic.pipeline_send(problem, few)),
    )


def spend(problem: Problem, layouts: Layouts, pipeline: Layouts, passes: Passes, sync: Sync) -> Spent:
    """Seconds per step, the overhead left out.

    `pipeline` is the same table, or gives vpp and schedule for it along a leading axis; `sync` may have another.
    """
    vpp, pp = pipeline.vpp.astype(np.float64), layouts.pp.astype(np.float64)
    waits = passes.waits.of(pipeline.schedule, vpp)
    visible = 1.0 - problem.profile.time.pp_overlap
    sends = schedule.sends(passes.send, passes.micro_batches, pp, vpp, visible)
    sends = sends + 2.0 * problem.profile.time.send * (pp > 1.0) * (vpp * passes.micro_batches + (pp - 1.0))
    shown = exposed(problem, passes.own, passes.micro_batches, sync)
    return Spent(work=passes.work, sends=sends, waits=waits, exposed=shown, alone=sync.alone, optimizer=sync.optimizer)


def seconds_of(problem: Problem, busy: Column) -> Column:
    """Seconds of a step that is busy so long; never falls where `busy` rises."""
    seconds: Column = busy + overhead(problem, busy)
    return seconds


def overhead(problem: Problem, busy: Column) -> Column:
    """Seconds of a step beside its work: a fixed time, and what stragglers take of it per doubling of the GPUs."""
    rates = problem.profile.time
    lost: Column = rates.step_fixed + rates.straggler * float(np.log2(problem.workload.gpus)) * busy
    return lost


class _Stages:
    """The kinds of stage in their order, the slowest of them, and the sums over the stages; seconds per micro-batch."""

    def __init__(self, rows: int) -> None:
        self.own = self.whole = np.zeros((3, rows))
        self.busy: Column = np.full(rows, -1.0)
        self.slowest: Column = np.zeros(rows, dtype=np.int64)
        self.each, self.through, self.later = list[Column](), list[Column](), list[Column]()

    def add(self, number: int, passes: Column, kind: dict[str, Column]) -> None:
        """Account for the next kind of stage."""
        busy = passes[0] + passes[1]
        self.whole = self.whole + kind["count"] * passes
        self.each.append(passes)
        self.through.append(self.whole)
        self.later.append(np.broadcast_to(kind["later"], busy.shape))
        slower = busy > self.busy
        self.slowest = np.where(slower, number, self.slowest)
        self.busy = np.maximum(self.busy, busy)
        self.own = np.where(slower, passes, self.own)


def unit_passes(problem: Problem, layout: Layouts, extras: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """Seconds of a micro-batch's forward, backward and weight-gradient pass through a unit of what stages hold, by its
    name in OWN or `extras`, for the one row of `layout`."""
    parts = parts_of(problem, layout, extras)
    return {name: tuple(part.passes[:, 0].tolist()) for name, part in parts.items()}


def distinct_parts(problem: Problem, layouts: Layouts, stages: StageTable) -> tuple[dict[str, Part], Column]:
    """What `parts_of` gives for each combination of what it needs, and each row's place among these."""
    some = is_partial(layouts)
    first, at = layouts.distinct(LAYER_AXES, some.astype(np.int64))
    few = layouts.take(first).only((*LAYER_AXES, "recompute_layers"))
    return parts_of(problem, few, (*stages.extras, *own_set(problem.model, some))), at


def parts_of(problem: Problem, layouts: Layouts, extras: Sequence[str]) -> dict[str, Part]:
    """Layers, ends and `extras` by their name in a StageTable; needs LAYER_AXES, and whether recompute_layers is 0."""
    model, kinds = problem.model, {"dense": problem.model.dense_layers > 0, "moe": problem.model.is_moe}
    usual = replace(layouts, recompute=usual_set(layouts))
    parts = {kind: _layer(problem, usual, moe=kind == "moe") for kind, present in kinds.items() if present}
    parts |= layouts.once(END_AXES, lambda few: _ends(problem, few))
    if model.mtp_layers:
        last = parts["moe" if model.layer_is_moe[-1] else "dense"]
        mtp = (last, parts["head"], parts.pop("projection"))
        parts["mtp"] = Part(_sum(part.passes for part in mtp), _sum(part.terms for part in mtp))
    for name in extras:
        parts[name] = parts["head"] if name == MOVED else _instead(problem, layouts, parts, name)
    return parts


def _instead(problem: Problem, layouts: Layouts, parts: dict[str, Part], name: str) -> Part:
    """What a layer that another recompute set computes again (`KIND:CODE`, `KIND:set`) takes more than a usual one."""
    kind, code = name.split(":")
    codes = layouts.recompute if code == SET else np.full_like(layouts.recompute, int(code))
    other = _layer(problem, replace(layouts, recompute=codes), moe=kind == "moe")
    return Part(other.passes - parts[kind].passes, other.terms - parts[kind].terms)


def _ends(problem: Problem, layouts: Layouts) -> dict[str, Part]:
    """What a pipeline's first and last stage have beside layers; needs END_AXES."""
    nothing = traffic.no_traffic(layouts)
    parts = {
        "head": _part(compute.head_work(problem, layouts), traffic.head_traffic(problem, layouts)),
        "embedding": _part(compute.embedding_work(problem, layouts), nothing),
    }
    if problem.model.mtp_layers:
        parts["projection"] = _part(compute.mtp_projection(problem, layouts), nothing)
    return parts


def _layer(problem: Problem, layouts: Layouts, *, moe: bool) -> Part:
    work = compute.layer_work(problem, layouts, moe=moe)
    sent = traffic.layer_traffic(problem, layouts, work, moe=moe)
    return _part(compute.wait_for_host(problem, layouts, work, sent.forward, sent.backward), sent)


def _sum(columns: Iterable[Column]) -> Column:
    return reduce(add, columns)


def _part(work: Work, sent: LayerTraffic) -> Part:
    forward = work.forward_total + sent.forward
    backward = work.backward_total + sent.backward
    terms = (
        work.forward + work.dgrad + work.wgrad,
        work.attention_forward + work.attention_backward,
        work.elementwise_forward + work.elementwise_backward,
        work.gaps_forward + work.gaps_backward,
        work.recompute,
        sent.tp_forward + sent.tp_backward,
        sent.cp_forward + sent.cp_backward,
        sent.ep_forward + sent.ep_backward,
    )
    return Part(np.stack([forward, backward, work.wgrad]), np.stack(terms))


def _on_rank(parts: dict[str, Part], kind: dict[str, Column], dual: Column, field_name: str) -> Column:
    """Seconds of one micro-batch on a rank; a DualPipe rank gives each of its two stages half of the micro-batches."""
    share = 1.0 - 0.5 * dual if dual.any() else np.ones(1)
    counts = {name: (kind[name] + kind[f"mirror_{name}"]) * share for name in parts}
    return _weighted(counts, {name: getattr(part, field_name) for name, part in parts.items()})


def _weighted(counts: dict[str, Column], columns: dict[str, Column]) -> Column:
    """The sum of columns (K, N), each so many times; in passing over what counts 0 nothing is lost."""
    total: Column = np.zeros(1)
    for name, column in columns.items():
        if column.size and counts[name].any():
            total = total + counts[name] * column
    return total if total.ndim > 1 else np.zeros_like(next(iter(columns.values())))
