"""What the stages of a pipeline hold: for every split the kinds of its stages, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from costmodel.layer_counts import even_layers, fill_layers, layer_weights, split_layers
from costmodel.layouts import Column, Layouts, nothing_again
from costmodel.model import Model
from costmodel.schedule import is_dual
from costmodel.virtual import uneven

OWN = ("dense", "moe", "mtp", "embedding", "head")
KINDS, WAYS = ("dense", "moe"), ("", "mirror_")
MOVED = "mtp_head"
"""Heads of multi-token prediction on a stage other than its module's: +1 a depth there, -1 at the module."""

Contents = dict[str, int]
"""What a stage holds: OWN, and where a split is given more. `KIND:CODE` are layers of a kind, counted in it, that are
computed again by the recompute set CODE and not by the layout's."""
ROOM = 1e3
"""Of a head that makes none wait, in stages."""
SET = "set"
"""In `KIND:set`: the layout's own recompute set, where that holds for some layers of a stage alone."""


def highest(held: Mapping[str, Column], names: Iterable[str]) -> dict[str, Column]:
    """For each `KIND:CODE`, 1 where a layer is computed again so, and none by a higher set or the same of another kind;
    a stage holds one layer computed again at a time."""
    found: dict[str, Column] = {}
    taken = np.zeros(1)
    for name in sorted(names, key=_height, reverse=True):
        some = np.minimum(held[name] + held[f"mirror_{name}"], 1.0)
        found[name] = some * (1.0 - taken)
        taken = np.maximum(taken, some)
    return found


def _height(name: str) -> tuple[int, str]:
    code = name.partition(":")[2]
    return (-1 if code == SET else int(code)), name


def own_set(model: Model, some: Column) -> tuple[str, ...]:
    """Names of the layers by kind that a layout's own set computes again, where it does so for `some` of them."""
    held = zip(KINDS, (model.dense_layers, model.moe_layers), strict=True)
    return tuple(f"{kind}:{SET}" for kind, layers in held if layers) if some.any() else ()


