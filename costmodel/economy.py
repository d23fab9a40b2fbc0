"""What a whole training run takes: days, GPU-hours, money and energy, from the time of one step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from costmodel.layouts import Column
from costmodel.problem import Problem
from costmodel.quantity import quantity

DAY = 86_400.0
HOUR = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training run of N layouts on the same GPUs, float64 columns; `cost` is NaN where no price is known."""

    days_to_train: Column = quantity("days of uninterrupted training", "d")
    gpu_hours: Column = quantity("GPUs times hours", "h")
    cost: Column = quantity("GPU-hours at the cluster's price", "$")
    energy: Column = quantity("energy of the nodes at full load, times the site's PUE", "J")


def training(problem: Problem, tokens: float, step_time: Column) -> Training:
    """The run that trains `tokens` at `step_time` [s], a column.

    Steps are whole: ceil(tokens / (global_batch seq_len)). Restarts, evaluation and checkpoints are not counted.
    A job on a part of a node pays for its GPUs and draws their share of the node; `node_power` is that of a node
    under full load, so the energy is an upper estimate for steps that wait for the network.
    """
    cluster, gpus = problem.cluster, problem.workload.gpus
    seconds = math.ceil(tokens / problem.tokens) * np.asarray(step_time, dtype=np.float64)
    hours = seconds * (gpus / HOUR)
    price = float("nan") if cluster.price is None else cluster.price
    watts = cluster.node_power * gpus / cluster.gpus_per_node * cluster.pue
    return Training(days_to_train=seconds / DAY, gpu_hours=hours, cost=hours * price, energy=seconds * watts)
