"""Scored: one layout with its estimate; Row and Step, in which `explain` tells it."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel import params
from costmodel.estimate import Estimate
from costmodel.layouts import Layouts
from costmodel.problem import Problem
from costmodel.split import StageTable
from search.assignment import Assignment

SPEEDS = ("bubble over ideal", "bubble share", "efficiency", "communication overhead")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure in `unit` (SI): the estimate's, None where it has none, and the hand formula's beside it.

    `formula` is the hand formula where there is one, `model_formula` that of the estimate; `noted` where `why` speaks
    of the hand formula, `speed` where the figure is a time or follows from one.
    """

    name: str
    formula: str
    model: float | None
    unit: str
    why: str = ""
    hand: float | None = None
    corrected: float | None = None
    noted: bool = False
    model_formula: str = ""

    @property
    def speed(self) -> bool:
        """Whether a layout that does not fit has no such figure."""
        return self.unit == "s" or self.name.startswith("MFU") or self.name in SPEEDS


@dataclass(frozen=True, slots=True)
class Step:
    """One of the six steps, with its verdict in one line."""

    name: str
    verdict: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A layout (a table of one row) with its estimate; `given` are its stages where they are not the closed form's."""

    problem: Problem
    layout: Layouts
    cost: Estimate
    given: Assignment | None = None

    def axis(self, name: str) -> int:
        """The value of an axis."""
        return int(getattr(self.layout, name)[0])

    @property
    def stages(self) -> StageTable:
        """What its stages hold."""
        return self.problem.split([self.axis("pp")]) if self.given is None else self.given.table

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return self.stages.split(self.axis("pp"), self.axis("vpp"))

    def memory(self, term: str) -> float:
        """A term of memory in bytes."""
        return float(getattr(self.cost.memory, term)[0])

    def time(self, term: str) -> float:
        """A term of the step time in seconds."""
        return float(getattr(self.cost.time, term)[0])

    @property
    def fits(self) -> bool:
        """Whether the memory suffices, whatever the other rules say."""
        return bool(self.cost.memory_headroom[0] >= 0)

    @property
    def micro_batches(self) -> float:
        """Micro-batches of a step."""
        return self.problem.workload.global_batch / (self.axis("dp") * self.axis("micro_batch"))

    @property
    def routed(self) -> float:
        """Parameters of all routed experts."""
        model = self.problem.model
        return float(model.moe_layers * model.experts * params.counts(model).expert)

    @property
    def held(self) -> tuple[float, float]:
        """Parameters of a rank, the mean over the stages: outside of the routed experts, and the routed ones."""
        stages = self.axis("pp")
        dense = (params.total(self.problem.model) - self.routed) / (self.axis("tp") * stages)
        return dense, self.routed / (stages * self.axis("ep") * self.axis("etp"))