@dataclass(frozen=True, slots=True, eq=False)
class StageTable:
    """The kinds of pipeline stage of each split, as arrays of shape (splits, kinds).

    A kind is a run of stages that hold the same, in the order of the stages; `rank` is its earliest stage, which has
    the most micro-batches in flight, `count` how many there are (0 pads, with the last kind), `later` how many stages
    follow. `dense`, `moe`, `mtp` are layers, `embedding` and `head` 0 or 1. `mirror_*` is the second stage that a
    DualPipe rank holds, all 0 for other schedules. `layers` are those of each stage by (pp, vpp), vpp up to the most
    that has a layer for each virtual stage; `lookup` the row of (pp, vpp, DualPipe or not).
    """

    columns: dict[str, Column]
    layers: dict[tuple[int, int], tuple[int, ...]]
    lookup: Column = field(repr=False)
    virtual: Column = field(repr=False)
    """`virtual.uneven` of each split by the virtual stages, shape (4, splits, virtual stages)"""
    given: bool = False
    """whether its contents say all that is computed again, whatever set the layouts have"""

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of Contents beyond OWN."""
        usual = {"rank", "count", "later", *OWN}
        return tuple(name for name in self.columns if name not in usual and not name.startswith("mirror_"))

    def told(self, layouts: Layouts) -> Layouts:
        """The layouts, whose own recomputation does not count where the contents are given."""
        return nothing_again(layouts) if self.given else layouts

    @property
    def kinds(self) -> int:
        """Kinds of the split that has most of them."""
        return int(self.columns["rank"].shape[1])

    def heaviest(self) -> StageTable:
        """Of each split the kinds of stage that no earlier one outweighs, which holds as much of everything, and as
        many micro-batches in flight: the stage that needs most memory is one of these. All of them where a rank holds
        two stages, or where contents beyond OWN take the place of others."""
        return self if self.extras else _heaviest(self)

    def at(self, split: int) -> StageTable:
        """One split alone, whose row is that of any layout."""
        return _at(self, split)

    def rows(self, layouts: Layouts) -> Column:
        """Index of each row's split; of one split, one index for all rows."""
        if len(self.columns["rank"]) == 1:
            return np.zeros(1, dtype=np.int64)
        return self.places(layouts.pp, layouts.vpp, is_dual(layouts))

    def places(self, pp: Column, vpp: Column, dual: Column) -> Column:
        """The same of these columns."""
        rows: Column = self.lookup[pp, np.minimum(vpp, self.lookup.shape[1] - 1), dual]
        return rows

    def uneven(self, layouts: Layouts, vpp: Column) -> Column:
        """`virtual.uneven` of the layouts with so many virtual stages, maybe along a leading axis; shape (4, ...)."""
        found: Column = self.virtual[:, self.rows(layouts), np.minimum(vpp, self.virtual.shape[2] - 1)]
        return found

    def split(self, pp: int, vpp: int = 1) -> tuple[int, ...]:
        """Layers of each stage; with more virtual stages than there are layers for, as with the most."""
        return self.layers[pp, min(vpp, self.most_virtual(pp))]

    def most_virtual(self, pp: int) -> int:
        """The most virtual stages of a rank with a layer on each; embedding and loss may stand for one at the ends."""
        return max(vpp for stages, vpp in self.layers if stages == pp)

    def present(self, layouts: Layouts) -> list[int]:
        """Kinds of stage that a row has, padding left out."""
        counts = self.columns["count"][np.unique(self.rows(layouts))]
        return np.flatnonzero(counts.any(axis=0)).tolist()

    def first(self) -> StageTable:
        """The first stage of each split alone, which is kind 0."""
        return self.only(0)

    def only(self, kind: int) -> StageTable:
        """One kind of stage of each split."""
        columns = {name: values[:, kind : kind + 1] for name, values in self.columns.items()}
        return replace(self, columns=columns)

    def kind(self, number: int, rows: Column) -> dict[str, Column]:
        """Columns of one kind of stage, gathered for the rows that `rows()` gave."""
        return {name: values[rows, number] for name, values in self.columns.items()}

    def some(self, number: int | Column, rows: Column, layers: Column) -> dict[str, Column]:
        """`KIND:set` of a kind of stage, and of its mirror, where `layers` of each stage are computed again (at most
        those that it has): the dense ones first."""
        held = {name: self.columns[name][rows, number] for name in (f"{way}{kind}" for way in WAYS for kind in KINDS)}
        found = {}
        for way in WAYS:
            left: Column = layers.astype(np.float64)
            for kind in KINDS:
                found[f"{way}{kind}:{SET}"] = again = np.minimum(left, held[f"{way}{kind}"])
                left = left - again
        return found


@lru_cache(maxsize=256)
def _heaviest(stages: StageTable) -> StageTable:
    held, there = np.stack([stages.columns[name] for name in OWN]), stages.columns["count"] > 0
    alone = np.all([stages.columns[f"mirror_{name}"] == 0 for name in OWN], axis=(0, 2))
    outweighs = (held[:, :, :, None] >= held[:, :, None]).all(axis=0) & there[:, :, None] & alone[:, None, None]
    earlier = np.arange(stages.kinds)[:, None] < np.arange(stages.kinds)
    kept = there & ~(outweighs & earlier).any(axis=1)
    order = np.argsort(~kept, axis=1, kind="stable")[:, : kept.sum(axis=1).max()]
    columns = {name: np.take_along_axis(values, order, axis=1) for name, values in stages.columns.items()}
    columns["count"] = columns["count"] * np.take_along_axis(kept, order, axis=1)
    return replace(stages, columns=columns)


@lru_cache(maxsize=1024)
def _at(stages: StageTable, split: int) -> StageTable:
    kinds = np.flatnonzero(stages.columns["count"][split])
    columns = {name: values[split : split + 1, kinds] for name, values in stages.columns.items()}
    return replace(stages, columns=columns, virtual=stages.virtual[:, split : split + 1])


def split_table(
    model: Model, seq_len: int, stages: Iterable[int], *, rule: str = "best", ends: bool = False
) -> StageTable:
    """The closed-form split for every number of stages in use (each at most the layers) and of virtual stages.

    `rule` is "best" (the slowest stage as fast as can be), "even" (`even_layers`, as frameworks do that are not told
    otherwise) or "filled" (stage after stage up to its share, as nanotron does). Under "best" every virtual stage has
    a layer; with `ends`, embedding and loss count as one.
    """
    return _split_table(model, seq_len, tuple(sorted(set(stages))), rule, ends)


