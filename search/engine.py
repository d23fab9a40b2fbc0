"""The search: skeletons x inner axes -> chunks -> rules -> estimate -> frontier.

Skeletons come from CP-SAT. Each block of them is crossed with one inner axis after the other (EXPANSION); a rule is
applied as soon as its last column is there, and every row that it rejects stands for all tuples of the axes still to
come. What is left is estimated in chunks of at most CHUNK rows. Rules are counted in this order: skeleton rules,
then those of each axis of EXPANSION, then memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod

import numpy as np

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import Column, Layouts
from costmodel.problem import Problem
from search.pareto import Frontier, Points, concatenate
from search.rule import Rule
from search.rules import inner_rules, skeleton_rules
from search.rules_memory import memory_rule
from search.skeletons import Skeletons, enumerate_skeletons
from search.space import ALL_RANKS, INNER_AXES, SearchSpace

CHUNK = 65_536
BLOCK = 64
EXPANSION = ("sequence_parallel", "schedule", "vpp", "micro_batch", "zero_stage", "dp_shard", "recompute")
"""Inner axes in the order in which skeletons are crossed with them."""
assert sorted(EXPANSION) == sorted(INNER_AXES)

Progress = Callable[[int, int], None]
Table = dict[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where every candidate went: candidates = sum of pruned + bounded + feasible.

    `pruned` counts each rejected tuple under the first rule, in the order of its keys, that rejects it; `scored` are
    the tuples whose memory and time were computed, `bounded` those that a proven bound excluded.
    """

    candidates: int
    pruned: Mapping[str, int]
    bounded: int
    scored: int
    feasible: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """What CP-SAT did: its final status and how many skeletons it enumerated."""

    status: str
    skeletons: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The ranked frontier and the account of the space.

    `frontier` and `estimate` are equally long (`estimate` is None when nothing is feasible); `feasible` holds every
    feasible layout, ranked, if the search was asked to keep them; `seconds` is wall time by phase.
    """

    problem: Problem
    space: SearchSpace
    account: Account
    solver: Solver
    frontier: Layouts
    estimate: Estimate | None
    feasible: Layouts | None
    seconds: Mapping[str, float] = field(default_factory=dict)


def search(
    problem: Problem,
    space: SearchSpace,
    *,
    threads: int | None = None,
    keep_all: bool = False,
    progress: Progress | None = None,
) -> SearchResult:
    """Score every candidate of the space.

    `threads` (default: the cores that the process may use) changes the speed and nothing else. `progress` is called
    with the number of skeletons done and their total. Raises InputError where no layout can be meant (see
    enumerate_skeletons); a space without a feasible layout is a result with an empty frontier.
    """
    start = time.perf_counter()
    skeletons = enumerate_skeletons(problem, space, skeleton_rules(problem, space))
    enumerated = time.perf_counter()
    expansion = Expansion(problem, space)
    total = _run(expansion, skeletons, threads or _cores(), keep_all, progress)
    account = _account(expansion, skeletons, total)
    ranked, kept = total.frontier.points.layouts, concatenate(total.kept).ranked().layouts if keep_all else None
    scored = time.perf_counter()
    best = estimate(problem, ranked) if len(ranked) else None
    seconds = {"skeletons": enumerated - start, "scoring": scored - enumerated, "total": time.perf_counter() - start}
    return SearchResult(
        problem=problem,
        space=space,
        account=account,
        solver=Solver(status=skeletons.status, skeletons=len(skeletons)),
        frontier=ranked,
        estimate=best,
        feasible=kept,
        seconds=seconds,
    )


class Tally:
    """What a part of the space came to; parts are added in the order of the skeletons."""

    def __init__(self, rules: int) -> None:
        self.rejected = [0] * rules
        self.scored = self.feasible = 0
        self.frontier = Frontier()
        self.kept: list[Points] = []

    def add(self, other: Tally) -> None:
        """Take in another part."""
        self.rejected = [own + more for own, more in zip(self.rejected, other.rejected, strict=True)]
        self.scored += other.scored
        self.feasible += other.feasible
        self.frontier.add(other.frontier.points)
        self.kept += other.kept


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the expansion: an axis, and the rules (with their index) that are complete once it is there."""

    axis: str
    values: Column
    rules: tuple[tuple[int, Rule], ...]
    later: int
    """tuples of the axes after this one, dp_shard not counted"""
    before_shard: bool


