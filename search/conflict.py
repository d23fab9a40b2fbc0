"""Which rules leave a request without a layout: the fewest that no candidate keeps together.

A candidate breaks a set of rules. A set of rules is in conflict if it meets every such set, so the smallest cover of
the sets seen so far is either a conflict, and then a minimal one, or there is a candidate that it does not meet,
which joins the sets (the implicit hitting sets of Ignatiev et al., CP 2015). Rules are read as NumPy masks on the
staged expansion of the search; memory is a rule as well, and the floors keep it from being computed where it is
hopeless.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from costmodel.layouts import Column, Layouts
from costmodel.memory import memory
from costmodel.problem import Problem
from search.expansion import Expansion, Table
from search.possible import ALL_RANKS
from search.rule import Rule
from search.rules import inner_rules, skeleton_rules
from search.rules_memory import MEGABYTE, floors, memory_rule
from search.space import INNER_AXES, SKELETON_AXES, SearchSpace

LAUNCHABLE = ("pp_layers", "expert_group", "schedule", "shard_group")
"""Rules without which a tuple of axis values is no layout: it breaks the rule of memory, too."""
BLOCKS = (8, 32, 128)
"""Skeletons that are expanded at a time; the last is repeated."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A candidate, the rules that it breaks as a bit mask, and the memory that it needs in bytes (inf if none)."""

    row: dict[str, int]
    broken: int
    need: float


def leaner(space: SearchSpace) -> SearchSpace:
    """The space without the counts of recomputed layers that it leaves free: none needs less than all layers."""
    if "recompute_layers" in space.limits or 0 not in space.axes["recompute_layers"]:
        return space
    return replace(space, axes={**space.axes, "recompute_layers": (0,)})


class Candidates:
    """The candidates of a request, and which rules (bits in documented order, memory last) each of them breaks."""

    def __init__(self, problem: Problem, space: SearchSpace) -> None:
        self.problem, self.space = problem, space
        outer = [rule for rule in skeleton_rules(problem, space) if rule.name != "memory_floor"]
        self.rules = (*outer, *inner_rules(problem, space), memory_rule(problem))
        self.memory = 1 << (len(self.rules) - 1)
        self.legal = self.memory - 1
        self.usable = problem.memory_limit
        self.grid = space.grid(problem.workload.gpus)
        self.broken = _broken(outer, self.grid)
        self._stages = problem.split([pp for pp in (1, *space.axes["pp"]) if pp <= problem.model.layers])
        self._floors: dict[bool, Column] = {}

    def within(self, axes: Mapping[str, tuple[int, ...]]) -> Candidates:
        """Those candidates whose axes have the given values."""
        view = copy(self)
        kept = np.all([np.isin(self.grid[axis], axes[axis]) for axis in SKELETON_AXES if axis in axes], axis=0)
        rows = np.flatnonzero(np.broadcast_to(kept, self.broken.shape))
        floors = {strict: self._floor(strict)[rows] for strict in (False, True)}
        view.space = replace(self.space, axes={**self.space.axes, **axes})
        view.grid = {axis: column[rows] for axis, column in self.grid.items()}
        view.broken, view._floors = self.broken[rows], floors
        return view

    def bits(self, names: Sequence[str]) -> int:
        """The mask of some rules."""
        return sum(1 << index for index, rule in enumerate(self.rules) if rule.name in names)

    def named(self, mask: int) -> tuple[Rule, ...]:
        """The rules of a mask, in documented order."""
        return tuple(rule for index, rule in enumerate(self.rules) if mask >> index & 1)

    def needs(self, table: Table) -> Column:
        """Memory of each row [B]; inf for what is no layout."""
        legal = np.all([rule.mask(table) for rule in self.rules if rule.name in LAUNCHABLE], axis=0)
        need = np.full(len(legal), np.inf)
        if legal.any():
            need[legal] = memory(self.problem, Layouts.from_columns(table).take(legal), self._stages).total
        return need

    def by_floor(self, kept: int, limit: float = np.inf) -> Iterator[tuple[float, Table]]:
        """Launchable rows that keep the rules `kept` and whose floor is within `limit`, from the lowest floor up.

        Each table comes with a bound in bytes below which no row of it, nor of any later table, can be.
        """
        kept |= self.bits(LAUNCHABLE)
        floor = self._floor(bool(kept & self.bits(("zero_with_pp",))))
        rows = np.flatnonzero((self.broken & kept == 0) & (floor <= limit))
        rows = rows[np.argsort(floor[rows], kind="stable")]
        expansion = Expansion(self.problem, self.space, [rule for rule in self.named(kept) if _inner(rule)])
        for block in _blocks(rows):
            for table in expansion.tables({axis: column[block] for axis, column in self.grid.items()}):
                yield float(floor[block[0]]), table

    def leanest(self, kept: int) -> Witness | None:
        """Of the launchable candidates that keep the rules `kept`, the one that needs least, or any that fits."""
        best: Witness | None = None
        for floor, table in self.by_floor(kept):
            if best and best.need <= max(floor, self.usable):
                break
            need = self.needs(table)
            least = int(np.argmin(need))
            if best is None or need[least] < best.need:
                best = self._witness(table, least, float(need[least]))
        return best

    def fitting(self, kept: int) -> Iterator[Table]:
        """Tables of launchable rows that keep the rules `kept` and fit into memory."""
        for _, table in self.by_floor(kept, self.usable):
            fits = self.needs(table) <= self.usable
            if fits.any():
                yield {axis: column[fits] for axis, column in table.items()}

    def keeping(self, kept: int) -> Witness | None:
        """A candidate that keeps the rules `kept` (memory too, if it is among them); None if there is none."""
        tables = self.fitting(kept) if kept & self.memory else self._projected(kept)
        for table in tables:
            broken = _broken(self.rules[:-1], table)
            least = int(np.argmin(np.bitwise_count(broken)))
            one = {axis: column[least : least + 1] for axis, column in table.items()}
            return self._witness(one, 0, float(self.needs(one)[0]))
        return None

    def _projected(self, kept: int) -> Iterator[Table]:
        """Candidates that keep `kept`, one value for each inner axis and one skeleton for all that no rule looks at."""
        rules = self.named(kept)
        seen = {axis for rule in rules for axis in rule.columns}
        rows = np.flatnonzero(self.broken & kept == 0)
        rows = rows[np.argsort(np.bitwise_count(self.broken[rows]), kind="stable")]
        columns = [self.grid[axis][rows] for axis in SKELETON_AXES if axis in seen] or [np.zeros_like(rows)]
        rows = rows[np.sort(np.unique(np.stack(columns), axis=1, return_index=True)[1])]
        axes = {axis: values if axis in seen else _usual(axis, values) for axis, values in self.space.axes.items()}
        expansion = Expansion(self.problem, replace(self.space, axes=axes), [rule for rule in rules if _inner(rule)])
        for block in _blocks(rows):
            yield from expansion.tables({axis: column[block] for axis, column in self.grid.items()})

    def _witness(self, table: Table, index: int, need: float) -> Witness:
        row = {axis: int(column[index]) for axis, column in table.items()}
        broken = int(_broken(self.rules[:-1], {axis: np.array([value]) for axis, value in row.items()})[0])
        return Witness(row, broken | self.memory * (need > self.usable), need)

    def _floor(self, strict: bool) -> Column:
        """Lower bound on the memory of each skeleton [B]; `strict`: only for the ZeRO stages that its pp allows."""
        if strict not in self._floors:
            problem, profile = self.problem, self.problem.profile
            if not strict:
                free = tuple(sorted({*profile.zero_stages, *profile.zero_stages_with_pp}))
                problem = replace(problem, profile=replace(profile, zero_stages=free, zero_stages_with_pp=free))
            one = np.zeros_like(self.broken)
            parts = [one + part.megabytes(*(self.grid[axis] for axis in part.columns)) for part in floors(problem)]
            self._floors[strict] = np.sum(parts, axis=0) * MEGABYTE
        return self._floors[strict]


