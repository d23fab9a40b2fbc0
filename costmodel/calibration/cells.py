"""The cells of a row of runs: which a row must have, and their numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hardware.errors import InputError

REQUIRED = ("model", "hidden", "layers", "heads", "vocab", "gpu", "gpus", "framework", "gbs", "mbs", "seq")
FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
LARGEST = 1e9
"""No count or width of a run is above this."""


def number(row: Mapping[str, str], name: str) -> float | None:
    """A cell's number, None where it is empty. Raises InputError for text and what is out of range."""
    text = row.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name} = {text!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{name} = {text!r} is out of range")
    return value


def whole(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A cell's whole number, `default` where it is empty. Raises InputError for another, and without a default."""
    value = number(row, name)
    if value is None:
        if default is None:
            raise InputError(f"{name} not stated")
        return default
    if value != int(value):
        raise InputError(f"{name} = {value:g} is not a whole number")
    if value > LARGEST or (value == 0 and name in REQUIRED):
        raise InputError(f"{name} = {value:g} is out of range")
    return int(value)


def flag(row: Mapping[str, str], name: str, default: bool) -> bool:
    """A cell's yes or no, `default` where it is empty. Raises InputError for another text."""
    text = row.get(name, "")
    if not text:
        return default
    if text.lower() not in FLAGS:
        raise InputError(f"{name} = {text!r} is neither 1 nor 0")
    return FLAGS[text.lower()]
