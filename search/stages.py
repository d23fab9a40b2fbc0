"""Layers and recomputation of every pipeline stage by CP-SAT: the fastest slowest stage that memory allows, proven.

A layout's stages are PP x VPP chunks of consecutive layers; a stage may compute some of its layers again by another
recompute set than the layout's. For each number of layers that a stage may get, its fastest choice of recomputation
that fits is enumerated (search/stage_choices.py); CP-SAT places the layers. Of the assignments whose slowest stage is
fastest it takes those whose virtual stages of a number, which all ranks run at about the same time, differ least, of
these those whose stages take least in all, which is what a pipeline waits for as it fills and drains, and of these one
whose fullest stage has most room.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model_helper as cp_sat
from ortools.util.python.sorted_interval_list import Domain

from costmodel.layouts import Layouts
from costmodel.problem import Problem
from costmodel.split import Contents
from costmodel.virtual import chunks
from search.assignment import Assignment, by_set, held
from search.stage_choices import Choices

FAR = 2**62
"""Beyond it a bound is none."""
LIMIT = 2.0
"""CP-SAT's deterministic time at most for each question; the cases of docs/pipelines.md take a few hundredths."""


def assign(problem: Problem, layout: Layouts, *, own: bool = False) -> Assignment | None:
    """The best assignment for the one row of `layout`, with `own` of its layers alone, each stage computing again what
    the layout says; None if none fits into memory (or none is found in time)."""
    model = _Model(Choices(problem, layout, own=own))
    solutions = list[cp_sat.CpSolverResponse]()
    for goal in (model.slowest, *model.pace, model.total, model.fullest):
        found = model.cp.least(goal)
        if found.status not in (cp_sat.OPTIMAL, cp_sat.FEASIBLE):
            return None
        solutions.append(found)
        model.hold(found, goal)
    optimal = all(found.status == cp_sat.OPTIMAL for found in solutions)
    return model.read(solutions[-1], round(solutions[0].best_objective_bound), optimal)


def _parameters() -> cp_sat.SatParameters:
    chosen = cp_sat.SatParameters()
    chosen.num_workers, chosen.random_seed = 1, 0
    chosen.max_deterministic_time = LIMIT
    chosen.cp_model_probing_level = 0  # half of the time
    chosen.linearization_level = 2  # with many virtual stages a seventh of it
    chosen.catch_sigint_signal = False  # else Ctrl-C would end the process, here and later
    return chosen


Expression = Any
"""A sum of variables: CP-SAT's, whose own type knows no Python sum."""


value = cp_sat.ResponseHelper.value
"""Of a variable, in a solution."""


class _Cp:
    """A model of integers, written as protocol buffers: ortools' CpModel imports pandas."""

    def __init__(self) -> None:
        self.proto = cp_sat.CpModelProto()

    def variable(self, most: int) -> cp_sat.IntVar:
        """An integer from 0 to `most`."""
        return cp_sat.IntVar(self.proto).with_domain(Domain(0, most))

    def add(self, constraint: Expression, unless: cp_sat.IntVar | None = None) -> None:
        """A linear constraint, which need not hold where `unless` is 1."""
        added = self.proto.constraints.add()
        added.linear.vars.extend([variable.index for variable in constraint.vars])
        added.linear.coeffs.extend(constraint.coeffs)
        bounds = constraint.bounds.flattened_intervals()
        added.linear.domain.extend([end if abs(end) > FAR else end - constraint.offset for end in bounds])
        if unless is not None:
            added.enforcement_literal.append(-unless.index - 1)

    def table(self, variables: Sequence[cp_sat.IntVar], rows: Sequence[Sequence[int]]) -> None:
        """The variables take the values of one of the rows."""
        added = self.proto.constraints.add().table
        added.vars.extend([variable.index for variable in variables])
        added.values.extend([number for row in rows for number in row])

    def least(self, goal: cp_sat.IntVar) -> cp_sat.CpSolverResponse:
        """The solution with the smallest `goal` that is found in time."""
        self.proto.clear_objective()
        self.proto.objective.vars.append(goal.index)
        self.proto.objective.coeffs.append(1)
        solver = cp_sat.SolveWrapper()
        solver.set_parameters(_parameters())
        found: cp_sat.CpSolverResponse = solver.solve(self.proto)  # type: ignore[no-untyped-call]
        return found

    def start_from(self, found: cp_sat.CpSolverResponse, variables: Sequence[cp_sat.IntVar]) -> None:
        """Try the values of a solution first."""
        self.proto.clear_solution_hint()
        self.proto.solution_hint.vars.extend([variable.index for variable in variables])
        self.proto.solution_hint.values.extend([value(found, variable) for variable in variables])


