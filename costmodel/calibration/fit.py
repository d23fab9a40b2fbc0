"""Fit a profile's rates to measured runs: robust, bounded, pulled towards the profile that it starts from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.knobs import MEMORY_KNOBS, TIME_KNOBS, Knob
from costmodel.calibration.predict import FIRST_STAGE, batches, of_kind, stages_of, with_rates
from costmodel.calibration.runs import Run
from costmodel.calibration.verdicts import SHARPNESS, Verdicts
from costmodel.estimate import step_time
from costmodel.layouts import Layouts
from costmodel.memory import memory
from costmodel.problem import Problem
from costmodel.rates import MemoryRates, TimeRates
from costmodel.reserved import reserved
from costmodel.split import StageTable
from hardware.errors import InputError

Vector = NDArray[np.float64]
Rates = TypeVar("Rates", TimeRates, MemoryRates)

SCALE = 0.1
"""Residuals of ln(predicted / measured) above this count linearly, not squared."""
WEIGHTS = {"ok": 1.0, "medium": 0.4}
"""Weight of a run's residual by its trust."""
VERDICT = 0.5
"""Weight of a verdict; its loss is Cauchy's, for which one far on the wrong side counts little more than a near one."""
MOST = 16
"""A fit moves no more rates than this: those that move the runs most."""
VISIBLE = 2e-3
"""A rate whose expected spread moves no run by this much (in ln) is not fitted."""
ENOUGH = 1e-3
"""Share of its objective by which a step must lower it when a fit goes by known slopes, else it ends."""
BOUND = 0.02
"""Share of its expected spread within which a rate lies at a bound of its range, which a fit never quite reaches."""
FULL, AGAIN = 20, 12
"""Steps at most of a fit, and of one that starts from a fit to nearly the same runs."""


