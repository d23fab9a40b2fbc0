"""Fit the rates of a shipped profile to a user's own runs, GPU by GPU, and tell by runs held out whether it helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.by_gpu import WORTH
from costmodel.calibration.fit import SCALE, VISIBLE, Fit, Predictor, fit, knobs, refit, visible
from costmodel.calibration.predict import Progress, predict
from costmodel.calibration.runs import Run, grouped
from costmodel.calibration.verdicts import judged
from costmodel.rates import MemoryRates, TimeRates

Vector = NDArray[np.float64]
Rates = TimeRates | MemoryRates

LEAST = 3
"""Fewer runs than this fit nothing."""
RUNS_A_RATE = 3
"""Runs for each rate that is fitted: a dozen runs fit four."""
FOLDS, SOURCES = 5, 3
"""Parts that are held out in turn: the sources of the runs, or this many parts where there are fewer sources."""
ASTRAY = float(np.log(10.0))
"""Measured and predicted further apart than this in the median (in ln): no rates explain it, a wrong unit does."""
LARGE = 0.5
"""The error of rates is large where less than this share of the runs lies in the profile's interval, which 8 of 10
runs that were not fitted should."""
FAR = 0.4
"""A run that a fit leaves further off than this (in ln), and OUTLYING times the median, is named."""
OUTLYING = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """One GPU's step times ("time") or memory against a profile: errors are ln(predicted / measured) by run.

    `fit` is None where there are too few runs, or where these are so far `off` the rates of `start` that no fit makes
    sense; `kept` tells whether it predicts runs held out of it visibly better than the rates that it starts from.
    `seen` holds how many runs and sources each fitted rate rests on, `shown` the rates that some run shows. A fit that
    brings `verdicts` on memory nearer to the right side is kept too.
    """

    gpu: str
    kind: str
    runs: tuple[Run, ...]
    start: Rates
    off: Vector
    fit: Fit | None = None
    held_out: Vector = field(default_factory=lambda: np.empty(0))
    parts: str = ""
    seen: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    verdicts: tuple[Run, ...] = ()

    @property
    def kept(self) -> bool:
        if self.fit is None:
            return False
        before, after = loss(self.off), loss(self.held_out)
        return after < WORTH * before or (after <= before and self.fit.wrong[1] < WORTH * self.fit.wrong[0])

    @property
    def astray(self) -> bool:
        """Whether measured and predicted are orders of magnitude apart: a matter of units, not of rates."""
        return abs(float(np.median(self.off))) > ASTRAY

    @property
    def unseen(self) -> Vector:
        """ln(measured / predicted) by rates that did not see the run: of a fit that is kept or as they were."""
        return -(self.held_out if self.kept else self.off)

    @property
    def inside(self) -> int:
        """How many runs lie in the interval of the profile that the fit starts from, by rates that did not see them."""
        it = self.runs[0].problem.profile.interval
        low, high = (np.log(getattr(it, f"{self.kind}_{end}")) for end in ("low", "high"))
        return int(np.sum((self.unseen >= low) & (self.unseen <= high)))

    @property
    def large(self) -> bool:
        """Whether the error stays large: see LARGE."""
        return self.inside < LARGE * len(self.runs)

    @property
    def untold(self) -> tuple[str, ...]:
        """Rates that no run shows."""
        told = {*self.shown, *(self.fit.moved if self.fit else ())}
        return tuple(name for name in knobs(self.start) if name not in told)

    @property
    def left(self) -> tuple[str, ...]:
        """Rates that the runs show and that are not fitted: they tell too little of them beside those that are."""
        return tuple(name for name in self.shown if self.fit is None or name not in self.fit.moved)

    def rests_on(self, rate: str) -> str:
        """How many runs and sources show a fitted rate, and the end of its range that it lies at, in words."""
        end = self.fit.bounded.get(rate) if self.fit else None
        return counted(*self.seen[rate]) + (f", at its {end}" if end else "")

    @property
    def outliers(self) -> list[tuple[Run, float]]:
        """Runs that stay far off, with predicted / measured."""
        if self.fit is None:
            return []
        off = np.abs(self.fit.after)
        far = off > max(FAR, OUTLYING * float(np.median(off)))
        return [
            (run, float(np.exp(at))) for run, at, is_far in zip(self.runs, self.fit.after, far, strict=True) if is_far
        ]


def counted(runs: int, sources: int) -> str:
    """12 runs of 1 source."""
    return f"{runs} run{'s' if runs > 1 else ''} of {sources} source{'s' if sources > 1 else ''}"


def loss(off: Vector) -> float:
    """Mean of the robust loss that a fit minimises (soft L1 of scale SCALE): a single wrong row cannot decide it."""
    return float(np.mean(np.sqrt(1.0 + (off / SCALE) ** 2) - 1.0))


def refine(runs: Sequence[Run], progress: Progress | None = None) -> list[Refined]:
    """Fits from the rates that the runs' profile has for each GPU, of step time and of memory."""
    usable = [it.run for it in predict([run for run in runs if not run.oom and run.trust != "low"])]
    limits = grouped(judged(runs), lambda run: run.problem.cluster.gpu.name)
    jobs = []
    for gpu, own in grouped(usable, lambda run: run.problem.cluster.gpu.name).items():
        for kind, measured in (("time", [r for r in own if r.step_time]), ("memory", [r for r in own if r.memory])):
            if measured:
                jobs.append((gpu, kind, measured, folds(measured)))
    steps = _counter(sum(1 + len(parts) for *_, (_, parts) in jobs), progress)
    return [_refined(gpu, kind, measured, *parts, steps, limits.get(gpu, ())) for gpu, kind, measured, parts in jobs]


