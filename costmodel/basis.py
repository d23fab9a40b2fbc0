"""What each term of an estimate rests on: the rates that move it, with tag and source, and its time at light speed.

No list says which rates a term uses: each rate is moved by a tenth and the terms that follow are seen. So it is always
true of the formulas as they are, for the layout in question, whose small terms may not feel a rate at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from itertools import chain
from typing import get_args

from costmodel.estimate import Time, step_of, step_time
from costmodel.layouts import Layouts
from costmodel.light import speed_of_light
from costmodel.memory import Memory, memory
from costmodel.passes import passes_of
from costmodel.problem import Problem
from costmodel.split import StageTable
from hardware.cluster import Curve, Level
from hardware.gpu import Gpu
from hardware.provenance import Provenance, Tag

STEP = 0.1
"""How far a rate is moved: this part of it, or of the range of a share."""
COUNTS = 0.03
"""A rate decides about the tag of a term if its step moves the term by this much."""
WEAKER: tuple[Tag, ...] = get_args(Tag)
"""The tags, the strongest first."""
UNKNOWN = Provenance("assumed", "no source given")
ACROSS = ("bubble", "overhead")
"""Terms of time that follow from all stages, not from the slowest alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A number of the profile ("time.gemm"), the GPU ("gpu.peak.bf16") or the cluster's links that an estimate uses.

    `value` is in `unit` (SI), None for a table; `moves` is the share of a term by which STEP moves it. `under`
    names the rate of the profile that multiplies this one: where that was found in runs, it holds for their product.
    """

    name: str
    value: float | None
    unit: str
    provenance: Provenance
    under: str = ""
    moves: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a term rests on: its rates, the weakest first; seconds at the speed of light, None for memory."""

    rates: tuple[Rate, ...]
    speed_of_light: float | None = None

    @property
    def weakest(self) -> Rate | None:
        """The rate that the term's tag is of; None where no rate counts, as only shapes and number formats do."""
        return self.rates[0] if self.rates and self.rates[0].moves >= COUNTS else None

    @property
    def tag(self) -> Tag | None:
        """The weakest tag among the rates that count."""
        return self.weakest.provenance.tag if self.weakest else None


def basis(problem: Problem, layout: Layouts, stages: StageTable) -> dict[str, Basis]:
    """Of every term, "time_gemm" or "memory_weights", for the one row of `layout`.

    The stage that is slowest, or needs most memory, stays the same while rates move.
    """
    light, neediest = speed_of_light(problem, layout, stages), _neediest(problem, layout, stages)
    slowest = int(passes_of(problem, layout, stages).slowest[0])

    def seconds(job: Problem) -> dict[str, float]:
        passes = passes_of(job, layout, stages)
        whole = step_of(job, layout, stages, passes)
        one = whole if passes.slowest[0] == slowest else step_time(job, layout, stages.only(slowest))
        return {
            f"time_{term.name}": float(getattr(whole if term.name in ACROSS else one, term.name)[0])
            for term in fields(Time)
        }

    def bytes_(job: Problem) -> dict[str, float]:
        found = memory(job, layout, neediest)
        return {f"memory_{term.name}": float(getattr(found, term.name)[0]) for term in fields(Memory)}

    in_time = chain(_of_profile(problem, "time"), _of_gpu(problem), _of_links(problem))
    moved = _felt(problem, seconds, in_time)
    moved |= _felt(problem, bytes_, _of_profile(problem, "memory"))
    return {
        term: Basis(rates=_ordered(rates), speed_of_light=light.get(term.removeprefix("time_")))
        for term, rates in moved.items()
    }


def _neediest(problem: Problem, layout: Layouts, stages: StageTable) -> StageTable:
    """The one kind of stage whose memory `memory` tells."""
    kinds = map(stages.only, stages.present(layout))
    return max(kinds, key=lambda stage: float(memory(problem, layout, stage).total[0]))


Move = tuple[Rate, Problem]
"""A rate, and the problem with that rate moved."""


def _felt(
    problem: Problem, terms: Callable[[Problem], Mapping[str, float]], moves: Iterable[Move]
) -> dict[str, list[Rate]]:
    """The rates that each term feels, and how much."""
    before = terms(problem)
    found: dict[str, list[Rate]] = {term: [] for term in before}
    for rate, other in moves:
        for term, value in terms(other).items():
            if abs(value - before[term]) > 1e-9 * before[term]:
                found[term].append(replace(rate, moves=abs(value / before[term] - 1.0) if before[term] else 1.0))
    return found