class Expansion:
    """The inner axes of one search: crosses skeletons with them and scores what the rules let through.

    `rules` are applied in the order of the axes; by default those of the inner axes, all of them.
    """

    def __init__(self, problem: Problem, space: SearchSpace, rules: Sequence[Rule] | None = None) -> None:
        self.problem, self.space = problem, space
        self.memory = memory_rule(problem)
        self.stages = _stages(space, inner_rules(problem, space) if rules is None else rules)
        self.rules = [rule for stage in self.stages for _, rule in stage.rules]
        self.tuples = prod(len(space.axes[axis]) for axis in EXPANSION if axis != "dp_shard")

    def weight(self, ranks: Column) -> int:
        """Tuples of all inner axes over skeletons whose dp * cp is `ranks`."""
        return self.tuples * int(self.space.shard_choices(ranks).sum())

    def score(self, table: Table, keep_all: bool, stop: threading.Event) -> Tally:
        """Everything about a block of skeletons."""
        tally = Tally(len(self.rules))
        for rows in self._expand(table, 0, tally):
            if stop.is_set():
                break
            layouts = Layouts.from_columns(rows)
            cost = estimate(self.problem, layouts)
            fits = self.memory.mask({"memory_headroom": cost.memory_headroom})
            points = Points(cost.mfu[fits], cost.memory_headroom[fits], layouts.take(fits))
            tally.scored += len(layouts)
            tally.feasible += len(points)
            tally.frontier.add(points)
            if keep_all:
                tally.kept.append(points)
        return tally

    def tables(self, table: Table) -> Iterator[Table]:
        """The rows that the rules let through, uncounted, in tables of at most CHUNK rows."""
        yield from self._expand(table, 0, Tally(len(self.rules)))

    def _expand(self, table: Table, number: int, tally: Tally) -> Iterator[Table]:
        """Depth first, so that no table on the way has more than CHUNK rows."""
        rows = len(table["tp"])
        if number == len(self.stages) or rows == 0:
            if rows:
                yield table
            return
        stage = self.stages[number]
        pieces = -(-rows * len(stage.values) // CHUNK)
        for piece in np.array_split(np.arange(rows), min(pieces, rows)):
            part = {name: column[piece[0] : piece[-1] + 1] for name, column in table.items()}
            yield from self._expand(self._apply(stage, _cross(part, stage), tally), number + 1, tally)

    def _apply(self, stage: Stage, table: Table, tally: Tally) -> Table:
        """Drop and count what the stage's rules reject."""
        for index, rule in stage.rules:
            ok = rule.mask(table)
            if ok.all():
                continue
            dropped = ~ok
            count = int(np.count_nonzero(dropped))
            if stage.before_shard:
                count = int(self.space.shard_choices((table["dp"] * table["cp"])[dropped]).sum())
            tally.rejected[index] += count * stage.later
            table = {name: column[ok] for name, column in table.items()}
        return table


def _stages(space: SearchSpace, rules: Sequence[Rule]) -> list[Stage]:
    stages: list[Stage] = []
    index = 0
    for number, axis in enumerate(EXPANSION):
        later = EXPANSION[number + 1 :]
        ready = [rule for rule in rules if axis in rule.columns and not set(later) & set(rule.columns)]
        size = prod(len(space.axes[name]) for name in later if name != "dp_shard")
        values = np.array(space.axes[axis], dtype=np.int64)
        stages.append(Stage(axis, values, tuple(enumerate(ready, index)), size, "dp_shard" in later))
        index += len(ready)
    return stages


def _cross(table: Table, stage: Stage) -> Table:
    """Every row with every value of an axis. dp_shard: ALL_RANKS becomes dp * cp, and no value stands there twice."""
    rows, size = len(table["tp"]), len(stage.values)
    crossed = {name: np.repeat(column, size) for name, column in table.items()}
    crossed[stage.axis] = np.tile(stage.values, rows)
    if stage.axis != "dp_shard" or ALL_RANKS not in stage.values:
        return crossed
    ranks, group = crossed["dp"] * crossed["cp"], crossed["dp_shard"]
    whole, same = group == ALL_RANKS, group == ranks
    crossed["dp_shard"] = np.where(whole, ranks, group)
    return {name: column[~same] for name, column in crossed.items()}


def _run(expansion: Expansion, skeletons: Skeletons, threads: int, keep_all: bool, progress: Progress | None) -> Tally:
    """Score all skeletons block by block; blocks are added in their order, whichever thread is done first."""
    total, stop = Tally(len(expansion.rules)), threading.Event()
    size = max(1, min(BLOCK, len(skeletons) // 8))
    starts = range(0, len(skeletons), size)
    blocks = [{name: column[at : at + size] for name, column in skeletons.table.items()} for at in starts]
    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        futures = [pool.submit(expansion.score, block, keep_all, stop) for block in blocks]
        done = 0
        for future, block in zip(futures, blocks, strict=True):
            total.add(future.result())
            done += len(block["tp"])
            if progress:
                progress(done, len(skeletons))
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return total


def _account(expansion: Expansion, skeletons: Skeletons, total: Tally) -> Account:
    """The account of the whole space. Raises RuntimeError if a candidate is missing from it."""
    pruned = {name: expansion.weight(ranks) for name, ranks in skeletons.rejected.items()}
    pruned |= {rule.name: count for rule, count in zip(expansion.rules, total.rejected, strict=True)}
    pruned[expansion.memory.name] = total.scored - total.feasible
    grid = expansion.space.grid(expansion.problem.workload.gpus)
    candidates = expansion.weight(grid["dp"] * grid["cp"])
    if candidates != sum(pruned.values()) + total.feasible:
        raise RuntimeError(f"{candidates} candidates, but {sum(pruned.values())} pruned and {total.feasible} feasible")
    return Account(candidates=candidates, pruned=pruned, bounded=0, scored=total.scored, feasible=total.feasible)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
