"""The inner axes: skeletons are crossed with them and the rules applied, as flat tables or as products.

A rule is applied as soon as its last column is there, and every row that it rejects stands for all tuples of the axes
still to come. No rule links an axis of PASS_AXES to one of STATE_AXES, and to those of RECOMPUTE_AXES only the split of
the layers is linked, so what the rules leave of a skeleton is a product: its passes and pipelines, its shards, and what
is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from costmodel.layouts import SCHEDULES, Column, Layouts
from costmodel.problem import Problem
from costmodel.split import StageTable
from search.possible import ALL_RANKS
from search.rule import Rule
from search.rules import inner_rules
from search.space import INNER_AXES, SKELETON_AXES, SearchSpace

CHUNK = 65_536
"""Rows of a flat table at most, and about the elements of the largest column of a product."""
PIPELINE_AXES = ("vpp", "schedule")
PASS_AXES = ("sequence_parallel", "schedule", "vpp", "micro_batch", "rank_order")
STATE_AXES = ("zero_stage", "dp_shard")
RECOMPUTE_AXES = ("recompute", "recompute_layers")
EXPANSION = (*PASS_AXES, *STATE_AXES, *RECOMPUTE_AXES)
"""Inner axes in the order in which skeletons are crossed with them."""
assert sorted(EXPANSION) == sorted(INNER_AXES)
BITS = 62
"""Of a whole number that tell what a set holds."""
DUALPIPE = SCHEDULES.index("dualpipe")

Table = dict[str, Column]


@dataclass(frozen=True, slots=True)
class Product:
    """N rows of one split with the same V pipelines and Z shards: Z x V x N layouts.

    rows       places of the rows in their block, shape (N,)
    pipelines  vpp and schedule, shape (V, 1)
    shards     zero_stage and dp_shard, shape (Z, 1)
    """

    rows: Column
    pipelines: Table
    shards: Table

    def take(self, rows: Column | slice) -> Product:
        """Some of the N."""
        return Product(self.rows[rows], self.pipelines, self.shards)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Z, V and N."""
        return len(self.shards["zero_stage"]), len(self.pipelines["vpp"]), len(self.rows)

    def __len__(self) -> int:
        """Layouts."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Block:
    """What the rules leave of some skeletons, as the factors of a product for each row.

    rows       the skeleton axes, rank_order, sequence_parallel, micro_batch, RECOMPUTE_AXES, `dual` (DualPipe or not),
               `split` (equal where the layers of the stages are), `split_vpp` (a vpp of that split), `skeleton`, equal
               where all skeleton axes are, and `alike`, equal where split, pipelines and shards are
    pipelines  vpp and schedule; of a row those from `first` on, `pipelined` of them
    shards     zero_stage and dp_shard; of a row those from `first_shard` on, `sharded` of them

    Rows that are alike are neighbours.
    """

    rows: Table
    first: Column
    pipelined: Column
    pipelines: Table
    first_shard: Column
    sharded: Column
    shards: Table

    def products(self) -> Iterator[Product]:
        """The rows that are alike, up to a size."""
        start, count = stretches(self.rows["alike"])
        for first, rows in zip(start.tolist(), count.tolist(), strict=True):
            v, z = int(self.pipelined[first]), int(self.sharded[first])
            pieces = -(-rows * max(v, z) // CHUNK)
            ends = [first + rows * piece // pieces for piece in range(pieces + 1)]
            pipelines, shards = (
                {name: column[start : start + size, None] for name, column in table.items()}
                for table, start, size in (
                    (self.pipelines, self.first[first], v),
                    (self.shards, self.first_shard[first], z),
                )
            )
            for part in pairwise(ends):
                yield Product(np.arange(*part), pipelines, shards)

    def take(self, rows: Column) -> Block:
        """Some of the rows."""
        return replace(
            self,
            rows={name: column[rows] for name, column in self.rows.items()},
            first=self.first[rows],
            pipelined=self.pipelined[rows],
            first_shard=self.first_shard[rows],
            sharded=self.sharded[rows],
        )

    @property
    def size(self) -> int:
        """Layouts."""
        return int((self.pipelined * self.sharded).sum())

    def __len__(self) -> int:
        """Rows."""
        return len(self.first)

    def layouts(self, product: Product, shard: Column, pipeline: Column, row: Column) -> Layouts:
        """The layouts at these places of a product."""
        columns = {name: column[product.rows[row]] for name, column in self.rows.items()}
        columns |= {name: column[pipeline, 0] for name, column in product.pipelines.items()}
        columns |= {name: column[shard, 0] for name, column in product.shards.items()}
        return Layouts.from_columns(columns)


@dataclass(frozen=True, slots=True)
class Sets:
    """What each row of a block may compute again: of the columns `values` those from `first` on, `count` of them."""

    values: Table
    first: Column
    count: Column

    def take(self, rows: Column) -> Sets:
        """Those of some rows."""
        return Sets(self.values, self.first[rows], self.count[rows])

    def of(self, runs: Block) -> Block | None:
        """The block with a row for each of them; None if there are none."""
        if not self.count.any():
            return None
        each = np.repeat(np.arange(len(runs)), self.count)
        chosen = np.arange(len(each)) + np.repeat(self.first - np.cumsum(self.count) + self.count, self.count)
        found = runs.take(each)
        return replace(found, rows=found.rows | {axis: column[chosen] for axis, column in self.values.items()})


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
    """The inner axes of one search.

    `rules` are applied in the order of the axes; by default those of the inner axes, all of them. Raises ValueError
    for a rule that links an axis of PASS_AXES to one of STATE_AXES.
    """

    def __init__(self, problem: Problem, space: SearchSpace, rules: Sequence[Rule] | None = None) -> None:
        self.problem, self.space = problem, space
        self.stages = _stages(space, inner_rules(problem, space) if rules is None else rules)
        self.rules = [rule for stage in self.stages for _, rule in stage.rules]
        self.tuples = prod(len(space.axes[axis]) for axis in EXPANSION if axis != "dp_shard")

    def weight(self, ranks: Column) -> int:
        """Tuples of all inner axes over skeletons whose dp * cp is `ranks`."""
        return self.tuples * int(self.space.shard_choices(ranks).sum())

    def tables(self, skeletons: Mapping[str, Column]) -> Iterator[Table]:
        """The rows that the rules let through, uncounted, in tables of at most CHUNK rows."""
        yield from self._expand(dict(skeletons), EXPANSION, [0] * len(self.rules))

    def runs(self, skeletons: Mapping[str, Column], rejected: list[int]) -> Block | None:
        """The same rows as factors but for RECOMPUTE_AXES, None if there are none; what a rule rejects is added to its
        place in `rejected`."""
        table = {**skeletons, "skeleton": np.arange(len(skeletons["tp"]))}
        passes = _concatenate(self._expand(table, PASS_AXES, rejected))
        if not passes:
            return None
        table["weight"] = np.bincount(passes["skeleton"], minlength=len(table["tp"]))
        used = {name: column[table["weight"] > 0] for name, column in table.items()}
        shards = _concatenate(self._expand(used, STATE_AXES, rejected))
        if not shards:
            return None
        return _block(passes, shards, self.problem.split(np.unique(passes["pp"]).tolist()))

    def sets(self, runs: Block, rejected: list[int]) -> Sets:
        """What may be computed again, which depends on the split of the layers alone."""
        rows, layouts = runs.rows, runs.pipelined * runs.sharded
        splits, first, place = np.unique(rows["split"], return_index=True, return_inverse=True)
        table = {axis: rows[axis][first] for axis in SKELETON_AXES} | {"vpp": rows["split_vpp"][first]}
        table |= {"place": np.arange(len(splits)), "weight": np.bincount(place, layouts).astype(np.int64)}
        found = _concatenate(self._expand(table, RECOMPUTE_AXES, rejected))
        values = {axis: found[axis] for axis in RECOMPUTE_AXES} if found else {}
        count = np.bincount(found["place"] if found else splits[:0], minlength=len(splits))
        return Sets(values, (np.cumsum(count) - count)[place], count[place])

    def block(self, skeletons: Mapping[str, Column], rejected: list[int]) -> Block | None:
        """The same rows with RECOMPUTE_AXES."""
        runs = self.runs(skeletons, rejected)
        return self.sets(runs, rejected).of(runs) if runs else None

    def rows(self, skeletons: Mapping[str, Column]) -> Column:
        """About the rows of a block for each skeleton."""
        pp, place = np.unique(skeletons["pp"], return_inverse=True)
        one = {"tp": pp, "pp": pp, "vpp": np.ones_like(pp), "place": np.arange(len(pp))}
        sets = _concatenate(self._expand(one, RECOMPUTE_AXES, [0] * len(self.rules))) or {"place": pp[:0]}
        each = len(self.space.axes["micro_batch"]) * len(self.space.axes["rank_order"])
        count: Column = np.bincount(sets["place"], minlength=len(pp))[place] * each
        return count

    def _expand(self, table: Table, axes: Sequence[str], rejected: list[int]) -> Iterator[Table]:
        """Depth first, so that no table on the way has more than CHUNK rows."""
        rows = len(table["tp"])
        if not axes or rows == 0:
            if rows:
                yield table
            return
        stage = self.stages[EXPANSION.index(axes[0])]
        pieces = -(-rows * len(stage.values) // CHUNK)
        for piece in np.array_split(np.arange(rows), min(pieces, rows)):
            part = {name: column[piece[0] : piece[-1] + 1] for name, column in table.items()}
            yield from self._expand(self._apply(stage, _cross(part, stage), rejected), axes[1:], rejected)

    def _apply(self, stage: Stage, table: Table, rejected: list[int]) -> Table:
        """Drop and count what the stage's rules reject."""
        for index, rule in stage.rules:
            ok = rule.mask(table)
            if ok.all():
                continue
            dropped = ~ok
            count = table["weight"][dropped] if "weight" in table else np.ones(np.count_nonzero(dropped), np.int64)
            if stage.before_shard:
                count = count * self.space.shard_choices((table["dp"] * table["cp"])[dropped])
            rejected[index] += int(count.sum()) * stage.later
            table = {name: column[ok] for name, column in table.items()}
        return table


