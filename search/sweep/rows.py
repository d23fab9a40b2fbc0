"""Results -> the rows of the sweep's file: every layout of every frontier with what training on it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from costmodel.economy import Training, training
from hardware import units
from hardware.errors import InputError
from search.sweep.unit import Result, Unit

Row = dict[str, Any]
ENDS = ("", "_low", "_high")
"""The prediction and the ends of its interval, as suffixes of a column."""
LEAVES = {"time": "days_to_train", "cost": "cost", "energy": "energy"}
"""Column that an objective makes small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a layout must keep to be kept; None is no limit."""

    days: float | None = None
    cost: float | None = None

    def broken(self, row: Row) -> str:
        """Why a row is left out, in numbers; empty if it is not."""
        if self.days is not None and row["days_to_train"] > self.days:
            return f"max_days: {row['days_to_train']:.4g} days, more than {self.days:g}"
        if self.cost is not None and row["cost"] is None:
            return f"max_cost: no price of {row['cluster']} is known; --price {row['cluster']}=2.5 sets one"
        if self.cost is not None and row["cost"] > self.cost:
            return f"max_cost: ${row['cost']:,.0f}, more than ${self.cost:,.0f}"
        return ""


def rows_of(units: Sequence[Unit], results: Mapping[str, Result], tokens: float, limits: Limits) -> list[Row]:
    """The rows in the order of the units; a unit of which nothing is kept is one row with the reason."""
    found = [list(_unit_rows(unit, results[unit.key], tokens)) for unit in units]
    _scaling([row for own in found for row in own])
    rows: list[Row] = []
    for unit, own in zip(units, found, strict=True):
        kept = [row for row in own if not limits.broken(row)]
        reason = results[unit.key]["reason"] or (limits.broken(own[0]) if own else "")
        rows += kept or [_head(unit) | {"reason": reason, "scaling_efficiency": None}]
    _pareto(rows)
    return rows


def column_of(path: str) -> str:
    """The column of a what-if: cluster.levels.1.bandwidth -> cluster_levels_1_bandwidth."""
    return path.replace(".", "_").replace("-", "_")


def value_of(text: str) -> float | str:
    """The value of a what-if: a number in SI, or the text where it is none."""
    try:
        return float(units.parse(int(text) if text.isdecimal() else text))
    except InputError:
        return text


def _head(unit: Unit) -> Row:
    settings = {column_of(path): value for path, value in unit.settings}
    return {
        "model": unit.model, "cluster": unit.cluster, **settings, "gpus": unit.gpus, "global_batch": unit.global_batch,
    }  # fmt: skip


def _unit_rows(unit: Unit, result: Result, tokens: float) -> Iterator[Row]:
    if not result["rows"]:
        return
    assert unit.problem is not None
    times = {end: np.array([row[f"step_time{end}"] for row in result["rows"]], dtype=np.float64) for end in ENDS}
    runs = {end: training(unit.problem, tokens, column) for end, column in times.items()}
    for number, row in enumerate(result["rows"]):
        costs = {
            f"{part.name}{end}": _known(getattr(run, part.name)[number])
            for part in fields(Training)
            for end, run in runs.items()
        }
        yield _head(unit) | {"reason": None} | row | costs


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def machine_of(row: Row, settings: Sequence[str]) -> tuple[Any, ...]:
    """What rows of the same model, cluster and what-ifs have in common."""
    return tuple(row[name] for name in ("model", "cluster", *settings))


def settings_of(rows: Sequence[Row]) -> list[str]:
    """The columns of what-ifs: those between cluster and gpus."""
    names = list(rows[0]) if rows else []
    return names[2 : names.index("gpus")] if names else []


def _scaling(rows: list[Row]) -> None:
    """Tokens per second and GPU over those of the best layout on the smallest size that has one."""
    settings = settings_of(rows)
    first: dict[tuple[Any, ...], float] = {}
    for row in sorted(rows, key=lambda row: (row["gpus"], -row["mfu"])):
        first.setdefault(machine_of(row, settings), row["tokens_per_second_per_gpu"])
    for row in rows:
        row["scaling_efficiency"] = row["tokens_per_second_per_gpu"] / first[machine_of(row, settings)]


def _pareto(rows: list[Row]) -> None:
    """Marks, for each model, the rows that no other beats in both cost and time; of equals the first."""
    for row in rows:
        row["pareto"] = False
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model and fits(row) and row["cost"] is not None]
        least = float("inf")
        for row in sorted(own, key=lambda row: (row["cost"], row["days_to_train"])):
            if row["days_to_train"] < least:
                least, row["pareto"] = row["days_to_train"], True


def fits(row: Row) -> bool:
    """Whether the row is a layout and not a reason."""
    return not row["reason"]