@lru_cache(maxsize=256)
def _split_table(model: Model, seq_len: int, stages: tuple[int, ...], rule: str, ends: bool) -> StageTable:
    weights, tail = layer_weights(model, seq_len)
    layers = {}
    for pp in stages:
        if rule == "filled":
            layers[pp, 1] = fill_layers(model, pp)
        elif rule == "even" and (equal := even_layers(model.layers, pp)):
            layers[pp, 1] = equal
        else:
            layers[pp, 1] = split_layers(weights, tail, pp)
            for vpp in range(2, (model.layers + 2 * ends) // pp + 1 if pp > 1 else 0):
                least = tuple(max(1, vpp - ends * (rank in (0, pp - 1))) for rank in range(pp))
                enough = all(count >= need for count, need in zip(layers[pp, vpp - 1], least, strict=True))
                layers[pp, vpp] = layers[pp, vpp - 1] if enough else split_layers(weights, tail, pp, least)
    return _table(layers, {counts: contents(model, counts) for counts in layers.values()}, ends)


def given_table(stages: Sequence[Contents], layers: tuple[int, ...], *, ends: bool = True) -> StageTable:
    """The table of one split whose stages hold these contents, and compute again what these say; `ends` if the head
    may lie alone."""
    return replace(_table({(len(stages), 1): layers}, {layers: stages}, ends), given=True)


def contents(model: Model, counts: Sequence[int]) -> list[Contents]:
    """What each stage holds where they get `counts` layers in order: layers by kind, MTP, embedding and head."""
    stages, start, sparse = [], 0, model.layer_is_moe
    for rank, count in enumerate(counts):
        moe, last = sum(sparse[start : start + count]), rank == len(counts) - 1
        held = (count - moe, moe, model.mtp_layers * last, int(rank == 0), int(last))
        stages.append(dict(zip(OWN, held, strict=True)))
        start += count
    return stages


def _table(
    layers: dict[tuple[int, int], tuple[int, ...]], stages: Mapping[tuple[int, ...], Sequence[Contents]], ends: bool
) -> StageTable:
    kinds = {(counts, dual): _kinds(held, dual=dual) for counts, held in stages.items() for dual in (False, True)}
    width = max(len(found) for found in kinds.values())
    columns = {name: np.zeros((len(kinds), width)) for name in next(iter(kinds.values()))[0]}
    for row, found in enumerate(kinds.values()):
        for number in range(width):
            kind = found[number] if number < len(found) else found[-1] | {"count": 0.0}
            for name, value in kind.items():
                columns[name][row, number] = value
    index = {key: row for row, key in enumerate(kinds)}
    most = max(vpp for _, vpp in layers)
    lookup = np.zeros((max(pp for pp, _ in layers) + 1, most + 1, 2), dtype=np.int64)
    for (pp, vpp), counts in layers.items():  # vpp rises: what lies beyond the most is as the most
        lookup[pp, vpp if vpp > 1 else 0 :] = [index[counts, False], index[counts, True]]
    return StageTable(columns, layers, lookup, _virtual(list(kinds), ends))


def _virtual(splits: Sequence[tuple[tuple[int, ...], bool]], ends: bool) -> Column:
    """`uneven` of each split (its layers, DualPipe or not) by virtual stages, up to one a layer and one for an end."""
    most = max(max(counts) for counts, _ in splits) + 1
    found = np.tile(np.array([0.0, 0.0, 0.0, ROOM])[:, None, None], (1, len(splits), most + 1))
    for row, (counts, dual) in enumerate(splits):
        for vpp in range(2, max(counts) + 2 if len(counts) > 1 and not dual else 0):
            found[:, row, vpp] = uneven(counts, vpp, ends=ends)
    return found


def _kinds(stages: Sequence[Contents], *, dual: bool) -> list[dict[str, float]]:
    """Runs of stages that hold the same, the columns of a StageTable for each."""
    names, mirrors = tuple(stages[0]), reversed(stages)
    columns = (*names, *(f"mirror_{name}" for name in names))
    ranks = [
        (*own.values(), *(dual * mirror[name] for name in names)) for own, mirror in zip(stages, mirrors, strict=True)
    ]
    kinds, rank = [], 0
    for held, run in groupby(ranks):
        count = len(list(run))
        kind = {"rank": rank, "count": count, "later": len(ranks) - rank - count}
        kinds.append({name: float(value) for name, value in (kind | dict(zip(columns, held, strict=True))).items()})
        rank += count
    return kinds