def _stages(space: SearchSpace, rules: Sequence[Rule]) -> list[Stage]:
    stages: list[Stage] = []
    index = 0
    for number, axis in enumerate(EXPANSION):
        later = EXPANSION[number + 1 :]
        ready = [rule for rule in rules if axis in rule.columns and not set(later) & set(rule.columns)]
        for rule in ready:
            linked = {*RECOMPUTE_AXES, "vpp"} if axis in RECOMPUTE_AXES else STATE_AXES
            if axis not in PASS_AXES and not set(rule.columns) <= {*SKELETON_AXES, *linked}:
                raise ValueError(f"rule {rule.name} links {', '.join(rule.columns)}: no product of the axes")
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


def _concatenate(tables: Iterator[Table]) -> Table:
    """One table after the other; empty if there are none."""
    parts = list(tables)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _block(passes: Table, shards: Table, splits: StageTable) -> Block | None:
    """Passes that differ in vpp and schedule alone, but not in the split, become one row, without RECOMPUTE_AXES."""
    passes = passes | {"dual": (passes["schedule"] == DUALPIPE).astype(np.int64)}
    passes["split"] = splits.places(passes["pp"], passes["vpp"], passes["dual"])
    key = _key(*(passes[name] for name in ("skeleton", "rank_order", "sequence_parallel", "split", "micro_batch")))
    order = np.argsort(key, kind="stable")
    passes = {name: column[order] for name, column in passes.items()}
    first, pipelined = stretches(key[order])
    start, held = stretches(shards["skeleton"])
    place = np.full(int(passes["skeleton"].max()) + 1, -1)
    place[shards["skeleton"][start]] = np.arange(len(start))
    owner = place[passes["skeleton"][first]]
    runs = np.flatnonzero(owner >= 0)
    if not len(runs):
        return None
    rows = {name: column[first[runs]] for name, column in passes.items() if name not in PIPELINE_AXES}
    rows["split_vpp"] = passes["vpp"][first[runs]]
    pipelines = _sets(first, _key(passes["vpp"], passes["schedule"]))
    states = _sets(start, _key(np.unique(shards["dp_shard"], return_inverse=True)[1], shards["zero_stage"]))
    rows["alike"] = _key(rows["split"], pipelines[runs], states[owner[runs]])
    block = Block(
        rows=rows,
        first=first[runs],
        pipelined=pipelined[runs],
        pipelines={name: passes[name] for name in PIPELINE_AXES},
        first_shard=start[owner[runs]],
        sharded=held[owner[runs]],
        shards={name: shards[name] for name in STATE_AXES},
    )
    return block.take(np.argsort(rows["alike"], kind="stable"))


def _key(*columns: Column) -> Column:
    """One number for each combination of columns of integers from 0 up, in their order."""
    key, *rest = columns
    for column in rest:
        key = key * (int(column.max()) + 1) + column
    return key


def _sets(start: Column, codes: Column) -> Column:
    """One number for each set of codes that a run has, whose codes differ; runs start at `start`."""
    found = np.zeros(len(start), dtype=np.int64)
    for word in range(0, int(codes.max()) + 1, BITS):
        bits = np.where((codes >= word) & (codes < word + BITS), 1 << (codes - word) % BITS, 0)
        found = _key(found, np.unique(np.add.reduceat(bits, start), return_inverse=True)[1])
    return found


def stretches(key: Column) -> tuple[Column, Column]:
    """Where each run of equal values starts, and how long it is."""
    start = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    return start, np.diff(np.append(start, len(key)))
