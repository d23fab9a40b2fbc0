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
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from costmodel.estimate import Estimate, estimate, mfu, seconds_of, throughput
from costmodel.layouts import Column, Layouts
from costmodel.problem import Problem
from costmodel.split import StageTable
from search.expansion import RECOMPUTE_AXES, Block, Expansion, Product, Sets, Table
from search.pareto import Frontier, Points, Sieve, concatenate
from search.rules import skeleton_rules
from search.rules_memory import memory_rule
from search.scoring import Costs, Scorer, headroom, most_that_fits
from search.skeletons import Skeletons, enumerate_skeletons
from search.space import SearchSpace

if TYPE_CHECKING:
    from search.assignment import Balanced

BLOCK = 4096
"""Skeletons of a block at most: their layers are costed together."""
ROWS = 131_072
"""About the rows of a block at most, which its memory follows."""
WAVE = 4
"""Blocks that are scored before others know of their points."""
TILE = 32_768
"""Layouts whose columns are in the core's cache together."""

ROUNDING = 1.0 - 1e-9
"""What rounding may take of a sum of seconds, with a wide margin."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where every candidate went: candidates = sum of pruned + bounded + feasible.

    `pruned` counts each rejected tuple under the first rule, in the order of its keys, that rejects it; `scored` are
    the tuples whose memory and time were computed, `bounded` those that a proven bound excluded: they do not fit, or
    others beat them. `feasible` are those of the scored that fit.
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
    balanced: tuple[Balanced | None, ...] = ()
    """of each layout of the frontier, its balanced stages where it was balanced; empty where none was"""


def search(
    problem: Problem,
    space: SearchSpace,
    *,
    threads: int | None = None,
    keep_all: bool = False,
    bounds: bool = False,
    progress: Progress | None = None,
) -> SearchResult:
    """Score every candidate of the space.

    With `bounds` those are passed over of which a bound proves that they do not fit or that another beats them: the
    frontier is the same, and the account counts them as `bounded` (with `keep_all` none). `threads` (default: the cores
    that the process may use) changes the speed and nothing else. `progress` is called with the number of skeletons done
    and their total. Raises InputError where no layout can be meant (see
    enumerate_skeletons); a space without a feasible layout is a result with an empty frontier.
    """
    start = time.perf_counter()
    skeletons = enumerate_skeletons(problem, space, skeleton_rules(problem, space))
    enumerated = time.perf_counter()
    work = Work(problem, space, skeletons, keep_all=keep_all, bounds=bounds and not keep_all)
    total = work.run(threads or cores(), progress)
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

    def __init__(self, rules: int, sieve: Sieve | None = None) -> None:
        self.rejected = [0] * rules
        self.bounded = self.scored = self.feasible = 0
        self.frontier = Frontier()
        self.sieve = sieve or Sieve()
        self.kept: list[Points] = []

    def add(self, other: Tally) -> None:
        """Take in another part."""
        self.rejected = [own + more for own, more in zip(self.rejected, other.rejected, strict=True)]
        self.bounded += other.bounded
        self.scored += other.scored
        self.feasible += other.feasible
        self.frontier.add(other.frontier.points)
        self.sieve = self.sieve.plus(other.sieve.seconds, other.sieve.headroom)
        self.kept += other.kept


class Work:
    """One search's scoring: blocks of skeletons, scored by threads and added up in their order.

    Each block of a wave knows the points of the waves before it, so what a bound excludes does not depend on threads.
    """

    def __init__(
        self,
        problem: Problem,
        space: SearchSpace,
        skeletons: Skeletons,
        *,
        keep_all: bool = False,
        bounds: bool = False,
    ) -> None:
        self.problem, self.space, self.skeletons = problem, space, skeletons
        self.keep_all, self.bounds = keep_all, bounds
        self.expansion, self.memory = Expansion(problem, space), memory_rule(problem)
        self.most = most_that_fits(problem)
        self.known = Sieve()
        """what blocks have found that are done; without bounds it changes how fast others are, and nothing else"""
        self.parts = self._parts()
        self.waves = [(part, wave) for part in self.parts for wave in self._waves(part)]
        self.stages = problem.split(np.unique(skeletons.table["pp"]).tolist()) if len(skeletons) else None

    def _parts(self) -> list[Expansion]:
        """The space, or parts of it: bounds know more of the counts of recomputed layers, which are the second part,
        where whole sets are scored before."""
        counts = self.space.axes["recompute_layers"]
        if not self.bounds or len(counts) == 1:
            return [self.expansion]
        axes = ({**self.space.axes, "recompute_layers": some} for some in (counts[:1], counts[1:]))
        return [Expansion(self.problem, replace(self.space, axes=some)) for some in axes]

    def _waves(self, part: Expansion) -> list[list[Table]]:
        """Blocks of skeletons, in waves of which each knows the points of those before."""
        table = self.skeletons.table
        order = np.lexsort([table[axis] for axis in ("dp", "pp", "etp", "ep", "cp", "tp")])
        rows = np.cumsum(part.rows({axis: column[order] for axis, column in table.items()}))
        size = min(BLOCK, max(BLOCK // 8, -(-len(order) // WAVE)))
        cuts = np.flatnonzero(np.diff(np.arange(len(order)) // size) + np.diff(rows // ROWS)) + 1
        places = np.split(order, cuts) if len(order) else []
        blocks = [{axis: column[some] for axis, column in table.items()} for some in places]
        count = -(-len(blocks) // WAVE)
        return [blocks[first::count] for first in range(count)]

    def run(self, threads: int, progress: Progress | None) -> Tally:
        """Everything about all blocks."""
        total, stop, done = Tally(len(self.expansion.rules)), threading.Event(), 0
        self.known = total.sieve
        pool = ThreadPoolExecutor(max_workers=threads)
        try:
            for part, wave in self.waves:
                futures = [pool.submit(self.score, part, block, total.sieve, stop) for block in wave]
                for future, block in zip(futures, wave, strict=True):
                    total.add(future.result())
                    done += len(block["tp"])
                    if progress:
                        progress(done // len(self.parts), len(self.skeletons))
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
        return total

    def score(self, part: Expansion, skeletons: Table, sieve: Sieve, stop: threading.Event) -> Tally:
        """Everything about a block of skeletons in a part of the space; `sieve` holds points of others."""
        tally = Tally(len(part.rules), sieve if self.bounds else self.known)
        runs = part.runs(skeletons, tally.rejected)
        if runs is None or self.stages is None:
            return tally
        block = self._worth(tally, self.stages, runs, part.sets(runs, tally.rejected))
        if block is None:
            return tally
        scorer = Scorer(self.problem, self.stages, block)
        if self.bounds:
            whole, matters = block.size, self._matters(tally, scorer.least())
            scorer = scorer.take(np.flatnonzero(matters))
            block = scorer.block
            tally.bounded += whole - block.size
            if not len(block):
                return tally
        for product in block.products():
            self._score_product(tally, block, product, scorer.costs(product), stop)
        tally.frontier.add(concatenate(tally.kept))
        if not self.keep_all:
            tally.kept.clear()
        if not self.bounds:
            self.known = self.known.plus(tally.sieve.seconds, tally.sieve.headroom)
        return tally

    def _worth(self, tally: Tally, stages: StageTable, runs: Block, sets: Sets) -> Block | None:
        """The rows of a block, without those of runs that the points of others beat where nothing is computed again: no
        set is faster (but for rounding), and states are the same."""
        if self.bounds and len(tally.sieve.seconds):
            nothing = dict.fromkeys(RECOMPUTE_AXES, np.zeros(len(runs), dtype=np.int64))
            least = Scorer(self.problem, stages, replace(runs, rows=runs.rows | nothing)).least()
            matters = self._matters(tally, replace(least, own=least.own * ROUNDING))
            tally.bounded += int((runs.pipelined * runs.sharded * sets.count)[~matters].sum())
            kept = np.flatnonzero(matters)
            runs, sets = runs.take(kept), sets.take(kept)
        return sets.of(runs)

    def _matters(self, tally: Tally, least: Costs) -> Column:
        """Whether a layout that costs no less than these may fit, and be on the frontier."""
        busy, need = least.busy().ravel(), least.need().ravel()
        return np.asarray((need <= self.most) & tally.sieve.may_enter(busy, headroom(self.problem, need)))

    def _score_product(self, tally: Tally, block: Block, product: Product, costs: Costs, stop: threading.Event) -> None:
        """Score a product by tiles; with bounds those rows first that may be fastest, and none that cannot matter."""
        count, scored = len(product.rows), tally.scored
        size = max(1, TILE * count // len(product))
        best = costs.best()
        busy, need = best.busy().ravel(), best.need().ravel()
        free = headroom(self.problem, need)
        rows = np.arange(count)
        if self.bounds:
            rows = rows[need <= self.most]
            rows = rows[np.argsort(busy[rows], kind="stable")]
        for start in range(0, len(rows), size):
            tile: Column | slice = slice(start, start + size)
            if self.bounds:
                tile = rows[tile]
                tile = tile[tally.sieve.may_enter(busy[tile], free[tile])]
            if stop.is_set():
                break
            if len(free[tile]):
                self._score(tally, block, product.take(tile), costs.take(tile), free[tile])
        tally.bounded += len(product) - (tally.scored - scored)

    def _score(self, tally: Tally, block: Block, product: Product, costs: Costs, most_free: Column) -> None:
        """Score every layout of a product, and keep what may be on the frontier; no layout of the N leaves more
        headroom than `most_free`."""
        busy, need = costs.busy(), costs.need()
        fits = need <= self.most
        tally.scored += len(product)
        tally.feasible += int(np.count_nonzero(fits))
        wanted = fits if self.keep_all else fits & (busy < tally.sieve.limit(most_free))
        if wanted.any():
            self._keep(tally, block, product, wanted, busy[wanted], need[wanted])

    def _keep(self, tally: Tally, block: Block, product: Product, wanted: Column, busy: Column, need: Column) -> None:
        """Take in the layouts of a product that are wanted, with their costs."""
        free = headroom(self.problem, need)
        near = slice(None) if self.keep_all else tally.sieve.may_enter(busy, free)
        busy, free = busy[near], free[near]
        if len(busy):
            share = mfu(self.problem, throughput(self.problem, seconds_of(self.problem, busy)))
            points = Points(share, free, block.layouts(product, *(places[near] for places in np.nonzero(wanted))))
            tally.kept.append(points)
            tally.sieve = tally.sieve.plus(busy, free)

    def account(self, total: Tally) -> Account:
        """The account of the whole space. Raises RuntimeError if a candidate is missing from it."""
        expansion = self.expansion
        pruned = {name: expansion.weight(ranks) for name, ranks in self.skeletons.rejected.items()}
        pruned |= {rule.name: count for rule, count in zip(expansion.rules, total.rejected, strict=True)}
        pruned[self.memory.name] = total.scored - total.feasible
        grid = self.space.grid(self.problem.workload.gpus)
        candidates = expansion.weight(grid["dp"] * grid["cp"])
        found = sum(pruned.values()) + total.bounded + total.feasible
        if candidates != found:
            raise RuntimeError(f"{candidates} candidates, but {found} pruned, bounded or feasible")
        return Account(
            candidates=candidates,
            pruned=pruned,
            bounded=total.bounded,
            scored=total.scored,
            feasible=total.feasible,
        )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