def _counter(total: int, progress: Progress | None) -> Callable[[], None]:
    done = iter(range(1, total + 1))
    return lambda: progress(next(done), total) if progress else None


def folds(runs: Sequence[Run]) -> tuple[str, list[list[int]]]:
    """What is held out in turn, in words, and the places of its runs: each source, or every FOLDS-th run."""
    sources = list(grouped(range(len(runs)), lambda place: runs[place].source).values())
    if len(sources) >= SOURCES:
        return f"{len(sources)} sources in turn", sources
    parts = min(FOLDS, len(runs)) if len(runs) >= LEAST else 0
    return f"{parts} parts in turn", [list(range(first, len(runs), parts)) for first in range(parts)]


def _refined(
    gpu: str,
    kind: str,
    runs: Sequence[Run],
    parts: str,
    held: Sequence[Sequence[int]],
    step: Callable[[], None],
    limits: Sequence[Run],
) -> Refined:
    profile = runs[0].problem.profile
    start: Rates = profile.time if kind == "time" else profile.memory
    predictor = Predictor(runs, type(start))
    found = Refined(gpu=gpu, kind=kind, runs=tuple(runs), start=start, off=predictor(start))
    if len(runs) < LEAST or found.astray:
        return found
    effects = visible(predictor, start)
    some = clearest(effects, max(1, len(runs) // RUNS_A_RATE))
    whole = fit(runs, start, only=some, verdicts=limits)  # type: ignore[type-var]
    step()
    held_out = np.empty(len(runs))
    for places in held:
        rest = refit([run for place, run in enumerate(runs) if place not in places], start, whole)  # type: ignore[type-var]
        held_out[places] = Predictor([runs[place] for place in places], type(start))(rest.rates)
        step()
    return replace(
        found,
        fit=whole,
        held_out=held_out,
        parts=parts,
        seen={name: _rests_on(runs, effects[name]) if name in effects else _all(limits) for name in whole.moved},
        shown=tuple(effects),
        verdicts=tuple(limits) if kind == "memory" else (),
    )


def clearest(effects: dict[str, Vector], most: int) -> list[str]:
    """The rates that the runs tell best: each next one is that whose effect the ones before explain least."""
    left, chosen = dict(effects), list[str]()
    while left and len(chosen) < most:
        name = max(left, key=lambda each: float(np.linalg.norm(left[each])))
        along = left.pop(name)
        size = float(np.linalg.norm(along))
        if size < VISIBLE:
            break
        chosen.append(name)
        along = along / size
        left = {other: effect - (effect @ along) * along for other, effect in left.items()}
    return [name for name in effects if name in chosen]


def _all(runs: Sequence[Run]) -> tuple[int, int]:
    return len(runs), len({run.source for run in runs})


def _rests_on(runs: Sequence[Run], effect: Vector) -> tuple[int, int]:
    moved = [run for run, size in zip(runs, np.abs(effect), strict=True) if size > VISIBLE]
    return len(moved), len({run.source for run in moved})


def mean_error(off: Vector) -> float:
    """Mean of |predicted / measured - 1|."""
    return float(np.mean(np.abs(np.expm1(off))))
