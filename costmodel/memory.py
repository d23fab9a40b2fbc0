"""Memory: what one rank of a pipeline stage needs at its peak, term by term, in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.flight import Flight
from costmodel.held import quantities
from costmodel.layouts import Column, Layouts, gather
from costmodel.model import Model
from costmodel.problem import Problem
from costmodel.quantity import quantity
from costmodel.split import MOVED, OWN, SET, StageTable, highest
from costmodel.unit_memory import FLIES, RESIDENT, WORKING, Costs, distinct_costs, resident_costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one GPU of the pipeline stage that needs most, float64 columns [B]."""

    weights: Column = quantity("weights, with their copies in low precision", "B")
    gradients: Column = quantity("gradient buffers", "B")
    optimizer: Column = quantity("master weights and moments", "B")
    gathered: Column = quantity("layers gathered (ZeRO 3) and gradients not yet scattered (ZeRO 2, 3)", "B")
    activations: Column = quantity("activations of the micro-batches in flight", "B")
    recompute_buffer: Column = quantity("activations recomputed at one time", "B")
    logits: Column = quantity("output head and logits at the loss, on the last stage", "B")
    buffers: Column = quantity("weight-gradient, pipeline, tensor-parallel and expert-dispatch buffers", "B")
    fragmentation: Column = quantity("reserved by the allocator, not allocated, at the peak", "B")
    overhead: Column = quantity("context, kernels and communicators outside of the allocator", "B")

    @property
    def allocated(self) -> Column:
        """Peak of what the allocator hands out."""
        return allocated({name: getattr(self, name) for name in ALLOCATED})

    @property
    def reserved(self) -> Column:
        """Peak of what the allocator takes from the GPU."""
        return self.allocated + self.fragmentation

    @property
    def total(self) -> Column:
        """What must fit into the GPU's usable memory."""
        return self.reserved + self.overhead


ALLOCATED: tuple[str, ...] = (*RESIDENT, *WORKING)
FLYING = ("dense", "moe", "depths")


def memory(problem: Problem, layouts: Layouts, stages: StageTable) -> Memory:
    """Peak memory of each layout, at the stage that needs most; `stages` must hold every pp in use.

    The peak of a stage is the sum of its states, its activations in flight and the transients that meet when
    the first backward pass starts: recomputed layer, head (last stage) and buffers. A term is a sum of costs
    that the layout fixes, each times a quantity of the stage (`_quantities`).
    """
    _, terms = _worst(problem, layouts, stages.heaviest())
    return Memory(
        **terms,
        fragmentation=fragmentation(problem, allocated(terms)),
        overhead=outside(problem) + np.zeros(len(layouts)),
    )


def neediest(problem: Problem, layouts: Layouts, stages: StageTable) -> dict[str, Column]:
    """The columns of the stage that `memory` speaks of: the one that needs most, the earliest of equals."""
    stages = stages.heaviest()
    worst, _ = _worst(problem, layouts, stages)
    rows = stages.rows(layouts)
    return {name: values[rows, worst] for name, values in stages.columns.items()}


def allocated(terms: Mapping[str, Column]) -> Column:
    """What the allocator hands out of these terms; what ZeRO divides and what it does not are added up apart."""
    return _sum(terms[name] for name in RESIDENT) + _sum(terms[name] for name in WORKING)


def fragmentation(problem: Problem, handed_out: Column) -> Column:
    """What the allocator reserves beyond what it hands out."""
    return (problem.profile.memory.reserved_ratio - 1.0) * handed_out


def outside(problem: Problem) -> float:
    """What lies outside of the allocator."""
    return problem.profile.memory.overhead


def _worst(problem: Problem, layouts: Layouts, stages: StageTable) -> tuple[Column, dict[str, Column]]:
    """Kind of the stage that needs most, the first of equals, and its terms; padding never wins."""
    kinds = stages.present(layouts)
    held, at_work = resident(problem, layouts, stages, kinds), working(problem, layouts, layouts, stages)
    worst, most = np.zeros(len(layouts), dtype=np.int64), np.full(len(layouts), -np.inf)
    chosen = {name: np.zeros(len(layouts)) for name in ALLOCATED}
    for number, terms in zip(kinds, (one | other for one, other in zip(held, at_work, strict=True)), strict=True):
        need = allocated(terms)
        more = need > most
        worst, most = np.where(more, number, worst), np.maximum(need, most)
        chosen = {name: np.where(more, terms[name], column) for name, column in chosen.items()}
    return worst, chosen


