"""What PyTorch's allocator holds at the end of a step: the figure that frameworks log, above what must fit."""

from __future__ import annotations

import numpy as np

from costmodel import flops
from costmodel.activations import shares
from costmodel.layouts import Column, Layouts
from costmodel.memory import Memory
from costmodel.problem import Problem

PER_PASS = 1.8
"""Tensors of a layer and pass that wait at a time: outputs of two row-parallel GEMMs less what was used again."""
WARMED_UP = 2
"""Stages above which a slow host runs ahead too: in the warm-up, when the GPU waits for the stages behind."""


def reserved(problem: Problem, layouts: Layouts, need: Memory) -> Column:
    """Memory that the allocator has taken from the GPU [B].

    Beside what must fit it holds, as far as the overhead leaves room, buffers of asynchronous tensor-parallel
    collectives: a freed one is not used again until the GPU has passed it (PyTorch's `record_stream`), and the host
    runs as far ahead as the launch queue lets it. A request that finds no memory waits for the GPU and returns them, so
    no layout needs them.
    """
    room = problem.cluster.gpu.usable_memory - problem.profile.memory.overhead
    held: Column = np.maximum(np.minimum(need.reserved + waiting(problem, layouts), room), need.reserved)
    return held


def waiting(problem: Problem, layouts: Layouts) -> Column:
    """Buffers of collectives that wait for the GPU [B]: some number of tensors of a micro-batch's whole sequences."""
    rates, work, model = problem.profile.memory, problem.workload, problem.model
    pp, tp = layouts.pp.astype(np.float64), layouts.tp.astype(np.float64)
    size = layouts.micro_batch.astype(np.float64)
    tokens = size * work.seq_len / layouts.cp.astype(np.float64)
    micro_batches = np.maximum(work.global_batch / (layouts.dp * size), 1.0)
    per_token = 3.0 * flops.layer(model, work.seq_len, moe=model.layer_is_moe[-1])
    ahead = tokens * per_token / tp >= rates.host_flops * tp
    warm_up = (np.minimum(pp, micro_batches) - 1.0) * (pp > WARMED_UP)
    passes = np.where(ahead, micro_batches, warm_up)
    launched = PER_PASS * model.layers / pp * passes
    count = np.minimum(rates.waiting_tensors, launched) * shares(model, layouts)["gathered"]
    total: Column = count * tokens * (2.0 * model.hidden)
    return total
