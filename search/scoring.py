"""A product of layouts -> their step time and headroom, each term computed once for the axes that it depends on.

The formulas are the cost model's: it is given a product's rows, pipelines and shards apart, and its terms keep the
shape of what they depend on. What is left for a layout is to add four columns and two constants. Each figure equals
that of `estimate` bit for bit, as the sums are the same.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from costmodel.estimate import spend
from costmodel.layouts import RANK_ORDERS, Column, Layouts, gather, joined
from costmodel.memory import fragmentation, outside, resident, working
from costmodel.passes import Passes, distinct_parts, passes_of
from costmodel.problem import Problem
from costmodel.split import StageTable
from costmodel.synchronise import Sync, synchronisation
from costmodel.unit_memory import RESIDENT, WORKING, distinct_costs
from search.expansion import DUALPIPE, Block, Product, stretches
from search.rules_memory import memory_rule
from search.space import SKELETON_AXES

BYTES = 1e18
"""More than any GPU has."""
ROWS = 16_384
"""Whose passes are computed together, so that their columns stay in the core's cache."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a product's layouts cost, seconds and bytes.

    own      of the passes and the pipeline, shape (V, N)
    shared   of data parallelism and the optimizer, shape (Z, N)
    held     training states of a stage of each kind, shapes (Z, N)
    at_work  its activations and buffers, shapes (V, N)
    """

    own: Column
    shared: Column
    held: list[Column]
    at_work: list[Column]

    def take(self, rows: Column | slice) -> Costs:
        """Some of the N."""
        pick = (slice(None), rows)
        return Costs(
            self.own[pick], self.shared[pick], [part[pick] for part in self.held], [part[pick] for part in self.at_work]
        )

    def busy(self) -> Column:
        """Seconds of every layout without the overhead, shape (Z, V, N)."""
        return self.own[None] + self.shared[:, None]

    def need(self) -> Column:
        """Bytes that the allocator hands out on the stage that needs most, for every layout, shape (Z, V, N)."""
        (held, work), *others = zip(self.held, self.at_work, strict=True)
        need: Column = held[:, None] + work[None]
        for held, work in others:
            np.maximum(need, held[:, None] + work[None], out=need)
        return need

    def best(self) -> Costs:
        """A bound for each of the N: no layout of it is faster or needs less. Shapes (1, N)."""
        own, shared = self.own.min(axis=0, keepdims=True), self.shared.min(axis=0, keepdims=True)
        held, at_work = ([part.min(axis=0, keepdims=True) for part in parts] for parts in (self.held, self.at_work))
        return Costs(own, shared, held, at_work)


def headroom(problem: Problem, need: Column) -> Column:
    """Usable memory minus memory where the allocator hands out `need`; never rises where `need` does."""
    free: Column = problem.cluster.gpu.usable_memory - (need + fragmentation(problem, need) + outside(problem))
    return free


def most_that_fits(problem: Problem) -> float:
    """The largest `need` that the memory rule lets through, to the last bit; -1 if it lets through none.

    Found by halving the floats up to BYTES, which are in the order of their bits.
    """
    rule = memory_rule(problem)
    low, high = -1, int(np.float64(BYTES).view(np.int64))
    while high - low > 1:
        middle = (low + high) // 2
        fits = rule.mask({"memory_headroom": headroom(problem, np.array([middle]).view(np.float64))})
        low, high = (middle, high) if fits.all() else (low, middle)
    return float(np.int64(low).view(np.float64)) if low >= 0 else -1.0


class Scorer:
    """The costs of a block of layouts, product by product; `stages` must hold every pp in use."""

    def __init__(self, problem: Problem, stages: StageTable, block: Block) -> None:
        self.problem, self.stages, self.block = problem, stages, block
        axes = (*SKELETON_AXES, "rank_order", "sequence_parallel", "micro_batch", "recompute", "recompute_layers")
        layouts = {name: block.rows[name] for name in axes} | {"schedule": DUALPIPE * block.rows["dual"]}
        self.layouts = Layouts.partial(layouts | {"vpp": block.rows["split_vpp"]})
        self.heaviest, self.split = stages.heaviest(), stages.rows(self.layouts)
        self.passes = self._passes()
        self.working, self.place = distinct_costs(problem, self.layouts, stages)
        self._states()

    def _passes(self) -> Passes:
        """Split by split, as the stages of one hold the same whatever the row."""
        parts, at = distinct_parts(self.problem, self.layouts, self.stages)
        parts = {name: part.whole() for name, part in parts.items()}
        schedules, found = np.unique(self.block.pipelines["schedule"]), []
        for first, count in zip(*stretches(self.split), strict=True):
            stages = self.stages.at(int(self.split[first]))
            asked = schedules[(schedules == DUALPIPE) == self.block.rows["dual"][first]]
            for start in range(first, first + count, ROWS):
                rows = slice(start, min(start + ROWS, first + count))
                found.append(passes_of(self.problem, self.layouts.take(rows), stages, gather(parts, at[rows]), asked))
        return joined(found)

    def _states(self) -> None:
        """Synchronisation and states, for every shard of each skeleton, rank order and stage that is slowest there."""
        rows, slowest = self.block.rows, self.passes.slowest
        key = rows["skeleton"] * (int(rows["split"].max()) + 1) + rows["split"]
        key = (key * self.stages.kinds + slowest) * len(RANK_ORDERS) + rows["rank_order"]
        _, first, group = np.unique(key, return_index=True, return_inverse=True)
        count = self.block.sharded[first]
        start = np.cumsum(count) - count
        owner = np.repeat(first, count)
        shard = np.arange(len(owner)) + np.repeat(self.block.first_shard[first] - start, count)
        axes = {name: rows[name][owner] for name in (*SKELETON_AXES, "rank_order")}
        axes |= {"schedule": DUALPIPE * rows["dual"][owner], "vpp": rows["split_vpp"][owner]}
        layouts = Layouts.partial(axes | {name: column[shard] for name, column in self.block.shards.items()})
        self.sync = synchronisation(self.problem, layouts, self.stages, slowest[owner])
        held = resident(self.problem, layouts, self.heaviest, self.heaviest.present(layouts))
        self.held = [reduce(add, (terms[name] for name in RESIDENT)) for terms in held]
        self.shift = start[group] - self.block.first_shard
        """from a row's shards in the block to those of its group"""

    def take(self, rows: Column) -> Scorer:
        """The same for some of the block's rows."""
        some = copy(self)
        some.block, some.layouts = self.block.take(rows), self.layouts.take(rows)
        some.passes = gather(self.passes, rows)
        some.split, some.place, some.shift = self.split[rows], self.place[rows], self.shift[rows]
        return some

    def least(self) -> Costs:
        """A bound for each row of the block, in shapes (1, N): the passes and the states alone."""
        every = np.repeat(self.block.first_shard + self.shift, self.block.sharded)
        start = np.cumsum(self.block.sharded) - self.block.sharded
        shards = every + np.arange(len(every)) - np.repeat(start, self.block.sharded)
        held = [np.minimum.reduceat(part.take(shards), start)[None] for part in self.held]
        own, nothing = self.passes.work[None], np.zeros((1, len(start)))
        return Costs(own=own, shared=nothing, held=held, at_work=[nothing] * len(held))

    def costs(self, product: Product) -> Costs:
        """The costs of a product of the block."""
        rows = slice(product.rows[0], product.rows[-1] + 1)
        layouts, passes = self.layouts.take(rows), gather(self.passes, rows)
        pipeline = Layouts.partial({"pp": layouts.pp[:1], **product.pipelines})
        stages = self.heaviest.at(int(self.split[rows.start]))
        work = working(self.problem, layouts, pipeline, stages, gather(self.working, self.place[rows]))
        sync, held = self._shards(rows, product.shape[0], stages.kinds)
        uneven = stages.uneven(layouts, pipeline.vpp)
        spent = spend(self.problem, layouts, pipeline, passes, sync, uneven)
        return Costs(
            own=spent.own,
            shared=spent.shared,
            held=held,
            at_work=[reduce(add, (terms[name] for name in WORKING)) for terms in work],
        )

    def _shards(self, rows: slice, size: int, kinds: int) -> tuple[Sync, list[Column]]:
        """Synchronisation and states of rows that have `size` shards, columns (Z, N); the shards of a line have one
        ZeRO stage, and those of neighbours are mostly the same."""
        start = (self.block.first_shard + self.shift)[rows]
        first, count = stretches(start)
        places = start[first] + np.arange(size)[:, None]

        def spread(column: Column) -> Column:
            return np.repeat(column.take(places), count, axis=1)

        sync, line = self.sync, places[:, :1]
        parts = {name: spread(getattr(sync, name)) for name in ("forward", "each", "last", "alone")}
        shared = Sync(**parts, gathers=sync.gathers.take(line), optimizer=sync.optimizer.take(line))
        return shared, [spread(part) for part in self.held[:kinds]]