def resident(problem: Problem, layouts: Layouts, stages: StageTable, kinds: Sequence[int]) -> list[dict[str, Column]]:
    """RESIDENT terms of a stage of each kind [B]; they need the skeleton, zero_stage, dp_shard and DualPipe or not."""
    costs, table = resident_costs(problem, layouts), _quantities(problem.model, stages)
    rows = stages.rows(layouts)
    return [_terms(RESIDENT, costs, {name: table[name][:, kind].take(rows) for name in costs}) for kind in kinds]


def working(
    problem: Problem, layouts: Layouts, pipeline: Layouts, stages: StageTable, costs: Costs | None = None
) -> Iterator[dict[str, Column]]:
    """WORKING terms of a stage of each kind [B]; they need neither zero_stage nor dp_shard.

    `pipeline` is the same table, or gives vpp and schedule for it along a leading axis; activations alone have that.
    `costs` are those of each row, if they are known.
    """
    layouts = stages.told(layouts)
    costs, table = costs or gather(*distinct_costs(problem, layouts, stages)), _quantities(problem.model, stages)
    own = [name.removesuffix(FLIES) for name in costs if name.endswith(SET + FLIES)]
    flight, rows = Flight.of(pipeline, _micro_batches(problem, layouts)), stages.rows(layouts)
    for kind in stages.present(layouts):
        stage = {name: column[:, kind].take(rows) for name, column in table.items()}
        if own:
            stage |= _again(stages.some(kind, rows, layouts.recompute_layers), own)
        yield _terms(WORKING, costs, stage) | {"activations": _flying(flight, layouts.pp, costs, stage)}


def _again(some: Mapping[str, Column], names: Sequence[str]) -> dict[str, Column]:
    """Quantities of a stage that computes some of its layers again: those of StageTable.extras."""
    found = {f"{side} {name}": some[way + name] for side, way in (("own", ""), ("mirror", "mirror_")) for name in names}
    return found | {f"some {name}": held for name, held in highest(some, names).items()}


def _terms(names: Sequence[str], costs: Costs, stage: Mapping[str, Column]) -> dict[str, Column]:
    terms = {name: np.zeros(1) for name in names}
    for quantity_, parts in costs.items():
        if quantity_ in stage and stage[quantity_].any():
            for term, cost in parts.items():
                terms[term] = terms[term] + stage[quantity_] * cost
    return terms


@lru_cache(maxsize=256)
def _quantities(model: Model, stages: StageTable) -> dict[str, Column]:
    """What a stage holds that costs are per unit of, shape (splits, kinds): both stages of a DualPipe rank, and
    `own` and `mirror` apart, whose micro-batches in flight differ."""
    own, mirror = ({name: stages.columns[prefix + name] for name in OWN} for prefix in ("", "mirror_"))
    held = {name: own[name] + mirror[name] for name in OWN}
    found = quantities(model, held)
    dense, moe = np.minimum(found["dense"], 1.0), np.minimum(found["moe"], 1.0)
    found |= {"only dense": dense * (1.0 - moe), "only moe": moe * (1.0 - dense), "dense and moe": dense * moe}
    found |= {
        "rank": stages.columns["rank"],
        "any": np.ones_like(dense),
        "ends": held["embedding"] + held["head"],
    }
    for prefix, stage in (("own", own), ("mirror", mirror)):
        apart = quantities(model, stage)
        found |= {f"{prefix} {name}": apart[name] for name in FLYING}
    for name in stages.extras:
        found |= {f"own {name}": stages.columns[name], f"mirror {name}": stages.columns[f"mirror_{name}"]}
    computed = highest(stages.columns, (name for name in stages.extras if name != MOVED))
    return found | {f"some {name}": count for name, count in computed.items()}


def _micro_batches(problem: Problem, layouts: Layouts) -> Column:
    ranks = (layouts.dp * layouts.micro_batch).astype(np.float64)
    return np.maximum(problem.workload.global_batch / ranks, 1.0)


def _flying(flight: Flight, pp: Column, costs: Costs, stage: Mapping[str, Column]) -> Column:
    """Activations of the micro-batches that a stage, and the mirror stage of a DualPipe rank, keep."""
    total: Column = np.zeros(1)
    for side, rank in (("own", stage["rank"]), ("mirror", pp - 1.0 - stage["rank"])):
        kept: Column = np.zeros(1)
        for name in (name.removesuffix(FLIES) for name in costs if name.endswith(FLIES)):
            held = stage[f"{side} {name}"]
            if held.any():
                kept = kept + held * costs[name + FLIES]["activations"]
        if kept.any():
            total = total + flight.at(rank) * kept
    return total


def _sum(columns: Iterable[Column]) -> Column:
    first, *rest = columns
    for column in rest:
        first = first + column
    return first
