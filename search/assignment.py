"""What each stage of a pipeline holds: as CP-SAT or the closed form has it, in words and as Megatron's string."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from costmodel.estimate import Estimate
from costmodel.layouts import Layouts
from costmodel.model import Model
from costmodel.passes import passes_of
from costmodel.problem import Problem
from costmodel.split import MOVED, OWN, Contents, StageTable, contents, given_table
from costmodel.virtual import chunks

KINDS = {"dense": "dense", "moe": "MoE"}
"""Kinds of layer, and what they are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What each stage of a pipeline holds.

    chunks     layers of each virtual stage, in the order of the layers; chunk c lies on stage c mod PP
    mtp        the chunk that holds the multi-token-prediction modules
    recompute  of each stage, the layers under each recompute set of the profile
    stages     the same as columns of a StageTable
    seconds    forward and backward of a micro-batch on the slowest stage
    bound      what no assignment can be faster than, proven; equal to `seconds` if that is optimal, 0 if nothing is
    optimal    whether CP-SAT proved every part of the choice
    own        whether every stage has the layout's own recomputation, multi-token prediction included; else that keeps
               everything
    """

    chunks: tuple[int, ...]
    mtp: int
    recompute: tuple[tuple[int, ...], ...]
    stages: tuple[Contents, ...]
    seconds: float
    bound: float
    optimal: bool
    own: bool = False

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
        ends = self.chunks[-1] == 0
        if not self.own:
            return given_table(self.stages, self.layers, ends=ends)
        bare = [{name: count for name, count in stage.items() if ":" not in name} for stage in self.stages]
        return replace(given_table(bare, self.layers, ends=ends), given=False)


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
    return closed_form_of(problem, layout.row(0), float(own[0, 0] + own[1, 0]))


def closed_form_of(problem: Problem, row: Mapping[str, int], seconds: float) -> Assignment:
    """The same of a layout's axes, where the slowest stage takes `seconds`."""
    counts, sets = problem.split([row["pp"]]).split(row["pp"], row["vpp"]), len(problem.profile.recompute)
    partial, stages = row["recompute_layers"], contents(problem.model, counts)
    base = 0 if partial else row["recompute"]
    if partial:
        has = {"dense": problem.model.dense_layers, "moe": problem.model.moe_layers}
        kinds, code = [kind for kind, layers in has.items() if layers], row["recompute"]
        stages = [stage | again(kinds, stage["dense"], stage["moe"], code, partial) for stage in stages]
    return Assignment(
        chunks=chunks(counts, row["vpp"], ends=problem.profile.embedding_loss_as_layers and row["vpp"] > 1),
        mtp=row["pp"] * row["vpp"] - 1,
        recompute=tuple(by_set(stage, base, sets) for stage in stages),
        stages=tuple(stages),
        seconds=seconds,
        bound=0.0,
        optimal=False,
        own=True,
    )


def held(model: Model, chunks: Sequence[int], mtp: int, again: Sequence[Contents]) -> tuple[Contents, ...]:
    """What each stage holds where virtual stages get `chunks` layers and chunk `mtp` the multi-token prediction.

    `again` are the layers of each stage that another recompute set than the layout's computes again; in one order, so
    that sums over what a stage holds are the same to the bit.
    """
    each, stages, pp = contents(model, chunks), list[Contents](), len(again)
    names = sorted({name for more in again for name, count in more.items() if count})
    for rank, more in enumerate(again):
        own = {name: sum(chunk[name] for chunk in each[rank::pp]) for name in OWN}
        stages.append(own | {name: more.get(name, 0) for name in names})
    if mtp < len(chunks) - 1:
        stages = [stage | {"mtp": 0, MOVED: 0} for stage in stages]
        stages[-1][MOVED] += model.mtp_layers
        stages[mtp % pp] |= {"mtp": model.mtp_layers, MOVED: stages[mtp % pp][MOVED] - model.mtp_layers}
    return tuple(stages)


def again(kinds: Sequence[str], dense: int, moe: int, code: int, layers: int) -> Contents:
    """The layers by kind of which a recompute set holds for the first `layers` of a stage, the dense ones before."""
    first = min(layers, dense)
    found = {"dense": first, "moe": min(layers - first, moe)}
    return {f"{kind}:{code}": found[kind] for kind in kinds}


def by_set(stage: Contents, base: int, sets: int) -> tuple[int, ...]:
    """Layers of a stage under each of the profile's recompute sets; `base` is that of the others."""
    counts = [0] * sets
    for name, count in stage.items():
        if ":" in name:
            counts[int(name.partition(":")[2])] += count
    counts[base] += stage["dense"] + stage["moe"] - sum(counts)
    return tuple(counts)


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
    """For each stage, how many layers each recompute set computes again: "4 none", "1 none, 3 full"; where a stage has
    layers of both kinds under several sets "1 dense none, 2 dense full, 1 MoE full"."""
    names = [choice.name for choice in problem.profile.recompute]
    for stage, counts in zip(assignment.stages, assignment.recompute, strict=True):
        said = [f"{count} {name}" for count, name in zip(counts, names, strict=True) if count]
        if len(said) > 1 and stage["dense"] and stage["moe"]:
            said = [
                f"{count} {KINDS[kind]} {name}"
                for kind in KINDS
                for count, name in zip(_of_kind(stage, counts, kind), names, strict=True)
                if count
            ]
        yield ", ".join(said) or "no layer"


def _of_kind(stage: Contents, counts: Sequence[int], kind: str) -> tuple[int, ...]:
    """Layers of a kind on a stage under each recompute set, where `counts` are those of both."""
    again = by_set(stage, 0, len(counts))
    base = next((code for code, count in enumerate(counts) if count > again[code]), 0)
    alone = {name: count * (name.partition(":")[0] == kind) for name, count in stage.items()}
    return by_set(alone, base, len(counts))
