"""Layouts: the columnar table of N training layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]
T = TypeVar("T")
_ABSENT: Any = None

SCHEDULES: tuple[str, ...] = ("1f1b", "interleaved", "zero-bubble", "dualpipe")
"""Pipeline schedules by code; the `schedule` column holds the index."""
RANK_ORDERS: tuple[str, ...] = ("tp-cp-dp-pp", "tp-cp-pp-dp")
"""How ranks fill the machine, from the inside out, by code: Megatron-Core's default and its --use-tp-pp-dp-mapping."""
CODED: dict[str, tuple[str, ...]] = {"schedule": SCHEDULES, "rank_order": RANK_ORDERS}
"""The axes whose columns hold an index into names that are the same for all profiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """N layouts as equal-length int64 columns, one field an axis, in the order in which ties are broken.

    `recompute` holds an index into `Profile.recompute`, `schedule` one into `SCHEDULES`, `rank_order` one into
    `RANK_ORDERS`, `sequence_parallel` is 0 or 1. `dp` counts data-parallel ranks without context parallelism:
    tp * pp * cp * dp is the world size. `dp_shard` is the number of ranks over which ZeRO shards (it divides dp * cp).
    `recompute_layers` is how many layers of each stage the set holds for, the dense ones first; the others, and those
    of multi-token prediction, keep everything. 0 is all of them.
    """

    tp: Column
    pp: Column
    vpp: Column
    dp: Column
    dp_shard: Column
    cp: Column
    ep: Column
    etp: Column
    zero_stage: Column
    micro_batch: Column
    recompute: Column
    recompute_layers: Column
    sequence_parallel: Column
    schedule: Column
    rank_order: Column

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> Layouts:
        """A table from equal-length columns (any integer array-likes); other keys are ignored."""
        return cls(**{axis: np.ascontiguousarray(columns[axis], dtype=np.int64) for axis in AXES})

    @classmethod
    def partial(cls, columns: Mapping[str, Column]) -> Layouts:
        """A table that lacks some axes, for costs that do not depend on them: one that does fails (they are None)."""
        return cls(**{axis: np.ascontiguousarray(columns[axis]) if axis in columns else _ABSENT for axis in AXES})

    @classmethod
    def of(cls, **axes: int) -> Layouts:
        """A table with one row; `dp_shard` defaults to dp * cp, every other axis to 1 (codes to 0)."""
        values = {axis: 1 for axis in AXES} | {
            "zero_stage": 0,
            "recompute": 0,
            "recompute_layers": 0,
            "sequence_parallel": 0,
            "schedule": 0,
            "rank_order": 0,
        }
        values |= axes
        if "dp_shard" not in axes:
            values["dp_shard"] = values["dp"] * values["cp"]
        return cls.from_columns({axis: [value] for axis, value in values.items()})

    def distinct(self, axes: Sequence[str], *more: Column) -> tuple[Column, Column]:
        """Index of one row for each combination of the named axes (and `more` columns), and each row's place in it.

        What depends on these alone is computed on the first and gathered by the second: the same numbers. Columns are
        integers from 0 up.
        """
        key = np.zeros(len(self), dtype=np.int64)
        for column in (*(getattr(self, axis) for axis in axes), *more):
            key = key * (int(column.max()) + 1) + column
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        return first, inverse

    def only(self, axes: Sequence[str]) -> Layouts:
        """The same rows without the other axes."""
        return Layouts.partial({axis: getattr(self, axis) for axis in axes})

    def once(self, axes: Sequence[str], cost: Callable[[Layouts], T]) -> T:
        """What `cost` gives for this table, computed once for each combination of the axes that it needs."""
        first, rows = self.distinct(axes)
        return gather(cost(self.take(first).only(axes)), rows)

    def take(self, rows: Any) -> Layouts:
        """The rows that an index array, a slice or a boolean mask selects."""
        columns = {axis: getattr(self, axis) for axis in AXES}
        return Layouts.partial({axis: column[rows] for axis, column in columns.items() if column is not None})

    def row(self, index: int) -> dict[str, int]:
        """One row as plain integers."""
        return {axis: int(getattr(self, axis)[index]) for axis in AXES}

    def __len__(self) -> int:
        return len(self.tp)


def gather(tree: T, rows: Column | slice) -> T:
    """A column, or a dataclass, dict or tuple of columns, at these places of its last axis; a slice gives views."""
    if isinstance(tree, np.ndarray):
        return tree[..., rows] if isinstance(rows, slice) else tree.take(rows, axis=-1)  # type: ignore[return-value]
    if isinstance(tree, tuple):
        return tuple(gather(part, rows) for part in tree)  # type: ignore[return-value]
    if isinstance(tree, dict):
        return {name: gather(part, rows) for name, part in tree.items()}  # type: ignore[return-value]
    parts = {part.name: gather(getattr(tree, part.name), rows) for part in fields(tree)}  # type: ignore[arg-type]
    return type(tree)(**parts)


def joined(trees: Sequence[T]) -> T:
    """Columns, or dataclasses of columns, one after the other along the last axis."""
    if isinstance(trees[0], np.ndarray):
        return np.concatenate(trees, axis=-1)  # type: ignore[return-value, arg-type]
    names = [part.name for part in fields(trees[0])]  # type: ignore[arg-type]
    return type(trees[0])(**{name: joined([getattr(tree, name) for tree in trees]) for name in names})


AXES: tuple[str, ...] = tuple(field.name for field in fields(Layouts))


def stages_inside(layouts: Layouts) -> Column:
    """1 where the ranks of a pipeline lie nearer to each other than those of data parallelism, else 0."""
    return np.asarray(layouts.rank_order == RANK_ORDERS.index("tp-cp-pp-dp"), dtype=np.int64)


def is_partial(layouts: Layouts) -> Column:
    """Whether the recompute set holds for some layers of a stage alone."""
    return np.asarray(layouts.recompute_layers > 0)


def usual_set(layouts: Layouts) -> Column:
    """Recompute set of the layers beyond `recompute_layers`: that of no modules, which is every profile's first."""
    return layouts.recompute * ~is_partial(layouts)


def whole_sets(layouts: Layouts) -> Layouts:
    """The layouts whose layers all are as those beyond `recompute_layers`; the same where the set holds for all."""
    return replace(layouts, recompute=usual_set(layouts), recompute_layers=np.zeros_like(layouts.recompute))


def nothing_again(layouts: Layouts) -> Layouts:
    """The layouts where no layer is computed again."""
    nothing = np.zeros_like(layouts.recompute)
    return replace(layouts, recompute=nothing, recompute_layers=nothing)


def shard_groups(layouts: Layouts) -> tuple[Column, Column]:
    """Ranks over which ZeRO shards the dense states and the experts' states, float64 columns.

    Experts shard over those ranks of the group, its tensor-parallel peers included, that hold the same experts:
    tp dp_shard / (ep etp), at least 1. With dp_shard = dp cp this is the whole expert data-parallel group,
    world / (pp ep etp), often 1 or 2.
    """
    shard = layouts.dp_shard.astype(np.float64)
    experts = np.floor(shard * layouts.tp / (layouts.ep * layouts.etp))
    return shard, np.maximum(experts, 1.0)
