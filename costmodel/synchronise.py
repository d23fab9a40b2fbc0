"""What ranks that hold the same parameters do together once a step: gradients, weights and the optimizer's step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel import compute, traffic
from costmodel.held import stage_parameters
from costmodel.layouts import Column, Layouts, gather
from costmodel.problem import Problem
from costmodel.split import OWN, StageTable

STATE_AXES = ("tp", "pp", "cp", "dp", "dp_shard", "ep", "etp", "zero_stage", "rank_order")
"""Axes that a stage's data-parallel traffic and optimizer step depend on, beside the stage itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Data-parallel traffic and optimizer step of a stage, seconds; needs STATE_AXES and DualPipe or not."""

    gathers: Column
    """1 where weights are gathered for each micro-batch (ZeRO-3), else 0"""
    forward: Column
    """weights gathered during one forward pass"""
    each: Column
    """weights gathered and gradients reduced during each backward pass, one micro-batch"""
    last: Column
    """gradients reduced once, during the last backward pass"""
    alone: Column
    """what nothing hides: the first layer's share of these, the exchange of ZeRO-1 shards, the optimizer step"""
    optimizer: Column
    """of that, the optimizer step"""


def synchronisation(problem: Problem, layouts: Layouts, stages: StageTable, kind: Column) -> Sync:
    """Data-parallel traffic and the optimizer step of the stage `kind` of each row."""
    split = stages.rows(layouts)
    first, rows = layouts.distinct((*STATE_AXES, "schedule"), kind, split)
    few, at = layouts.take(first), (np.broadcast_to(split, kind.shape)[first], kind[first])
    stage = {name: values[at] for name, values in stages.columns.items()}
    sent, adam = _state_traffic(problem, few, stage)
    layers = stage["dense"] + stage["moe"] + stage["mtp"]
    exchange = compute.exchange_seconds(problem, few, layers)
    first_unit = (sent.gather_forward + sent.reduce_last + sent.reduce_each) / np.maximum(layers, 1.0)
    found = Sync(
        gathers=1.0 * (few.zero_stage == 3),
        forward=sent.gather_forward,
        each=sent.gather_backward + sent.reduce_each,
        last=sent.reduce_last,
        alone=first_unit + exchange + adam,
        optimizer=adam,
    )
    return gather(found, rows)


def exposed(problem: Problem, own: Column, micro_batches: Column, sync: Sync) -> Column:
    """Seconds per step of gathered weights and reduced gradients that do not hide behind `own`: a micro-batch's forward
    and backward pass through the stage, seconds."""
    rates = problem.profile.time
    overlap, contention = rates.dp_overlap, rates.contention
    beside = np.maximum(sync.gathers, 1.0 * problem.profile.gathers_beside_forward)
    forward = traffic.exposed(sync.forward, own[0], overlap * beside, contention)
    seconds: Column = forward + traffic.exposed(sync.last, own[1], overlap, contention)
    lines = sync.each.any(axis=-1)
    if lines.any():
        again = sync.gathers[lines] * (micro_batches - 1.0) * forward[lines]
        backward = traffic.exposed(sync.each[lines], own[1], overlap, contention)
        seconds[lines] = seconds[lines] + again + micro_batches * backward
    return seconds


def _state_traffic(problem: Problem, layouts: Layouts, stage: dict[str, Column]) -> tuple[traffic.DataTraffic, Column]:
    """Data-parallel traffic and optimizer seconds of a rank that holds these layers and ends."""
    tp, ep, etp = (getattr(layouts, axis).astype(np.float64) for axis in ("tp", "ep", "etp"))
    held = {name: stage[name] + stage[f"mirror_{name}"] for name in OWN}
    parameters = stage_parameters(problem.model, held, tp, ep, etp)
    sent = traffic.data_parallel(problem, layouts, parameters.dense, parameters.expert)
    return sent, compute.optimizer_seconds(problem, layouts, parameters.dense, parameters.expert)