def _ordered(rates: list[Rate]) -> tuple[Rate, ...]:
    """Those that count first, among these the weakest, among equals the one that moves most."""
    found = {rate.name for rate in rates if rate.provenance.tag != "assumed"}

    def place(rate: Rate) -> tuple[bool, int, float]:
        weak = -1 if rate.under in found else WEAKER.index(rate.provenance.tag)
        return rate.moves < COUNTS, -weak, -rate.moves

    return tuple(sorted(rates, key=place))


def _of_profile(problem: Problem, kind: str) -> Iterator[Move]:
    profile = problem.profile
    rates = getattr(profile, kind)
    for rate in fields(rates):
        value, name = getattr(rates, rate.name), f"{kind}.{rate.name}"
        new = _step(value, rate)
        if new != value:
            source = profile.provenance.get(name, UNKNOWN)
            known = Rate(name=name, value=value, unit=rate.metadata["unit"], provenance=source)
            yield known, replace(problem, profile=replace(profile, **{kind: replace(rates, **{rate.name: new})}))


def _step(value: float, rate: Field[float]) -> float:
    """A rate moved by STEP; a share at an end of its range to the other end, as it may be a switch."""
    (low, high), unit = rate.metadata["within"], rate.metadata["unit"]
    if (low, high, unit) == (0.0, 1.0, "1"):
        return 1.0 - value if value in (low, high) else value - STEP if value > STEP else value + STEP
    down = max(low, value * (1.0 - STEP))
    return down if down != value else value * (1.0 + STEP)


def _of_gpu(problem: Problem) -> Iterator[Move]:
    gpu, less = problem.cluster.gpu, 1.0 - STEP

    def move(name: str, value: float | None, unit: str, other: Gpu, under: str = "") -> Move:
        source = gpu.provenance.get(name, UNKNOWN)
        rate = Rate(name=f"gpu.{name}", value=value, unit=unit, provenance=source, under=under)
        return rate, replace(problem, cluster=replace(problem.cluster, gpu=other))

    for name in sorted({"bf16", problem.workload.precision}):
        peak = gpu.peak[name]
        yield move(f"peak.{name}", peak, "FLOP/s", replace(gpu, peak={**gpu.peak, name: less * peak}))
    for kind, table in gpu.gemm.items():
        yield move(f"gemm.{kind}.eta", None, "1", replace(gpu, gemm={**gpu.gemm, kind: table.scaled(less)}))
    width, share = gpu.memory_bandwidth, gpu.memory_efficiency
    yield move("memory_bandwidth", width, "B/s", replace(gpu, memory_bandwidth=less * width))
    slower = replace(gpu, memory_efficiency=less * share)
    yield move("memory_efficiency", share, "1", slower, under="time.memory_bandwidth")


def _of_links(problem: Problem) -> Iterator[Move]:
    """Of the levels that the job reaches; those beyond the first are under the share of the network that it gets."""
    cluster = problem.cluster

    def move(place: int, name: str, value: float | None, unit: str, level: Level) -> Move:
        name, under = f"levels.{level.name}.{name}", "time.network" if place else ""
        levels = (*cluster.levels[:place], level, *cluster.levels[place + 1 :])
        source = cluster.provenance.get(name, UNKNOWN)
        rate = Rate(name=f"cluster.{name}", value=value, unit=unit, provenance=source, under=under)
        return rate, replace(problem, cluster=replace(cluster, levels=levels))

    for place, level in enumerate(cluster.levels):
        width, taper = level.bandwidth, level.oversubscription
        yield move(place, "bandwidth", width, "B/s", replace(level, bandwidth=(1.0 - STEP) * width))
        if place or taper > 1.0:
            yield move(place, "oversubscription", taper, "1", replace(level, oversubscription=(1.0 + STEP) * taper))
        for name, curve in level.curves.items():
            slower = replace(level, curves={**level.curves, name: _slower(curve)})
            yield move(place, f"curves.{name}.busbw", None, "B/s", slower)
        if 0 < problem.workload.gpus <= level.size:
            return


def _slower(curve: Curve) -> Curve:
    reached = tuple(tuple((1.0 - STEP) * value for value in row) for row in curve.efficiency)
    return replace(curve, latency=tuple((1.0 + STEP) * value for value in curve.latency), efficiency=reached)
