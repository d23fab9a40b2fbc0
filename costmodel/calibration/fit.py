"""Fit a profile's rates to measured runs: robust, bounded, pulled towards the profile that it starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.predict import batches
from costmodel.calibration.runs import Run
from costmodel.estimate import step_time
from costmodel.profile import TimeRates

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Knob:
    """A rate that may be fitted: bounds that physics gives, and how far it is expected to move (in ln, or absolute)."""

    low: float
    high: float
    spread: float
    logarithmic: bool = True

    def to_scale(self, value: float) -> float:
        return float(np.log(max(value, self.low))) if self.logarithmic else value

    def from_scale(self, value: float) -> float:
        return float(np.exp(value)) if self.logarithmic else float(value)


KNOBS: Mapping[str, Knob] = {
    "gemm": Knob(0.3, 1.1, 0.15),
    "gemm_fp8": Knob(0.3, 1.4, 0.2),
    "grouped_gemm": Knob(0.2, 1.2, 0.3),
    "grouped_wgrad": Knob(0.1, 1.2, 0.3),
    "attention_forward": Knob(0.05, 0.75, 0.3),
    "attention_backward": Knob(0.05, 0.75, 0.3),
    "memory_bandwidth": Knob(0.2, 1.15, 0.25),
    "kernel": Knob(0.5e-6, 3e-5, 0.6),
    "layer_floor": Knob(1e-5, 1e-2, 0.8),
    "tp_floor": Knob(1e-7, 5e-3, 2.0),
    "tp_overlap": Knob(0.0, 0.9, 0.25, False),
    "cp_overlap": Knob(0.0, 0.95, 0.2, False),
    "ep_overlap": Knob(0.0, 0.95, 0.25, False),
    "dp_overlap": Knob(0.0, 1.0, 0.25, False),
    "pp_overlap": Knob(0.0, 1.0, 0.25, False),
    "network": Knob(0.2, 1.05, 0.3),
    "straggler": Knob(0.0, 0.03, 0.004, False),
    "step_fixed": Knob(1e-3, 2.0, 1.0),
}


class Predictor:
    """Predicted step times of runs under any time rates."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self.batches = batches(self.runs)

    @cached_property
    def measured(self) -> Vector:
        """ln of measured step times."""
        return np.log([run.step_time or np.nan for run in self.runs])

    def __call__(self, rates: TimeRates) -> Vector:
        """ln of predicted step times in the order of the runs."""
        found = np.empty(len(self.runs))
        for batch in self.batches:
            problem = replace(batch.problem, profile=replace(batch.problem.profile, time=rates))
            stages = problem.split(np.unique(batch.layouts.pp).tolist())
            found[batch.rows] = np.log(step_time(problem, batch.layouts, stages).total)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted rates, how many runs they rest on, and the residuals ln(predicted / measured) before and after."""

    rates: TimeRates
    fitted: tuple[str, ...]
    runs: int
    before: Vector
    after: Vector


def fit_time(runs: Sequence[Run], start: TimeRates, names: Sequence[str]) -> Fit:
    """Rates named by `names`, fitted to the step times of `runs`; each stays near `start` unless the runs move it.

    Minimises a robust sum (soft L1, scale 0.1) of ln(predicted / measured) and of each rate's move from `start` over
    its expected spread. Needs SciPy (`meshscout[calibrate]`).
    """
    from scipy.optimize import least_squares

    predictor = Predictor(runs)
    knobs = [KNOBS[name] for name in names]
    first = np.array([knob.to_scale(getattr(start, name)) for name, knob in zip(names, knobs, strict=True)])
    spread = np.array([knob.spread for knob in knobs])
    low = np.array([knob.to_scale(knob.low) for knob in knobs])
    high = np.array([knob.to_scale(knob.high) for knob in knobs])

    def rates(x: Vector) -> TimeRates:
        return replace(start, **{n: k.from_scale(v) for n, k, v in zip(names, knobs, x, strict=True)})

    def residuals(x: Vector) -> Vector:
        own = predictor(rates(x)) - predictor.measured
        robust = np.sign(own) * np.sqrt(2 * (np.sqrt(1 + (own / SCALE) ** 2) - 1))
        found: Vector = np.concatenate([robust, (x - first) / spread])
        return found

    inside = np.clip(first, low + 1e-6 * (high - low), high - 1e-6 * (high - low))
    result = least_squares(residuals, inside, bounds=(low, high), diff_step=1e-3, x_scale=spread, max_nfev=30)
    best = rates(result.x)
    before, after = predictor(start) - predictor.measured, predictor(best) - predictor.measured
    return Fit(rates=best, fitted=tuple(names), runs=len(runs), before=before, after=after)


SCALE = 0.1
"""Residuals above a tenth count linearly."""


def rate_names() -> tuple[str, ...]:
    """Every rate that may be fitted."""
    return tuple(field.name for field in fields(TimeRates) if field.name in KNOBS)
