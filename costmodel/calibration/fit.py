"""Fit a profile's rates to measured runs: robust, bounded, pulled towards the profile that it starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.predict import FIRST_STAGE, batches, of_kind, stages_of, with_rates
from costmodel.calibration.runs import Run, grouped
from costmodel.estimate import step_time
from costmodel.layouts import Layouts
from costmodel.memory import memory
from costmodel.problem import Problem
from costmodel.profile import Profile
from costmodel.rates import MemoryRates, TimeRates

Vector = NDArray[np.float64]
Rates = TypeVar("Rates", TimeRates, MemoryRates)

SCALE = 0.1
"""Residuals of ln(predicted / measured) above this count linearly, not squared."""
WEIGHTS = {"ok": 1.0, "medium": 0.4}
"""Weight of a run's residual by its trust."""
LEAST_RUNS = 5
"""Fewer runs than this fit nothing: a profile's own rates stay."""
WORTH = 0.9
"""A fit is kept if it lowers the mean error to less than this share of it."""
VISIBLE = 2e-3
"""A rate whose expected spread moves no run by this much (in ln) is not fitted."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A rate that may be fitted: bounds that physics gives, and how far it is expected to move (in ln, or absolute)."""

    low: float
    high: float
    spread: float
    logarithmic: bool = True

    def to_scale(self, value: float) -> float:
        """The value on the scale that is fitted."""
        return float(np.log(max(value, self.low))) if self.logarithmic else value

    def from_scale(self, value: float) -> float:
        """Back from the fitted scale."""
        return float(np.exp(value)) if self.logarithmic else float(value)


TIME_KNOBS: Mapping[str, Knob] = {
    "gemm": Knob(0.3, 1.1, 0.15),
    "gemm_fp8": Knob(0.3, 1.5, 0.2),
    "gemm_fp4": Knob(0.3, 1.5, 0.2),
    "grouped_gemm": Knob(0.2, 1.2, 0.3),
    "grouped_wgrad": Knob(0.1, 1.2, 0.3),
    "attention_forward": Knob(0.05, 0.75, 0.3),
    "attention_backward": Knob(0.05, 0.75, 0.3),
    "memory_bandwidth": Knob(0.2, 1.15, 0.25),
    "kernel": Knob(0.5e-6, 3e-5, 0.6),
    "layer_floor": Knob(1e-5, 1e-2, 0.8),
    "tp_floor": Knob(1e-7, 5e-3, 2.0),
    "tp_overlap": Knob(0.0, 0.9, 0.25, False),
    "ep_overlap": Knob(0.0, 0.95, 0.25, False),
    "dp_overlap": Knob(0.0, 1.0, 0.25, False),
    "pp_overlap": Knob(0.0, 1.0, 0.25, False),
    "network": Knob(0.2, 1.05, 0.3),
    "straggler": Knob(0.0, 0.03, 0.004, False),
    "step_fixed": Knob(1e-3, 2.0, 1.0),
}
MEMORY_KNOBS: Mapping[str, Knob] = {
    "logit_bytes": Knob(1.0, 16.0, 0.4),
    "mlp_saved": Knob(4.0, 8.0, 0.15),
    "gathered_input": Knob(0.0, 4.0, 1.0, False),
    "reserved_ratio": Knob(1.0, 1.4, 0.06),
}


KNOWN_LIMITS = {name: (knob.low, knob.high) for name, knob in {**TIME_KNOBS, **MEMORY_KNOBS}.items()}
"""Least and most that a fitted rate may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Rates after a fit; `moved` are those that the runs identify, `before` and `after` ln(predicted / measured)."""

    rates: TimeRates | MemoryRates
    moved: tuple[str, ...]
    before: Vector
    after: Vector


class Predictor:
    """ln(predicted / measured) of runs, under any rates of one kind."""

    def __init__(self, runs: Sequence[Run], kind: type[TimeRates] | type[MemoryRates]) -> None:
        self.runs, self.kind = tuple(runs), kind
        self.batches = batches(self.runs)
        value = [run.step_time if kind is TimeRates else run.memory for run in self.runs]
        self.measured: Vector = np.log(np.array(value, dtype=np.float64))

    def __call__(self, rates: TimeRates | MemoryRates) -> Vector:
        found = np.empty(len(self.runs))
        for batch in self.batches:
            problem = with_rates(batch.problem, rates)
            score = self._seconds if self.kind is TimeRates else self._bytes
            found[batch.rows] = score(problem, batch.layouts, batch.rows)
        return np.log(found) - self.measured

    def _seconds(self, problem: Problem, layouts: Layouts, rows: NDArray[np.int64]) -> Vector:
        total: Vector = step_time(problem, layouts, stages_of(problem, layouts)).total
        return total

    def _bytes(self, problem: Problem, layouts: Layouts, rows: NDArray[np.int64]) -> Vector:
        stages = stages_of(problem, layouts)
        seen = memory(problem, layouts, stages.first() if problem.profile.shipped in FIRST_STAGE else stages)
        return np.array([of_kind(seen, self.runs[row].memory_kind)[i] for i, row in enumerate(rows.tolist())])


