"""How far predictions of left-out runs are off: the intervals of profiles, their widening, and how often they hold.

A residual is ln(measured / predicted). The ends of a profile's interval are the 10th and 90th percentile of its
residuals inside of the range of the runs that were left in, a little further out as the runs of one block are alike
and the next block is another. Few residuals say little, so their ends are drawn to the mean over profiles: n residuals
weigh n / (n + SHRINK). Outside of the range both ends move out by one factor, the mean over profiles of the one that
holds 80 % of a profile's step times there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.calibration.runs import Run, grouped
from costmodel.rates import Interval

Vector = NDArray[np.float64]
SHARE = 0.8
"""Share of runs that an interval holds."""
SHRINK = 120.0
"""Residuals at which a profile's own ends weigh as much as the mean over profiles."""
LEAST, LEAST_OUTSIDE = 10, 5
"""Residuals inside and outside of the range below which a profile has no say in the mean over profiles."""
ALIKE = 0.25
"""Part of 1 / blocks by which the share is widened: 1 were all runs of a block the same, 0 were they as unlike as those
of other blocks."""
NARROWEST = 0.01
"""Half width at least, in the logarithm: what the same run differs by from one day to the next."""
TRUST = ("ok",)
KINDS = ("time", "memory")
ENDS = {"low": 0.5 - SHARE / 2.0, "high": 0.5 + SHARE / 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run predicted by rates that were not fitted to its block. step_time in s, memory in B, of the run's kind;
    `calibrated` is whether the runs that were left in cover it."""

    run: Run
    block: str
    step_time: float
    memory: float
    calibrated: bool

    @property
    def profile(self) -> str:
        """The shipped profile that the run goes with."""
        return self.run.problem.profile.shipped

    def off(self, kind: str) -> float | None:
        """ln(measured / predicted) of "time" or "memory"; None where it was not measured or is not to be trusted."""
        run = self.run
        measured, predicted = (run.step_time, self.step_time) if kind == "time" else (run.memory, self.memory)
        return float(np.log(measured / predicted)) if measured and not run.oom and run.trust in TRUST else None


def intervals(rows: Sequence[LeftOut], start: Interval) -> tuple[Interval, dict[str, Interval]]:
    """The interval over all profiles, and that of each profile with left-out runs.

    `start` is what stays where no profile has enough of them.
    """
    groups = grouped(rows, lambda it: it.profile)
    pooled = _pooled(list(groups.values()), start)
    found = {name: interval(own, pooled) for name, own in groups.items()}
    outside = _outside(groups, found) or start.outside
    return replace(pooled, outside=outside), {name: replace(it, outside=outside) for name, it in found.items()}


def interval(rows: Sequence[LeftOut], start: Interval) -> Interval:
    """The interval of one profile's left-out runs; see `interval_of`."""
    offs = {kind: _offs(rows, kind, inside=True) for kind in KINDS}
    return interval_of(offs, {kind: _blocks(rows, kind) for kind in KINDS}, start)


def interval_of(offs: Mapping[str, Vector], blocks: Mapping[str, int], start: Interval) -> Interval:
    """The interval of residuals of step "time" and "memory", of so many blocks, drawn to `start` where they are few."""
    ends = {}
    for kind, off in offs.items():
        own = len(off) / (len(off) + SHRINK)
        for end in ENDS:
            name = f"{kind}_{end}"
            common = (1.0 - own) * float(np.log(getattr(start, name)))
            ends[name] = _end(end, common + (own * _quantile(off, end, blocks[kind]) if len(off) else 0.0))
    return replace(start, **ends, memory_runs=start.memory_runs + len(offs["memory"]))


def _pooled(groups: Sequence[Sequence[LeftOut]], start: Interval) -> Interval:
    """Mean of the ends over the profiles that have enough residuals inside."""
    ends = {}
    for kind in KINDS:
        enough = [own for own in groups if len(_offs(own, kind, inside=True)) >= LEAST]
        for end in ENDS if enough else ():
            found = [_quantile(_offs(own, kind, inside=True), end, _blocks(own, kind)) for own in enough]
            ends[f"{kind}_{end}"] = _end(end, float(np.mean(found)))
    return replace(start, **ends, memory_runs=0.0)


def _outside(groups: dict[str, list[LeftOut]], found: dict[str, Interval]) -> float | None:
    """By how much wider than inside the residuals of step times lie outside; None where too few do."""
    factors = []
    for name, rows in groups.items():
        off, it = _offs(rows, "time", inside=False), found[name]
        if len(off) >= LEAST_OUTSIDE:
            scores = np.where(off > 0.0, off / np.log(it.time_high), off / np.log(it.time_low))
            factors.append(float(np.log(np.quantile(scores, SHARE))))
    return max(1.0, float(np.exp(np.mean(factors)))) if factors else None


def _quantile(off: Vector, end: str, blocks: int) -> float:
    """The end of the central share of residuals, widened for the blocks that they are of."""
    level = 0.5 + (ENDS[end] - 0.5) * (1.0 + ALIKE / blocks)
    return float(np.quantile(off, min(max(level, 0.0), 1.0)))


def _blocks(rows: Sequence[LeftOut], kind: str) -> int:
    """Blocks of the residuals inside, 1 without any."""
    return max(1, len({it.block for it in rows if it.calibrated and it.off(kind) is not None}))


def counts(rows: Sequence[LeftOut]) -> dict[str, int]:
    """How many residuals an interval rests on."""
    return {kind: len(_offs(rows, kind, inside=True)) for kind in KINDS}


def _offs(rows: Sequence[LeftOut], kind: str, *, inside: bool) -> Vector:
    return np.array([off for it in rows if it.calibrated == inside and (off := it.off(kind)) is not None])


def _end(end: str, logarithm: float) -> float:
    """An end of an interval, which the prediction itself lies in; never so near that a logarithm of it is 0."""
    least = float(np.exp(min(logarithm, -NARROWEST) if end == "low" else max(logarithm, NARROWEST)))
    return float(f"{least:.4g}")


def interval_lines(it: Interval, counts: Mapping[str, int], how: str, start: str) -> list[str]:
    """The lines of `[interval]` in a profile's file, each end with what it rests on: residuals of step "time" and
    "memory", found `how`, and `start`, to which few are drawn."""
    lines = ["[interval]"]
    for part in fields(it):
        count = counts.get(part.name.partition("_")[0], 0)
        tag = "fitted" if count >= SHRINK else "inherited"
        source = f"{count} runs, {how}" if count else start
        source += f", drawn to {start}" if 0 < count < SHRINK else ""
        lines.append(f'{part.name} = {{ value = {getattr(it, part.name):.4g}, tag = "{tag}", source = "{source}" }}')
    return [*lines, ""]


def holds(rows: Sequence[LeftOut], start: Interval) -> dict[str, dict[str, bool]]:
    """By the run's id, whether what was measured of it lies in the interval that all other blocks give."""
    blocks = grouped(rows, lambda it: (it.profile, it.block))
    spans: dict[tuple[str, str], Interval] = {}
    for key in blocks:
        pooled, found = intervals([it for it in rows if (it.profile, it.block) != key], start)
        spans[key] = found.get(key[0], pooled)
    return {it.run.id: _holds(it, spans[it.profile, it.block]) for it in rows}


def _holds(it: LeftOut, near: Interval) -> dict[str, bool]:
    span, found = near if it.calibrated else near.wider, {}
    for kind in KINDS:
        off = it.off(kind)
        if off is not None:
            found[kind] = bool(np.log(getattr(span, f"{kind}_low")) <= off <= np.log(getattr(span, f"{kind}_high")))
    return found
