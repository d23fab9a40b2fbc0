"""Training states: weights, gradients and optimizer of one rank, and how ZeRO divides them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.activations import STORED_BYTES
from costmodel.held import StageParameters
from costmodel.layouts import Column, Layouts, shard_groups
from costmodel.problem import DTYPE_BYTES, Problem
from costmodel.profile import Profile
from costmodel.schedule import is_dual


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter before ZeRO divides them: `weight` as stored, `used` as a layer computes with them; `copies`
    are fp8 copies of the layers' matrices."""

    weight: float
    used: float
    copies: float
    gradient: float
    optimizer: float


def state_bytes(problem: Problem) -> StateBytes:
    """Weights 2 (0 where the fp32 master is all), gradients by their dtype, optimizer 4 (fp32 master) + 2 moments.

    18 B with fp32 gradients and moments (Megatron-LM, docs dist_optimizer.md), 16 with bf16 gradients (ZeRO
    paper 1910.02054, K = 12). fp16 training with 2-byte gradients keeps an fp32 copy in the optimizer.
    """
    work = problem.workload
    gradient, moment = DTYPE_BYTES[work.grad_dtype], DTYPE_BYTES[work.moments_dtype]
    unscaled = 4.0 if work.precision == "fp16" and gradient < 4.0 else 0.0
    copies = problem.profile.memory.fp8_weight_copies * STORED_BYTES.get(work.precision, 0.0)
    resident = 1.0 - work.optimizer_offload
    optimizer = resident * (4.0 + 2.0 * moment + unscaled)
    return StateBytes(problem.profile.memory.weight_bytes, 2.0, copies, gradient, optimizer)


@dataclass(frozen=True, slots=True)
class Shards:
    """Ranks that share one copy of a state, (dense, expert) columns each; 1 where each holds its own."""

    weight: tuple[Column, Column]
    gradient: tuple[Column, Column]
    optimizer: tuple[Column, Column]


def shards(problem: Problem, layouts: Layouts) -> Shards:
    """Shard groups: `dp_shard` ranks from ZeRO stage 1 (optimizer), 2 (gradients) and 3 (weights).

    A framework that reduces gradients once a step accumulates them whole until then: it shards them from stage 3.
    DualPipe keeps a stage on two ranks, which share its optimizer.
    """
    stage = layouts.zero_stage.astype(np.float64)
    dense, expert = shard_groups(layouts)
    holders = 1.0 + is_dual(layouts)

    def group(least: int, copies: Column | float) -> tuple[Column, Column]:
        on = stage >= least
        return 1.0 + on * (dense * copies - 1.0), 1.0 + on * (expert * copies - 1.0)

    gradient = group(gradient_stage(problem.profile), 1.0)
    return Shards(weight=group(3, 1.0), gradient=gradient, optimizer=group(1, holders))


def gradient_stage(profile: Profile) -> int:
    """ZeRO stage from which gradients are sharded while they accumulate."""
    return 3 if profile.gradients_in_step else 2


def states(per: StateBytes, shard: Shards, held: StageParameters) -> tuple[Column, Column, Column]:
    """Bytes of (weights, gradients, optimizer) of the parameters that a rank holds."""
    dense, expert = held.dense, held.expert
    weights = (per.weight * dense + per.copies * held.matrices) / shard.weight[0]
    return (
        weights + (per.weight + per.copies) * expert / shard.weight[1],
        per.gradient * dense / shard.gradient[0] + per.gradient * expert / shard.gradient[1],
        per.optimizer * dense / shard.optimizer[0] + per.optimizer * expert / shard.optimizer[1],
    )
