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
    exchange: Column
    """of ZeRO-1 shards, beyond what their bytes take"""
    traffic: traffic.DataTraffic
    optimizer: Column


def synchronisation(problem: Problem, layouts: Layouts, stages: StageTable, kind: Column) -> Sync:
    """Data-parallel traffic and the optimizer step of the stage `kind` of each row."""
    split = stages.rows(layouts)
    first, rows = layouts.distinct((*STATE_AXES, "schedule"), kind, split)
    few, at = layouts.take(first), (np.broadcast_to(split, kind.shape)[first], kind[first])
    stage = {name: values[at] for name, values in stages.columns.items()}
    sent, adam = _state_traffic(problem, few, stage)
    exchange = compute.exchange_seconds(problem, few, stage["dense"] + stage["moe"] + stage["mtp"])
    found = Sync(gathers=1.0 * (few.zero_stage == 3), exchange=exchange, traffic=sent, optimizer=adam)
    return gather(found, rows)


def data_parallel(problem: Problem, own: Column, micro_batches: Column, layers: Column, sync: Sync) -> Column:
    """Exposed seconds per step of the gathered weights and reduced gradients, on a stage of `layers` layers.

    They may hide behind `own`: a micro-batch's forward and backward pass through that stage, seconds.
    """
    sent, rates = sync.traffic, problem.profile.time
    overlap, contention = rates.dp_overlap, rates.contention
    repeats = (1.0 - sync.gathers) + sync.gathers * micro_batches
    beside = overlap * np.maximum(sync.gathers, 1.0 * problem.profile.gathers_beside_forward)
    forward = repeats * traffic.exposed(sent.gather_forward, own[0], beside, contention)
    behind = sent.gather_backward + sent.reduce_each
    backward = micro_batches * traffic.exposed(behind, own[1], overlap, contention)
    last = traffic.exposed(sent.reduce_last, own[1], overlap, contention)
    first_unit = (sent.gather_forward + sent.reduce_last + sent.reduce_each) / np.maximum(layers, 1.0)
    seconds: Column = forward + backward + last + first_unit + sync.exchange
    return seconds


def _state_traffic(problem: Problem, layouts: Layouts, stage: dict[str, Column]) -> tuple[traffic.DataTraffic, Column]:
    """Data-parallel traffic and optimizer seconds of a rank that holds these layers and ends."""
    tp, ep, etp = (getattr(layouts, axis).astype(np.float64) for axis in ("tp", "ep", "etp"))
    held = {name: stage[name] + stage[f"mirror_{name}"] for name in OWN}
    parameters = stage_parameters(problem.model, held, tp, ep, etp)
    sent = traffic.data_parallel(problem, layouts, parameters.dense, parameters.expert)
    return sent, compute.optimizer_seconds(problem, layouts, parameters.dense, parameters.expert)
