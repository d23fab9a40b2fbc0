"""Predictions for measured runs: step time, memory of the kind that was measured, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.layout import LIGER
from costmodel.calibration.runs import Run
from costmodel.estimate import Estimate, estimate
from costmodel.interval import calibrated
from costmodel.layouts import Layouts
from costmodel.memory import Memory, memory
from costmodel.problem import Problem
from costmodel.rates import Interval, MemoryRates, TimeRates
from costmodel.reserved import reserved
from costmodel.split import StageTable

Rows = NDArray[np.int64]
Progress = Callable[[int, int], None]
Vector = NDArray[np.float64]
SPLIT = {"nanotron": "filled", "nanotron-slow": "filled", "llama3-meta": "best", "deepseek": "best"}
"""Profiles whose framework, or whose published run, does not split layers evenly, and the rule that it follows."""
FIRST_STAGE = ("nanotron", "nanotron-slow")
"""Profiles whose measured memory is that of the first stage's rank alone."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs that share a problem, as one table; `rows` are their places in the list they came from."""

    problem: Problem
    layouts: Layouts
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What is predicted for one run. step_time in s; memory in B, of the run's kind; `need` in B is what must fit;
    `calibrated` is whether the runs behind the profile's rates cover the run."""

    run: Run
    step_time: float
    memory: float
    need: float
    term: str
    calibrated: bool

    @property
    def span(self) -> Interval:
        """Measured over predicted at the ends of the central 80 %."""
        near = self.run.problem.profile.interval
        return near if self.calibrated else near.wider

    @property
    def interval(self) -> tuple[float, float]:
        """Central 80 % of the step time."""
        return self.step_time * self.span.time_low, self.step_time * self.span.time_high

    @property
    def memory_interval(self) -> tuple[float, float]:
        """Central 80 % of the memory."""
        return self.memory * self.span.memory_low, self.memory * self.span.memory_high

    @property
    def oom(self) -> bool:
        """Whether what must fit does not."""
        return self.need > self.run.problem.cluster.gpu.usable_memory


def batches(runs: Sequence[Run]) -> list[Batch]:
    """Runs grouped by all of their problem, so that each group is one table of layouts."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        problem = run.problem
        key = (problem.model, problem.cluster.name, *_network(problem), problem.workload, *_profile(problem))
        groups.setdefault(key, []).append(index)
    found = []
    for rows in groups.values():
        tables = [runs[row].layout for row in rows]
        columns = {axis: np.concatenate([getattr(t, axis) for t in tables]) for axis in tables[0].row(0)}
        found.append(Batch(runs[rows[0]].problem, Layouts.from_columns(columns), np.array(rows, dtype=np.int64)))
    return found


def predict(runs: Sequence[Run], progress: Progress | None = None) -> list[Prediction]:
    """One prediction a run, in order. A run that does not state recomputation or expert parallelism is taken to use
    the profile's default set and EP 1 where that fits, else experts over all ranks of a stage, else the recommended set
    too. `progress` is called with the runs that are done and all of them."""
    choices = [_choices(run) for run in runs]
    found = _predict([tried[0] for tried in choices], progress)
    for step in range(1, max(map(len, choices), default=0)):
        again = [i for i, it in enumerate(found) if len(choices[i]) > step and it.oom and not runs[i].oom]
        for index, it in zip(again, _predict([choices[i][step] for i in again]), strict=True):
            found[index] = it
    return found


def with_rates(problem: Problem, rates: TimeRates | MemoryRates) -> Problem:
    """The problem under other rates; Liger's kernels, as a run states them, stay."""
    profile = problem.profile
    if isinstance(rates, TimeRates):
        return replace(problem, profile=replace(profile, time=rates))
    kept = rates if profile.memory.logit_bytes else replace(rates, **LIGER)
    return replace(problem, profile=replace(profile, memory=kept))


def stages_of(problem: Problem, layouts: Layouts) -> StageTable:
    """The split that ran: even where the layers divide, but for frameworks that weigh the ends by themselves."""
    return problem.split(np.unique(layouts.pp).tolist(), rule=SPLIT.get(problem.profile.shipped, "even"))


def _predict(runs: Sequence[Run], progress: Progress | None = None) -> list[Prediction]:
    found: dict[int, Prediction] = {}
    for batch in batches(runs):
        stages = stages_of(batch.problem, batch.layouts)
        cost = estimate(batch.problem, batch.layouts, stages)
        seen = cost.memory
        if batch.problem.profile.shipped in FIRST_STAGE:
            seen = memory(batch.problem, batch.layouts, stages.first())
        held = reserved(batch.problem, batch.layouts, seen)
        terms, inside = _dominant(cost), calibrated(batch.problem, batch.layouts)
        for place, row in enumerate(batch.rows.tolist()):
            found[row] = Prediction(
                run=runs[row],
                step_time=float(cost.step_time[place]),
                memory=float(of_kind(seen, held, runs[row].memory_kind)[place]),
                need=float(cost.memory_total[place]),
                term=terms[place],
                calibrated=bool(inside[place]),
            )
        if progress is not None:
            progress(len(found), len(runs))
    return [found[row] for row in range(len(runs))]


def of_kind(needed: Memory, held: Vector, kind: str) -> Vector:
    """Memory as PyTorch's allocator counts it (allocated; reserved, which is `held`) or as nvidia-smi shows it, B."""
    if kind == "allocated":
        return needed.allocated
    return held + needed.overhead if kind == "nvidia-smi" else held


def _dominant(cost: Estimate) -> list[str]:
    """The largest term of each row's step time."""
    names = [name for name in type(cost.time).__dataclass_fields__ if name != "total"]
    table = np.stack([getattr(cost.time, name) for name in names])
    return [names[place] for place in table.argmax(axis=0).tolist()]


def _choices(run: Run) -> list[Run]:
    """What a run may have used that does not state all of it, in the order in which it is tried."""
    profile, found = run.problem.profile, [run]
    if not run.recompute_stated:
        found = [_with(run, recompute=profile.recompute_code(profile.default_recompute))]
    if not run.ep_stated:
        ranks = run.problem.workload.gpus // int(run.layout.pp[0])
        found.append(_with(found[0], ep=math.gcd(ranks, run.problem.model.experts)))
    if not run.recompute_stated:
        found.append(_with(found[-1], recompute=profile.recompute_code(profile.selective)))
    return found


def _with(run: Run, **axis: int) -> Run:
    """The run with other values of some axes."""
    columns = {name: np.array([value], dtype=np.int64) for name, value in axis.items()}
    return replace(run, layout=replace(run.layout, **columns))


def _network(problem: Problem) -> tuple[object, ...]:
    return tuple((level.bandwidth, level.oversubscription) for level in problem.cluster.levels)


def _profile(problem: Problem) -> tuple[object, ...]:
    return problem.profile.name, problem.profile.recompute, problem.profile.time, problem.profile.memory