def solver() -> Callable[..., Any]:
    """SciPy's least squares. Raises InputError without SciPy, an optional extra."""
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise InputError(f"fits need SciPy: {sys.executable} -m pip install scipy") from None
    found: Callable[..., Any] = least_squares
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Rates after a fit; `moved` are those that the runs identify, `before` and `after` ln(predicted / measured).

    `slopes` is what each run's residual moves by with each rate, by the run's id; `start` are the rates before; `wrong`
    how far verdicts on memory lie on the wrong side of the limit, before and after, mean of |ln(need / usable)|.
    """

    start: TimeRates | MemoryRates
    rates: TimeRates | MemoryRates
    moved: tuple[str, ...]
    before: Vector
    after: Vector
    slopes: Mapping[str, Vector] = field(default_factory=dict)
    wrong: tuple[float, float] = (0.0, 0.0)

    @property
    def bounded(self) -> dict[str, str]:
        """Fitted rates at an end of their range, which the runs would move on: "least" or "most"."""
        found = {}
        for name in self.moved:
            knob = knobs(self.rates)[name]
            at, near = knob.to_scale(getattr(self.rates, name)), BOUND * knob.spread
            if at - knob.to_scale(knob.low) < near:
                found[name] = "least"
            elif knob.to_scale(knob.high) - at < near:
                found[name] = "most"
        return found


class Predictor:
    """ln(predicted / measured) of runs, under any rates of one kind."""

    def __init__(self, runs: Sequence[Run], kind: type[TimeRates] | type[MemoryRates]) -> None:
        self.runs, self.kind = tuple(runs), kind
        self.batches = [(batch, stages_of(batch.problem, batch.layouts)) for batch in batches(self.runs)]
        value = [run.step_time if kind is TimeRates else run.memory for run in self.runs]
        self.measured: Vector = np.log(np.array(value, dtype=np.float64))

    def __call__(self, rates: TimeRates | MemoryRates) -> Vector:
        found = np.empty(len(self.runs))
        for batch, stages in self.batches:
            problem = with_rates(batch.problem, rates)
            if self.kind is TimeRates:
                found[batch.rows] = step_time(problem, batch.layouts, stages).total
            else:
                found[batch.rows] = self._bytes(problem, batch.layouts, stages, batch.rows)
        return np.log(found) - self.measured

    def _bytes(self, problem: Problem, layouts: Layouts, stages: StageTable, rows: NDArray[np.int64]) -> Vector:
        seen = memory(problem, layouts, stages.first() if problem.profile.shipped in FIRST_STAGE else stages)
        held = reserved(problem, layouts, seen)
        return np.array([of_kind(seen, held, self.runs[row].memory_kind)[i] for i, row in enumerate(rows.tolist())])


def fit(
    runs: Sequence[Run],
    start: Rates,
    *,
    tight: float = 1.0,
    only: Collection[str] | None = None,
    verdicts: Sequence[Run] = (),
) -> Fit:
    """Rates fitted to `runs`; each stays near `start` unless the runs move it.

    Minimises a robust sum (soft L1 of scale SCALE) of ln(predicted / measured) and of each rate's move from `start`
    over its expected spread times `tight`. Rates that no run shows, or that are not among `only`, are left.
    `verdicts` are runs that ran or went out of memory: memory that must fit is pushed to the right side of the limit.
    """
    predictor = Predictor(runs, type(start))
    shown = {name: effect for name, effect in visible(predictor, start).items() if only is None or name in only}
    most = sorted(shown, key=lambda name: -float(np.square(shown[name]).mean()))[:MOST]
    names = [name for name in shown if name in most]
    if isinstance(start, TimeRates):
        return _Objective(predictor, start, names, tight).solve_by_slopes(start)
    if not verdicts:
        return _Objective(predictor, start, names, tight).solve(start, FULL)
    limits = Verdicts(verdicts)
    names += [name for name in visible(limits, start) if name not in names]
    return _Objective(predictor, start, names, tight, limits).solve(start, FULL)


def refit(runs: Sequence[Run], start: Rates, near: Fit, *, tight: float = 1.0, verdicts: Sequence[Run] = ()) -> Fit:
    """As `fit`, for a part of the runs that `near` was fitted to: from its rates and, for step times, by its slopes, so
    that it costs a few evaluations of the model and not hundreds. Memory is cheap to evaluate."""
    predictor = Predictor(runs, type(start))
    if not isinstance(start, TimeRates):
        limits = Verdicts(verdicts) if verdicts else None
        return _Objective(predictor, start, near.moved, tight, limits).solve(near.rates, AGAIN)
    slopes = np.array([near.slopes[run.id] for run in runs])
    return _Objective(predictor, start, near.moved, tight).solve(near.rates, AGAIN, slopes)


def fitted_at(runs: Sequence[Run], start: Rates, rates: Rates, moved: Sequence[str], *, tight: float = 1.0) -> Fit:
    """The fit that gave `rates`, with its slopes: what `refit` needs."""
    return _Objective(Predictor(runs, type(start)), start, moved, tight).solve(rates, 1)


class _Objective:
    """The robust residuals that a fit minimises, over the scales of the knobs `names`."""

    def __init__(
        self,
        predictor: Predictor,
        start: TimeRates | MemoryRates,
        names: Sequence[str],
        tight: float,
        limits: Verdicts | None = None,
    ) -> None:
        self.predictor, self.start, self.names, self.limits = predictor, start, tuple(names), limits
        self.knobs = [knobs(start)[name] for name in names]
        self.weights = np.array([WEIGHTS.get(run.trust, 1.0) for run in predictor.runs])
        self.spread = tight * np.array([knob.spread for knob in self.knobs])
        self.first = self.scales(start)

    def scales(self, rates: TimeRates | MemoryRates) -> Vector:
        """The rates on the scales that are fitted."""
        return np.array([k.to_scale(getattr(rates, name)) for name, k in zip(self.names, self.knobs, strict=True)])

    def rates(self, x: Vector) -> TimeRates | MemoryRates:
        """Back from the scales."""
        values = {name: k.from_scale(v) for name, k, v in zip(self.names, self.knobs, x, strict=True)}
        return replace(self.start, **values)  # type: ignore[arg-type]

    def __call__(self, x: Vector) -> Vector:
        rates = self.rates(x)
        off = self.predictor(rates) / SCALE
        robust = self.weights * np.sign(off) * np.sqrt(2.0 * (np.sqrt(1.0 + off**2) - 1.0))
        parts = [robust, (x - self.first) / self.spread]
        if self.limits is not None:
            wrong = self.limits(rates) / SHARPNESS  # type: ignore[arg-type]
            parts.append(VERDICT * np.sqrt(np.log1p(wrong**2)))
        found: Vector = np.concatenate(parts)
        return found

    def wrong(self, rates: TimeRates | MemoryRates) -> float:
        """How far verdicts lie on the wrong side, mean of |ln(need / usable)|; 0 without any."""
        return 0.0 if self.limits is None else float(np.mean(np.abs(self.limits(rates))))  # type: ignore[arg-type]

    def solve_by_slopes(self, start: TimeRates | MemoryRates) -> Fit:
        """As `solve`, with derivatives that are taken twice and not at every step, each of which costs a prediction of
        all runs for every knob."""
        found = self.solve(start, 1)
        if not self.names:
            return found
        for evaluations in (AGAIN, 1, AGAIN):
            slopes = np.array([found.slopes[run.id] for run in self.predictor.runs])
            found = self.solve(found.rates, evaluations, None if evaluations == 1 else slopes)
        return found

    def solve(self, at: TimeRates | MemoryRates, evaluations: int, slopes: Vector | None = None) -> Fit:
        """The best rates from `at` on; `slopes` of the runs stand for the derivatives where they are given."""
        before, ids = self.predictor(self.start), [run.id for run in self.predictor.runs]
        if not self.names:
            return Fit(start=self.start, rates=self.start, moved=(), before=before, after=before)
        low, high = (np.array([k.to_scale(getattr(k, end)) for k in self.knobs]) for end in ("low", "high"))
        inside = np.clip(self.scales(at), low + 1e-6 * (high - low), high - 1e-6 * (high - low))
        known = None if slopes is None else np.concatenate([slopes, np.diag(1.0 / self.spread)])
        how = {"jac": "2-point"} if known is None else {"jac": lambda _: known, "ftol": ENOUGH}
        best = solver()(
            self, inside, bounds=(low, high), diff_step=1e-3, x_scale=self.spread, max_nfev=evaluations, **how
        )
        rates = self.rates(best.x)
        rows = dict(zip(ids, best.jac, strict=False))
        after, wrong = self.predictor(rates), (self.wrong(self.start), self.wrong(rates))
        return Fit(
            start=self.start, rates=rates, moved=self.names, before=before, after=after, slopes=rows, wrong=wrong
        )


def knobs(rates: TimeRates | MemoryRates) -> Mapping[str, Knob]:
    """The rates of this kind that a fit may move."""
    return TIME_KNOBS if isinstance(rates, TimeRates) else MEMORY_KNOBS


def visible(predictor: Predictor | Verdicts, start: TimeRates | MemoryRates) -> dict[str, Vector]:
    """Rates that some run shows: moved by half of their spread either way they change a prediction; and by how much."""
    score: Callable[[TimeRates | MemoryRates], Vector] = predictor  # type: ignore[assignment]
    before, found = score(start), {}
    for name, knob in knobs(start).items():
        at = knob.to_scale(getattr(start, name))
        low, high = knob.to_scale(knob.low), knob.to_scale(knob.high)
        moved = [np.clip(at + sign * 0.5 * knob.spread, low, high) for sign in (-1.0, 1.0)]
        down, up = (
            score(replace(start, **{name: knob.from_scale(float(value))})) - before  # type: ignore[arg-type]
            for value in moved
        )
        if max(np.abs(down).max(), np.abs(up).max()) > VISIBLE:
            found[name] = up - down
    return found
