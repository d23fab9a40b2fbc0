"""How sure an estimate is: the central 80 % around step time and memory, and whether measured runs cover it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.estimate import Estimate
from costmodel.layouts import Column, Layouts
from costmodel.problem import Problem
from costmodel.quantity import quantity
from costmodel.range import DEGREES

CALIBRATED = 0.9
"""Probability with which a layout must fit by default, where the interval of its memory was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The ends of an estimate's central 80 %; columns, row i by row i of the layouts alone."""

    step_time_low: Column = quantity("step time that one run in ten is expected to stay below", "s")
    step_time_high: Column = quantity("step time that one run in ten is expected to exceed", "s")
    memory_low: Column = quantity("memory that one run in ten is expected to stay below", "B")
    memory_high: Column = quantity("memory that one run in ten is expected to exceed", "B")
    calibrated: Column = quantity(
        "whether measured runs of the profile on this GPU cover the layout; the ends are wider where not",
        "true or false",
    )


def bounds(problem: Problem, layouts: Layouts, cost: Estimate) -> Bounds:
    """Estimates times the profile's quantiles of measured over predicted, wider where no runs cover the layout."""
    inside = calibrated(problem, layouts)
    near, far = problem.profile.interval, problem.profile.interval.wider
    row = inside.astype(np.int64)

    def end(column: Column, name: str) -> Column:
        found: Column = column * np.array([getattr(far, name), getattr(near, name)])[row]
        return found

    return Bounds(
        step_time_low=end(cost.step_time, "time_low"),
        step_time_high=end(cost.step_time, "time_high"),
        memory_low=end(cost.memory_total, "memory_low"),
        memory_high=end(cost.memory_total, "memory_high"),
        calibrated=inside,
    )


def calibrated(problem: Problem, layouts: Layouts) -> Column:
    """Whether the runs behind the profile's rates cover the job and the degrees of each row; boolean column."""
    covers = problem.profile.covers
    inside: Column = np.full(len(layouts), not problem.uncovered)
    if covers is None:
        return inside
    for name in DEGREES:
        (low, high), degree = covers.limits(name), getattr(layouts, name)
        inside = inside & (degree >= low) & (degree <= high)
    return inside


def default_margin(problem: Problem) -> float:
    """Probability with which a layout must fit: CALIBRATED where runs of the profile cover the job and its memory was
    measured, else 0.5, the predicted memory itself."""
    return CALIBRATED if problem.profile.interval.memory_runs and not problem.uncovered else 0.5


def uncovered(problem: Problem, layout: Layouts) -> tuple[str, ...]:
    """Why the one row of `layout` is not calibrated: one sentence for each reason; empty if it is."""
    covers, row = problem.profile.covers, layout.row(0)
    return problem.uncovered + (covers.misses({name: row[name] for name in DEGREES}) if covers else ())
