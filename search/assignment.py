"""What each stage of a pipeline holds: of one layout, told in the columns of a frontier and as Megatron's string."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from costmodel.estimate import Estimate, passes_of
from costmodel.layouts import Layouts
from costmodel.problem import Problem
from costmodel.split import Contents, StageTable, contents, given_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What each stage of a pipeline holds.

    chunks     layers of each virtual stage, in the order of the layers; chunk c lies on stage c mod PP
    mtp        the chunk that holds the multi-token-prediction modules
    recompute  of each stage, the layers under each recompute set of the profile
    stages     the same as columns of a StageTable
    seconds    forward and backward of a micro-batch on the slowest stage
    bound      what no assignment can be faster than, proven; equal to `seconds` if that is optimal
    optimal    whether CP-SAT proved every part of the choice
    """

    chunks: tuple[int, ...]
    mtp: int
    recompute: tuple[tuple[int, ...], ...]
    stages: tuple[Contents, ...]
    seconds: float
    bound: float
    optimal: bool

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of each stage."""
        pp = len(self.stages)
        return tuple(sum(self.chunks[rank::pp]) for rank in range(pp))

    @property
    def gap(self) -> float:
        """What the slowest stage may lose against the proven bound, as a share of its time."""
        return max(0.0, 1.0 - self.bound / self.seconds)

    @property
    def table(self) -> StageTable:
        """What `estimate` takes."""
        return given_table(self.stages, self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Balanced:
    """The stages of one layout and what they cost; `usual` is what the closed-form split costs.

    `assignment` is CP-SAT's where that is faster, or as fast with more headroom, or alone fits; else the closed form's.
    """

    assignment: Assignment
    cost: Estimate
    usual: Estimate
    chosen: bool

    @property
    def gain(self) -> float:
        """Step time that balancing saves, as a share of the closed form's; 0 where that does not fit."""
        if not self.chosen or self.usual.memory_headroom[0] < 0:
            return 0.0
        return 1.0 - float(self.cost.step_time[0] / self.usual.step_time[0])


def closed_form(problem: Problem, layout: Layouts) -> Assignment:
    """The closed-form split of the one row of `layout`, each stage's layers in equal virtual stages."""
    own = passes_of(problem, layout, problem.split([int(layout.pp[0])])).own
    return _closed_form(problem, layout.row(0), float(own[0, 0] + own[1, 0]))


def _closed_form(problem: Problem, row: Mapping[str, int], seconds: float) -> Assignment:
    counts, sets = problem.split([row["pp"]]).split(row["pp"], row["vpp"]), len(problem.profile.recompute)
    return Assignment(
        chunks=chunks(counts, row["vpp"], ends=problem.profile.embedding_loss_as_layers and row["vpp"] > 1),
        mtp=row["pp"] * row["vpp"] - 1,
        recompute=tuple(tuple(count * (code == row["recompute"]) for code in range(sets)) for count in counts),
        stages=tuple(contents(problem.model, counts)),
        seconds=seconds,
        bound=seconds,
        optimal=False,
    )


def chunks(counts: Sequence[int], vpp: int, *, ends: bool) -> tuple[int, ...]:
    """Layers of each virtual stage, in the order of the layers, where stage r has counts[r]; embedding and loss count
    as a layer each if `ends`."""
    last, rows = len(counts) - 1, []
    for rank, count in enumerate(counts):
        whole, rest = divmod(count + ends * ((rank == 0) + (rank == last)), vpp)
        sizes = [whole + (number < rest) for number in range(vpp)]
        sizes[0] -= ends * (rank == 0)
        sizes[-1] -= ends * (rank == last)
        rows.append(sizes)
    return tuple(row[number] for number in range(vpp) for row in rows)


def layout_string(assignment: Assignment, depths: int) -> str:
    """Megatron-Core's --pipeline-model-parallel-layout: E embedding, t layer, m MTP, L loss, | between virtual stages
    in the order of the layers, `x*n` and `(x|)*n` for repetition."""
    last = len(assignment.chunks) - 1
    parts = [
        "E" * (chunk == 0)
        + _times("t", count)
        + _times("m", depths * (chunk == assignment.mtp))
        + "L" * (chunk == last)
        for chunk, count in enumerate(assignment.chunks)
    ]
    runs = [(part, len(list(same))) for part, same in groupby(parts[:-1])]
    return "".join(f"({part}|)*{count}," if count > 1 else f"{part}|" for part, count in runs) + parts[-1]


def _times(letter: str, count: int) -> str:
    return letter * count if count < 2 else f"{letter}*{count}"


def recomputed(problem: Problem, assignment: Assignment) -> Iterator[str]:
    """For each stage, how many layers each recompute set computes again: "4 none", "1 none, 3 full"."""
    names = [choice.name for choice in problem.profile.recompute]
    for counts in assignment.recompute:
        said = [f"{count} {name}" for count, name in zip(counts, names, strict=True) if count]
        yield ", ".join(said) or "no layer"


def stage_columns(problem: Problem, layouts: Layouts, balanced: Sequence[Balanced | None] = ()) -> dict[str, Any]:
    """The columns of a frontier that tell of stages; of a layout that was not balanced, the closed form's."""
    known: dict[tuple[int, ...], tuple[Any, ...]] = {}
    rows = []
    for index, key in enumerate(
        zip(*(getattr(layouts, axis).tolist() for axis in ("pp", "vpp", "recompute")), strict=True)
    ):
        own = balanced[index] if balanced else None
        if own is None and key not in known:
            known[key] = _told(problem, _closed_form(problem, layouts.row(index), np.nan), 0.0)
        rows.append(known[key] if own is None else _told(problem, own.assignment, own.gain))
    names = ("layers_per_stage", "recompute_layers_per_stage", "recompute_per_stage", "pipeline_layout", "balance_gain")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return columns | {"balance_gain": np.array(columns["balance_gain"])}


def _told(problem: Problem, found: Assignment, gain: float) -> tuple[Any, ...]:
    again = tuple(sum(counts) - counts[_nothing(problem)] for counts in found.recompute)
    runs = [
        text if (count := len(list(same))) == 1 else f"{count} x {text}"
        for text, same in groupby(recomputed(problem, found))
    ]
    return found.layers, again, " | ".join(runs), layout_string(found, problem.model.mtp_layers), gain


def _nothing(problem: Problem) -> int:
    """Code of the recompute set that computes nothing again."""
    return problem.profile.recompute_code("none")
