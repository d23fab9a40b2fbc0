"""Texts with units <-> SI floats (B, B/s, FLOP/s, s, W, J); the only file where a unit has a name."""

import math
import re

from hardware.errors import InputError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*", re.ASCII)

KINDS = {
    "B": 'an amount of memory, for example "80 GB"',
    "B/s": 'a bandwidth, for example "450 GB/s" or "400 Gb/s"',
    "FLOP": 'an amount of arithmetic, for example "1 TFLOP"',
    "FLOP/s": 'a rate of arithmetic, for example "989 TFLOP/s"',
    "s": 'a time, for example "3 us"',
    "W": 'a power, for example "700 W"',
    "J": 'an energy, for example "1 MJ"',
    "$/h": 'a price, for example "2.5 $/h"',
    "1": "a number without a unit",
}


def _unit_table() -> dict[str, tuple[float, str]]:
    table = {
        "%": (0.01, "1"), "$/h": (1.0, "$/h"), "Wh": (3600.0, "J"), "kWh": (3.6e6, "J"), "MWh": (3.6e9, "J"),
        "s": (1.0, "s"), "ms": (1e-3, "s"), "us": (1e-6, "s"), "µs": (1e-6, "s"), "ns": (1e-9, "s"),
        "min": (60.0, "s"), "h": (3600.0, "s"), "d": (86400.0, "s"),
    }  # fmt: skip
    for prefix, factor in (_DECIMAL | _BINARY).items():
        table[f"{prefix}B"] = (factor, "B")
        table[f"{prefix}B/s"] = (factor, "B/s")
        table[f"{prefix}b/s"] = (factor / 8, "B/s")
    for prefix, factor in _DECIMAL.items():
        table[f"{prefix}FLOP"] = (factor, "FLOP")
        table[f"{prefix}FLOP/s"] = table[f"{prefix}FLOPS"] = (factor, "FLOP/s")
        table[f"{prefix}bit/s"] = table[f"{prefix}bps"] = (factor / 8, "B/s")
        table[f"{prefix}W"] = (factor, "W")
        table[f"{prefix}J"] = (factor, "J")
    return table


_UNITS = _unit_table()


def parse(value: object, kind: str | None = None) -> float:
    """The SI value of a number (taken as SI already) or of a text such as "80 GiB" or "400 Gb/s".

    `kind` is the SI unit that is expected ("B", "B/s", "FLOP/s", "s", "W", "J", "$/h", "1"); None takes any.
    Raises InputError, one line, for anything else: an unknown unit, a unit of another kind, a value that is
    no finite number.
    """
    if isinstance(value, str):
        return _parse_text(value, kind)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"expected {_expected(kind)}, got {_kind_of(value)}")
    return _finite(value, repr(value))


def _parse_text(text: str, kind: str | None) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InputError(f"expected {_expected(kind)}")
    number, unit = float(match[1]), match[2]
    factor, found = (1.0, kind) if not unit else _UNITS.get(unit, (0.0, ""))
    if factor == 0.0:
        raise InputError(f"unknown unit {unit!r}{_nearest_unit(unit, kind)}; expected {_expected(kind)}")
    if kind is not None and found != kind:
        raise InputError(f"{unit!r} is a unit of another kind; expected {_expected(kind)}")
    return _finite(number * factor, repr(text))


def _nearest_unit(unit: str, kind: str | None) -> str:
    for name, (_, its_kind) in _UNITS.items():
        if name.lower() == unit.lower() and its_kind == (kind or its_kind):
            return f", did you mean {name!r}?"
    return ""


def _expected(kind: str | None) -> str:
    return KINDS[kind] if kind is not None else 'a number, with or without a unit, for example "80 GB"'


def _kind_of(value: object) -> str:
    names = {bool: "true or false", list: "a list", dict: "a table"}
    return names.get(type(value), type(value).__name__)


def _finite(value: float, shown: str) -> float:
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InputError(f"{shown[:40]} is not a finite number")
    return result


def format_bytes(value: float) -> str:
    """Bytes in powers of 1024, three digits: 84933140480 -> "79.1 GiB"."""
    return _scaled(value, {"": 1.0} | _BINARY, "B")


def format_decimal_bytes(value: float) -> str:
    """Bytes in powers of 1000, as data sheets and textbooks write them: 84933140480 -> "84.9 GB"."""
    return _scaled(value, _DECIMAL, "B")


def format_bandwidth(value: float) -> str:
    """B/s in powers of 1000: 450e9 -> "450 GB/s"."""
    return _scaled(value, _DECIMAL, "B/s")


def format_flops(value: float) -> str:
    """FLOP/s: 989e12 -> "989 TFLOP/s"."""
    return _scaled(value, _DECIMAL, "FLOP/s")


def format_power(value: float) -> str:
    """Watts: 10200 -> "10.2 kW"."""
    return _scaled(value, _DECIMAL, "W")


def format_energy(value: float) -> str:
    """Joules as watt-hours, the unit of the bill: 3.6e9 -> "1 MWh"."""
    return _scaled(value / 3600.0, _DECIMAL, "Wh")


def format_count(value: float) -> str:
    """A plain number: 405853e6 -> "406 G"."""
    return _scaled(value, _DECIMAL, "").strip()


def format_seconds(value: float) -> str:
    """Seconds with the prefix that leaves three digits, hours and days above: 0.0123 -> "12.3 ms"."""
    size = abs(value)
    if size >= 172800.0:
        return f"{_three_digits(value / 86400.0)} d"
    if size >= 7200.0:
        return f"{_three_digits(value / 3600.0)} h"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if size >= factor * 0.9995:
            return f"{_three_digits(value / factor)} {unit}"
    return f"{_three_digits(value / 1e-9)} ns" if size else "0 s"


def _scaled(value: float, prefixes: dict[str, float], unit: str) -> str:
    prefix, factor = "", 1.0
    for name, size in prefixes.items():
        if name != "K" and abs(value) >= size * 0.9995:
            prefix, factor = name, size
    return f"{_three_digits(value / factor)} {prefix}{unit}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000.0 else f"{value:.3g}" if abs(value) < 999.5 else "1000"