def conflict(candidates: Candidates) -> list[tuple[Rule, Witness]]:
    """The smallest set of rules that no candidate keeps, each with a candidate that breaks it and no other of the set.

    Of equally small sets the first in documented order; memory is in it only if there are layouts that keep all other
    rules. The request must have no feasible layout.
    """
    seen = [witness for witness in [candidates.keeping(candidates.legal)] if witness]
    rules = len(candidates.rules) - (not seen)
    while True:
        core = _smallest_cover([witness.broken for witness in seen], rules)
        found = candidates.keeping(core)
        if found is None:
            break
        seen.append(found)
    alone = {witness.broken & core: witness for witness in reversed(seen)}
    return [(rule, alone[candidates.bits((rule.name,))]) for rule in candidates.named(core)]


def _smallest_cover(sets: Sequence[int], rules: int) -> int:
    """The smallest mask that meets every set; of equally small ones the one with the earliest rules."""
    for size in range(rules + 1):
        for chosen in combinations(range(rules), size):
            mask = sum(1 << index for index in chosen)
            if all(mask & one for one in sets):
                return mask
    raise ValueError("a candidate breaks no rule, so there is no conflict")


def _broken(rules: Sequence[Rule], table: Table) -> Column:
    """The rules that each row breaks, as a bit mask."""
    mask = np.zeros(len(table["tp"]), dtype=np.int64)
    for index, rule in enumerate(rules):
        mask |= np.where(rule.mask(table), 0, 1 << index)
    return mask


def _inner(rule: Rule) -> bool:
    return any(axis in INNER_AXES for axis in rule.columns)


def _usual(axis: str, values: tuple[int, ...]) -> tuple[int, ...]:
    """Values of an axis that no rule in question looks at: those that other rules are likely to allow."""
    if axis in ("sequence_parallel", "zero_stage"):
        return values
    if axis == "dp_shard" and ALL_RANKS in values:
        return (ALL_RANKS,)
    return values[-1:] if axis == "recompute" else values[:1]


def _blocks(rows: Column) -> Iterator[Column]:
    at, number = 0, 0
    while at < len(rows):
        size = BLOCKS[min(number, len(BLOCKS) - 1)]
        yield rows[at : at + size]
        at, number = at + size, number + 1
