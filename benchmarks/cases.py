"""The problems that the benchmarks search, with the command line's defaults."""

from __future__ import annotations

from dataclasses import replace

from costmodel.interval import default_margin
from costmodel.model import load_model
from costmodel.problem import Problem, Workload, default_global_batch
from costmodel.profile import load_profile
from hardware.catalog import load_cluster

WHOLE: dict[str, list[int | str]] = {
    "recompute": ["none", "norms", "selective", "mlp", "moe", "full"],
    "recompute_layers": [0],
}
"""Limits of a model with experts, of which every set of modules in every number of layers makes more layouts than a
benchmark has time for."""


def problem(model: str, cluster: str, gpus: int, profile: str = "megatron") -> Problem:
    """A problem of shipped parts."""
    trained, machine = load_model(model), load_cluster(cluster)
    rates = load_profile(profile).on(machine.gpu)
    workload = Workload(
        gpus=gpus,
        seq_len=trained.seq_len,
        global_batch=default_global_batch(gpus, trained.seq_len),
        grad_dtype=rates.grad_dtype,
        moments_dtype=rates.moments_dtype,
        routed_nodes=trained.routed_nodes,
    )
    case = Problem(model=trained, cluster=machine, profile=rates, workload=workload)
    return replace(case, workload=replace(workload, memory_margin=default_margin(case)))