def fit(runs: Sequence[Run], start: Rates, *, tight: float = 1.0) -> Fit:
    """Rates fitted to `runs`; each stays near `start` unless the runs move it.

    Minimises a robust sum (soft L1 of scale SCALE) of ln(predicted / measured) and of each rate's move from `start`
    over its expected spread times `tight`. Rates that no run shows are left. Needs SciPy (`meshscout[calibrate]`).
    """
    from scipy.optimize import least_squares

    known = TIME_KNOBS if isinstance(start, TimeRates) else MEMORY_KNOBS
    predictor = Predictor(runs, type(start))
    before = predictor(start)
    names = _visible(predictor, start, known, before)
    knobs = [known[name] for name in names]
    weights = np.array([WEIGHTS.get(run.trust, 1.0) for run in runs])
    first = np.array([knob.to_scale(getattr(start, name)) for name, knob in zip(names, knobs, strict=True)])
    spread = tight * np.array([knob.spread for knob in knobs])
    low = np.array([knob.to_scale(knob.low) for knob in knobs])
    high = np.array([knob.to_scale(knob.high) for knob in knobs])

    def rates(x: Vector) -> Rates:
        return replace(start, **{n: k.from_scale(v) for n, k, v in zip(names, knobs, x, strict=True)})

    def residuals(x: Vector) -> Vector:
        off = predictor(rates(x)) / SCALE
        robust = weights * np.sign(off) * np.sqrt(2.0 * (np.sqrt(1.0 + off**2) - 1.0))
        found: Vector = np.concatenate([robust, (x - first) / spread])
        return found

    if not names:
        return Fit(rates=start, moved=(), before=before, after=before)
    inside = np.clip(first, low + 1e-6 * (high - low), high - 1e-6 * (high - low))
    best = least_squares(residuals, inside, bounds=(low, high), diff_step=1e-3, x_scale=spread, max_nfev=20)
    return Fit(rates=rates(best.x), moved=tuple(names), before=before, after=predictor(rates(best.x)))


def _visible(
    predictor: Predictor, start: TimeRates | MemoryRates, known: Mapping[str, Knob], before: Vector
) -> list[str]:
    """Rates that some run shows: moved by half of their spread either way they change a prediction."""
    names = []
    for name, knob in known.items():
        at = knob.to_scale(getattr(start, name))
        low, high = knob.to_scale(knob.low), knob.to_scale(knob.high)
        moved = [np.clip(at + sign * 0.5 * knob.spread, low, high) for sign in (-1.0, 1.0)]
        tried = [
            predictor(replace(start, **{name: knob.from_scale(float(value))}))  # type: ignore[arg-type]
            for value in moved
        ]
        if max(np.abs(each - before).max() for each in tried) > VISIBLE:
            names.append(name)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was fitted for one GPU or architecture of a profile."""

    key: str
    runs: int
    sources: tuple[str, ...]
    time: Fit | None
    memory: Fit | None


def calibrate(runs: Sequence[Run], profile: Profile) -> list[Calibration]:
    """Fits for each architecture and, closer to these, for each GPU of it that has enough runs.

    A GPU with few runs keeps its architecture's rates, an architecture with few the profile's own.
    """
    usable = [run for run in runs if not run.oom and run.trust != "low"]
    found = []
    for key, group in grouped(usable, lambda run: run.problem.cluster.gpu.architecture).items():
        whole = _calibration(key, group, profile.time, profile.memory, 1.0)
        if whole is None:
            continue
        found.append(whole)
        time = whole.time.rates if whole.time else profile.time
        room = whole.memory.rates if whole.memory else profile.memory
        by_gpu = grouped(group, lambda run: run.problem.cluster.gpu.name)
        for gpu, own in by_gpu.items():
            if len(by_gpu) > 1 and (part := _calibration(gpu, own, time, room, 0.5)):  # type: ignore[arg-type]
                found.append(part)
    return found


def _calibration(key: str, runs: Sequence[Run], time: TimeRates, room: MemoryRates, tight: float) -> Calibration | None:
    timed = [run for run in runs if run.step_time]
    sized = [run for run in runs if run.memory]
    by_time = _worth(fit(timed, time, tight=tight)) if len(timed) >= LEAST_RUNS else None
    by_size = _worth(fit(sized, room, tight=tight)) if len(sized) >= LEAST_RUNS else None
    if by_time is None and by_size is None:
        return None
    used = (timed if by_time else []) + (sized if by_size else [])
    return Calibration(
        key=key,
        runs=len({run.id for run in used}),
        sources=tuple(sorted({run.source for run in used})),
        time=by_time,
        memory=by_size,
    )


def _worth(found: Fit) -> Fit | None:
    """The fit, unless it explains next to nothing: rates that were sourced otherwise stay then."""
    before, after = (float(np.mean(np.abs(np.expm1(off)))) for off in (found.before, found.after))
    return found if after < WORTH * before else None


def to_toml(profile: str, found: Sequence[Calibration], file: str) -> str:
    """The text of a profile file: `base` and each fitted rate with what it rests on."""
    lines = [f"# Rates fitted by `meshscout calibrate {file}`. Do not edit: run it again.", f'base = "{profile}"', ""]
    for it in found:
        for kind, part in (("time", it.time), ("memory", it.memory)):
            if part is None or not part.moved:
                continue
            error = float(np.mean(np.abs(np.expm1(part.after))))
            basis = f"{len(part.after)} runs of {len(it.sources)} sources, mean error {error:.1%}"
            lines.append(f"[gpu.{it.key}.{kind}]")
            for rate in fields(part.rates):
                if rate.name in part.moved:
                    value = float(f"{getattr(part.rates, rate.name):.4g}")
                    lines.append(f'{rate.name} = {{ value = {value!r}, tag = "fitted", source = "{basis}" }}')
            lines.append("")
    return "\n".join(lines)
