"""Layers and recomputation of every pipeline stage by CP-SAT: the fastest slowest stage that memory allows, proven.

A layout's stages are PP x VPP chunks of consecutive layers; a stage may compute some of its layers again by another
recompute set than the layout's. For each number of layers that a stage may get, its fastest choice of recomputation
that fits is enumerated (search/stage_choices.py); CP-SAT places the layers. Of the assignments whose slowest stage is
fastest it takes those whose stages take least in all, which is what a pipeline waits for as it fills and drains, and of
these one whose fullest stage has most room.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from costmodel.layouts import Layouts
from costmodel.problem import Problem
from costmodel.split import Contents
from search.assignment import Assignment, by_set, held
from search.stage_choices import Choices

LIMIT = 2.0
"""CP-SAT's deterministic time at most for each question; the cases of docs/pipelines.md take a few hundredths."""


def assign(problem: Problem, layout: Layouts) -> Assignment | None:
    """The best assignment for the one row of `layout`; None if none fits into memory (or none is found in time)."""
    model = _Model(Choices(problem, layout))
    solver, optimal = cp_model.CpSolver(), True
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = LIMIT
    solver.parameters.cp_model_probing_level = 0  # half of the time
    solver.parameters.linearization_level = 2  # with many virtual stages a seventh of it
    solver.parameters.catch_sigint_signal = False  # else Ctrl-C would end the process, here and later
    bounds = []
    for goal in (model.slowest, model.total, model.fullest):
        model.cp.minimize(goal)
        status = solver.solve(model.cp)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        optimal &= status == cp_model.OPTIMAL
        bounds.append(round(solver.best_objective_bound))
        model.hold(solver, goal)
    return model.read(solver, bounds[0], optimal)


Expression = Any
"""A sum of variables: CP-SAT's, whose own type knows no Python sum."""


class _Model:
    """CP-SAT's variables: where each chunk ends, what each rank so holds and costs."""

    def __init__(self, choices: Choices) -> None:
        self.choices, self.cp = choices, cp_model.CpModel()
        self.apart = self.cp.new_int_var(0, int(choices.may_part), "MTP apart from the head")
        self.sizes, self.sparse = self._chunks()
        self.slowest, self.total, self.fullest = (self.cp.new_int_var(0, 2**50, name) for name in ("T", "sum", "KiB"))
        times = [self._rank(rank) for rank in choices.ranks]
        self.cp.add(self.total == sum(times))

    def hold(self, solver: cp_model.CpSolver, goal: cp_model.IntVar) -> None:
        """Keep what was reached, and start from there."""
        self.cp.add(goal <= solver.value(goal))
        self.cp.clear_hints()  # type: ignore[no-untyped-call]
        for variable in (*self.sizes, self.apart):
            self.cp.add_hint(variable, solver.value(variable))

    def read(self, solver: cp_model.CpSolver, bound: int, optimal: bool) -> Assignment:
        """The assignment that was found."""
        choices, apart = self.choices, bool(solver.value(self.apart))
        sizes = [solver.value(size) for size in self.sizes]
        model, mtp, again = choices.problem.model, choices.count - 1 - apart, [Contents()] * choices.pp
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
            seconds=solver.value(self.slowest) * choices.tick,
            bound=bound * choices.tick,
            optimal=optimal,
        )

    def _chunks(self) -> tuple[list[cp_model.IntVar], list[Expression]]:
        """Layers of each chunk, and those with experts among them."""
        count, model = self.choices.count, self.choices.problem.model
        sizes = [self.cp.new_int_var(0, self.choices.most, f"layers of {chunk}") for chunk in range(count)]
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
        edges = [self.cp.new_int_var(0, model.layers, f"layers up to {chunk}") for chunk in range(count + 1)]
        experts: list[Expression] = []
        for chunk, edge in enumerate(edges):
            self.cp.add(edge == sum(sizes[:chunk]))
            if sum(map(self.choices.least, range(chunk))) >= leading:
                experts.append(edge - (model.layers - model.moe_layers))
                continue
            experts.append(self.cp.new_int_var(0, model.moe_layers, f"experts up to {chunk}"))
            self.cp.add_element(edge, before, experts[-1])
        return sizes, [right - left for left, right in pairwise(experts)]

    def _alike(self, sizes: Sequence[cp_model.IntVar]) -> None:
        """Virtual stages of a rank differ by a layer at most; embedding and loss count as one where they may."""
        last = len(sizes) - 1
        slots = [size + self.choices.ends * (chunk in (0, last)) for chunk, size in enumerate(sizes)]
        for rank in range(self.choices.pp if self.choices.vpp > 1 else 0):
            own = list(range(rank, len(sizes), self.choices.pp))
            least = self.cp.new_int_var(0, self.choices.most, f"smallest of {rank}")
            for chunk in own:
                free = self.choices.may_part and chunk >= last - 1
                for bound in (slots[chunk] >= least, slots[chunk] <= least + 1):
                    constraint = self.cp.add(bound)
                    if free:
                        constraint.only_enforce_if(~self.apart)

    def _rank(self, rank: tuple[int, ...]) -> cp_model.IntVar:
        """Ties a rank's layers to its time and memory, and returns its time."""
        choices, groups = self.choices, [range(one, self.choices.count, self.choices.pp) for one in rank]
        counts: list[cp_model.IntVar] = []
        for group in groups:
            moe = sum(self.sparse[chunk] for chunk in group)
            for number, layers in enumerate((sum(self.sizes[chunk] for chunk in group) - moe, moe)):
                counts.append(self.cp.new_int_var(0, choices.problem.model.layers, f"{number} on {group[0]}"))
                self.cp.add(counts[-1] == layers)
        time, memory = (self.cp.new_int_var(0, 2**49, f"{name} of {rank[0]}") for name in ("time", "KiB"))
        rows = [
            (*(n for pair in held for n in pair), int(apart), found.ticks, found.kib)
            for held, apart, found in choices.of(rank)
        ]
        self.cp.add_allowed_assignments([*counts, self.apart, time, memory], rows)
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
