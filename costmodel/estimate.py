"""estimate(): what a table of layouts costs in memory and time; the one entry point of the cost model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import TypeVar

import numpy as np

from costmodel import flops, params, schedule
from costmodel.layouts import Column, Layouts
from costmodel.memory import Memory, memory
from costmodel.passes import Passes, passes_of
from costmodel.problem import Problem
from costmodel.quantity import quantity
from costmodel.split import StageTable
from costmodel.synchronise import Sync, exposed, synchronisation

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


def estimate(problem: Problem, layouts: Layouts, stages: StageTable | None = None) -> Estimate:
    """Memory, step time and MFU of every row of `layouts`.

    `stages` is the split of layers over pipeline stages, by default the closed-form one. Pure and elementwise: no
    row depends on another. The layouts are taken as given; whether they may run is for the rules of the search.
    """
    stages = stages or problem.split(np.unique(layouts.pp).tolist())
    needed = memory(problem, layouts, stages)
    passes = passes_of(problem, layouts, stages)
    sync = synchronisation(problem, layouts, stages, passes.slowest)
    spent = spend(problem, layouts, layouts, passes, sync, stages.uneven(layouts, layouts.vpp))
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
    sync = synchronisation(problem, layouts, stages, passes.slowest)
    spent = spend(problem, layouts, layouts, passes, sync, stages.uneven(layouts, layouts.vpp))
    return spent.terms(problem, passes)


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


def spend(problem: Problem, layouts: Layouts, pipeline: Layouts, passes: Passes, sync: Sync, uneven: Column) -> Spent:
    """Seconds per step, the overhead left out.

    `pipeline` is the same table, or gives vpp and schedule for it along a leading axis; `sync` may have another.
    `uneven` is what `StageTable.uneven` gives for both.
    """
    vpp, pp = pipeline.vpp.astype(np.float64), layouts.pp.astype(np.float64)
    waits = passes.waits.of(pipeline.schedule, vpp, uneven)
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


def _sum(columns: Iterable[Column]) -> Column:
    return reduce(add, columns)
