"""The speed of light: what a step's terms would take at peak FLOP/s, HBM and link bandwidth with nothing lost."""

from __future__ import annotations

from dataclasses import fields, replace

from costmodel.estimate import Time, step_time
from costmodel.layouts import Layouts
from costmodel.passes import passes_of
from costmodel.problem import Problem
from costmodel.rates import TimeRates
from costmodel.split import StageTable
from hardware.cluster import Curve, Level
from hardware.gpu import GemmTable

WHOLE = GemmTable(m=(1.0,), n=(1.0,), eta=((1.0,),))


def speed_of_light(problem: Problem, layout: Layouts, stages: StageTable) -> dict[str, float]:
    """Seconds of every term of the one row of `layout`, on the stage that is slowest; never above the model's.

    Compute: the FLOPs at the peak and the bytes at the HBM's bandwidth. Communication: of what is exposed, the bytes at
    the bandwidth of the links, in-switch reduction as the machine has it. 0 for gaps, bubble and overhead.
    """
    stage = stages.only(int(passes_of(problem, layout, stages).slowest[0]))
    modelled, bare = (step_time(it, layout, stage) for it in (problem, _bare(problem)))
    gpu, links = (step_time(it, layout, stage) for it in (_whole_gpu(problem), _whole_links(_bare(problem))))
    found = {}
    for term in fields(Time):
        own, sent = (float(getattr(time, term.name)[0]) for time in (modelled, bare))
        by = {"gpu": float(getattr(gpu, term.name)[0]), None: 0.0}
        by["links"] = own * float(getattr(links, term.name)[0]) / sent if sent else 0.0
        found[term.name] = by[term.metadata["light"]]
    return found


def _without_loss(rates: TimeRates) -> TimeRates:
    lost = (rate for rate in fields(TimeRates) if rate.metadata["light"] is not None)
    return replace(rates, network=max(1.0, rates.network), **{rate.name: rate.metadata["light"] for rate in lost})


def _whole_gpu(problem: Problem) -> Problem:
    """On a GPU that reaches its peaks."""
    gpu, rates = problem.cluster.gpu, _without_loss(problem.profile.time)
    whole = replace(gpu, memory_efficiency=1.0, gemm=dict.fromkeys(gpu.gemm, WHOLE))
    cluster, profile = replace(problem.cluster, gpu=whole), replace(problem.profile, time=rates)
    return replace(problem, cluster=cluster, profile=profile)


def _bare(problem: Problem) -> Problem:
    """Nothing hidden behind compute."""
    shown = {rate.name: 0.0 for rate in fields(TimeRates) if "overlap" in rate.name}
    return replace(problem, profile=replace(problem.profile, time=replace(problem.profile.time, **shown)))


def _whole_links(problem: Problem) -> Problem:
    """On links that reach their bandwidth, without latency."""
    cluster = replace(problem.cluster, levels=tuple(map(_whole_level, problem.cluster.levels)))
    profile = replace(problem.profile, time=_without_loss(problem.profile.time))
    return replace(problem, cluster=cluster, profile=profile)


def _whole_level(level: Level) -> Level:
    return replace(level, latency=0.0, curves={name: _whole_curve(curve) for name, curve in level.curves.items()})


def _whole_curve(curve: Curve) -> Curve:
    """All of the bandwidth at every size; more where a switch that reduces was measured to give more."""
    reached = tuple((max(1.0, *row),) * len(row) for row in curve.efficiency)
    return replace(curve, latency=(0.0,) * len(curve.latency), efficiency=reached)
