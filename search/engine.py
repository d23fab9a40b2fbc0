"""The search: skeletons x inner axes -> rules -> costs -> frontier.

Skeletons come from CP-SAT. Blocks of them are crossed with the inner axes (search/expansion.py), what the rules leave
is scored as products of its axes (search/scoring.py), and the frontier is streamed. Rules are counted in this order:
skeleton rules, then those of each axis of EXPANSION, then memory.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from costmodel.estimate import Estimate, estimate, mfu, throughput
from costmodel.layouts import Column, Layouts
from costmodel.problem import Problem
from search.expansion import Block, Expansion, Product, Table
from search.pareto import Frontier, Points, Sieve, concatenate
from search.rules import skeleton_rules
from search.rules_memory import memory_rule
from search.scoring import Costs, Scorer
from search.skeletons import Skeletons, enumerate_skeletons
from search.space import SearchSpace

BLOCK = 512
"""Skeletons of a block at most: their layers are costed together."""
TILE = 16_384
"""Layouts whose columns are in the core's cache together."""

Progress = Callable[[int, int], None]


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
    work = Work(problem, space, skeletons, keep_all)
    total = work.run(threads or _cores(), progress)
    account = work.account(total)
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
    """What a part of the space came to; parts are added in the order of the blocks."""

    def __init__(self, rules: int) -> None:
        self.rejected = [0] * rules
        self.scored = self.feasible = 0
        self.frontier = Frontier()
        self.sieve = Sieve()
        self.kept: list[Points] = []

    def add(self, other: Tally) -> None:
        """Take in another part."""
        self.rejected = [own + more for own, more in zip(self.rejected, other.rejected, strict=True)]
        self.scored += other.scored
        self.feasible += other.feasible
        self.frontier.add(other.frontier.points)
        self.kept += other.kept


class Work:
    """One search's scoring: blocks of skeletons, scored by threads and added up in their order."""

    def __init__(self, problem: Problem, space: SearchSpace, skeletons: Skeletons, keep_all: bool = False) -> None:
        self.problem, self.space, self.skeletons, self.keep_all = problem, space, skeletons, keep_all
        self.expansion, self.memory = Expansion(problem, space), memory_rule(problem)
        table = skeletons.table
        order = np.lexsort([table[axis] for axis in ("dp", "pp", "etp", "ep", "cp", "tp")])
        size = min(BLOCK, max(BLOCK // 8, -(-len(order) // 8)))
        starts = range(0, len(order), size)
        self.blocks = [{axis: column[order[at : at + size]] for axis, column in table.items()} for at in starts]
        self.stages = problem.split(np.unique(table["pp"]).tolist()) if len(order) else None

    def run(self, threads: int, progress: Progress | None) -> Tally:
        """Everything about all blocks."""
        total, stop, done = Tally(len(self.expansion.rules)), threading.Event(), 0
        pool = ThreadPoolExecutor(max_workers=threads)
        try:
            futures = [pool.submit(self.score, block, stop) for block in self.blocks]
            for future, block in zip(futures, self.blocks, strict=True):
                total.add(future.result())
                done += len(block["tp"])
                if progress:
                    progress(done, len(self.skeletons))
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return total

    def score(self, skeletons: Table, stop: threading.Event) -> Tally:
        """Everything about a block of skeletons."""
        tally = Tally(len(self.expansion.rules))
        block = self.expansion.block(skeletons, tally.rejected)
        if block is None or self.stages is None:
            return tally
        scorer = Scorer(self.problem, self.stages, block)
        for product in block.products():
            costs = scorer.costs(product)
            size = max(1, TILE * len(product.rows) // len(product))
            for at in range(0, len(product.rows), size):
                if stop.is_set():
                    return tally
                rows = slice(at, at + size)
                self._score(tally, block, product.take(rows), costs.take(rows))
        return tally

    def _score(self, tally: Tally, block: Block, product: Product, costs: Costs) -> None:
        """Score every layout of a product, and keep what may be on the frontier."""
        seconds, headroom = costs.step_time(self.problem), costs.headroom(self.problem)
        fits = self.memory.mask({"memory_headroom": headroom})
        feasible = int(np.count_nonzero(fits))
        tally.scored += len(product)
        tally.feasible += feasible
        if not feasible:
            return
        if not self.keep_all:
            fits &= tally.sieve.may_enter(seconds, headroom)
        if fits.any():
            places = np.nonzero(fits)
            points = self._points(block, product, places, seconds[places], headroom[places])
            tally.frontier.add(points)
            tally.sieve.add(seconds[places], headroom[places])
            if self.keep_all:
                tally.kept.append(points)

    def _points(
        self, block: Block, product: Product, places: tuple[Column, ...], seconds: Column, headroom: Column
    ) -> Points:
        shard, pipeline, row = places
        share = mfu(self.problem, throughput(self.problem, seconds))
        return Points(share, headroom, block.layouts(product, shard, pipeline, row))

    def account(self, total: Tally) -> Account:
        """The account of the whole space. Raises RuntimeError if a candidate is missing from it."""
        expansion = self.expansion
        pruned = {name: expansion.weight(ranks) for name, ranks in self.skeletons.rejected.items()}
        pruned |= {rule.name: count for rule, count in zip(expansion.rules, total.rejected, strict=True)}
        pruned[self.memory.name] = total.scored - total.feasible
        grid = self.space.grid(self.problem.workload.gpus)
        candidates = expansion.weight(grid["dp"] * grid["cp"])
        found = sum(pruned.values()) + total.feasible
        if candidates != found:
            raise RuntimeError(f"{candidates} candidates, but {found} pruned, bounded or feasible")
        return Account(candidates=candidates, pruned=pruned, bounded=0, scored=total.scored, feasible=total.feasible)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