class _Model:
    """CP-SAT's variables: where each chunk ends, what each rank so holds and costs."""

    def __init__(self, choices: Choices) -> None:
        self.choices, self.cp = choices, _Cp()
        self.apart = self.cp.variable(int(choices.may_part))  # MTP from the head
        self.sizes, self.sparse = self._chunks()
        self.slowest, self.total, self.fullest = (self.cp.variable(2**50) for _ in range(3))
        times = [self._rank(rank) for rank in choices.ranks]
        self.cp.add(self.total == sum(times))
        self.pace = self._pace()

    def hold(self, found: cp_sat.CpSolverResponse, goal: cp_sat.IntVar) -> None:
        """Keep what was reached, and start from there."""
        self.cp.add(goal <= value(found, goal))
        self.cp.start_from(found, (*self.sizes, self.apart))

    def read(self, solution: cp_sat.CpSolverResponse, bound: int, optimal: bool) -> Assignment:
        """The assignment that was found."""
        choices, apart = self.choices, bool(value(solution, self.apart))
        model, mtp, again = choices.problem.model, choices.count - 1 - apart, [Contents()] * choices.pp
        sizes = self._in_phase([value(solution, size) for size in self.sizes], mtp)
        bare = held(model, sizes, mtp, again)
        for rank in choices.ranks:
            found = choices.best(rank, tuple((bare[one]["dense"], bare[one]["moe"]) for one in rank), apart)
            assert found is not None
            for one, more in zip(rank, found.again, strict=True):
                again[one] = more
        stages, sets = held(model, sizes, mtp, again), len(choices.problem.profile.recompute)
        return Assignment(
            chunks=tuple(sizes),
            mtp=mtp,
            recompute=tuple(by_set(stage, choices.base, sets) for stage in stages),
            stages=stages,
            seconds=value(solution, self.slowest) * choices.tick,
            bound=bound * choices.tick,
            optimal=optimal,
            own=choices.own,
        )

    def _in_phase(self, sizes: Sequence[int], mtp: int) -> Sequence[int]:
        """The virtual stages as `chunks` has them, where that leaves to each stage what it holds."""
        pp, vpp, model = self.choices.pp, self.choices.vpp, self.choices.problem.model
        counts = [sum(sizes[rank::pp]) for rank in range(pp)]
        usual = chunks(counts, vpp, ends=self.choices.ends, apart=mtp < len(sizes) - 1)
        same, nothing = [Contents()] * pp, min(usual) < 0
        return sizes if nothing or held(model, usual, mtp, same) != held(model, sizes, mtp, same) else usual

    def _chunks(self) -> tuple[list[cp_sat.IntVar], list[Expression]]:
        """Layers of each chunk, and those with experts among them."""
        count, model = self.choices.count, self.choices.problem.model
        sizes = [self.cp.variable(self.choices.most) for _ in range(count)]
        for chunk, size in enumerate(sizes):
            least = self.choices.least(chunk)
            ends = self.choices.may_part and chunk >= count - 2
            self.cp.add(size >= (least * (1 - self.apart) if ends else least))
        self.cp.add(sum(sizes) == model.layers)
        self.cp.add(sizes[-1] <= model.layers * (1 - self.apart))
        self._alike(sizes)
        if model.moe_layers in (0, model.layers):
            return sizes, [size * (model.moe_layers > 0) for size in sizes]
        before = [0, *np.cumsum(model.layer_is_moe).tolist()]
        leading = next(n for n in range(model.layers + 1) if all(model.layer_is_moe[n:]))
        edges = [self.cp.variable(model.layers) for _ in range(count + 1)]
        experts: list[Expression] = []
        for chunk, edge in enumerate(edges):
            self.cp.add(edge == sum(sizes[:chunk]))
            if sum(map(self.choices.least, range(chunk))) >= leading:
                experts.append(edge - (model.layers - model.moe_layers))
                continue
            experts.append(self.cp.variable(model.moe_layers))
            self.cp.table((edge, experts[-1]), list(enumerate(before)))
        return sizes, [right - left for left, right in pairwise(experts)]

    def _alike(self, sizes: Sequence[cp_sat.IntVar]) -> None:
        """Virtual stages of a rank differ by a layer at most; embedding and loss count as one where they may."""
        last = len(sizes) - 1
        slots = [size + self.choices.ends * (chunk in (0, last)) for chunk, size in enumerate(sizes)]
        for rank in range(self.choices.pp if self.choices.vpp > 1 else 0):
            own = list(range(rank, len(sizes), self.choices.pp))
            least = self.cp.variable(self.choices.most)
            for chunk in own:
                free = self.choices.may_part and chunk >= last - 1
                for bound in (slots[chunk] >= least, slots[chunk] <= least + 1):
                    self.cp.add(bound, unless=self.apart if free else None)

    def _pace(self) -> list[cp_sat.IntVar]:
        """Time of the phases, each as long as its fullest virtual stage, before anything is computed again; none where
        `chunks` makes them as short as the fullest stage, as layers of one kind may lie anywhere."""
        choices, pp, apart = self.choices, self.choices.pp, self.apart
        if choices.vpp == 1 or len(choices.kinds) == 1:
            return []
        ticks = {name: round(seconds / choices.tick) for name, seconds in choices.seconds.items()}
        depths = choices.problem.model.mtp_layers
        depth = depths * ticks.get("mtp", 0)
        beside = {
            0: ticks["embedding"],
            choices.count - 2: apart * (depth - depths * ticks["head"]),
            choices.count - 1: ticks["head"] + depth - apart * (depth - depths * ticks["head"]),
        }
        phases = [self.cp.variable(2**49) for _ in range(choices.vpp)]
        for chunk, (size, moe) in enumerate(zip(self.sizes, self.sparse, strict=True)):
            layers = (size - moe) * ticks["dense"] + moe * ticks["moe"]
            self.cp.add(phases[chunk // pp] >= layers + beside.get(chunk, 0))
        pace = self.cp.variable(2**50)
        self.cp.add(pace == sum(phases))
        return [pace]

    def _rank(self, rank: tuple[int, ...]) -> cp_sat.IntVar:
        """Ties a rank's layers to its time and memory, and returns its time."""
        choices, groups = self.choices, [range(one, self.choices.count, self.choices.pp) for one in rank]
        counts: list[cp_sat.IntVar] = []
        for group in groups:
            moe = sum(self.sparse[chunk] for chunk in group)
            for layers in (sum(self.sizes[chunk] for chunk in group) - moe, moe):
                counts.append(self.cp.variable(choices.problem.model.layers))
                self.cp.add(counts[-1] == layers)
        time, memory = self.cp.variable(2**49), self.cp.variable(2**49)
        rows = [
            (*(n for pair in held for n in pair), int(apart), found.ticks, found.kib)
            for held, apart, found in choices.of(rank)
        ]
        self.cp.table([*counts, self.apart, time, memory], rows)
        for (few, least), (many, most) in pairwise(_hull([(sum(row[:-3]), row[-2]) for row in rows])):
            self.cp.add((many - few) * (time - least) >= (most - least) * (sum(counts) - few))  # implied; proves sooner
        self.cp.add(self.slowest >= time)
        self.cp.add(self.fullest >= memory)
        return time


def _hull(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The lower hull of points (x, y), from left to right."""
    found: list[tuple[int, int]] = []
    for x, y in sorted(dict(sorted(points, reverse=True)).items()):
        while len(found) > 1 and _above(found[-2], found[-1], (x, y)):
            found.pop()
        found.append((x, y))
    return found


def _above(left: tuple[int, int], point: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether a point lies on or above the line between two others."""
    return (point[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (point[0] - left[0])
