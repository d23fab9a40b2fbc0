"""Numbers of a machine, each of a magnitude that machines have: 50 for 50 GB/s is noticed."""

from collections.abc import Iterable

from hardware import units
from hardware.reader import Table

RANGES = {"B": (1e6, 1e18), "B/s": (1e6, 1e18), "FLOP/s": (1e9, 1e21), "W": (30.0, 1e9), "s": (0.0, 1.0)}
"""SI unit -> the least and the most that a number of a machine can be."""


def physical(table: Table, key: str, unit: str, default: float | None = None) -> float:
    """`table.number` in this unit; InputError that asks for the unit where no machine has such a number."""
    least = {"minimum": 0.0} if unit == "s" else {"above": 0.0}
    value = table.number(key, default=default, unit=unit, **least)
    if table.has(key):
        check(table, key, unit, (value,))
    return value


def optional_physical(table: Table, key: str, unit: str) -> float | None:
    """As `physical`, but None if the key is not there."""
    return physical(table, key, unit) if table.has(key) else None


def check(table: Table, key: str, unit: str, values: Iterable[float]) -> None:
    """InputError for the first value outside of what a machine can have."""
    least, most = RANGES[unit]
    for value in values:
        if not least <= value <= most:
            what = "too little" if value < least else "too much"
            raise table.error(key, f"{value:g} {unit} is {what}; write {units.KINDS[unit]}", table.raw(key))
