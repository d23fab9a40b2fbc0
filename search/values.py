"""How one value on the command line is read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from hardware.errors import InputError
from hardware.units import parse

LARGEST = 2**31 - 1
Value = int | str


def _integer(text: str, low: int, meaning: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not {meaning}")
    return int(text)


def count(text: str) -> int:
    """A positive whole number."""
    return _integer(text, 1, f"a positive integer up to {LARGEST}")


def whole(text: str) -> int:
    """A whole number, 0 among them."""
    return _integer(text, 0, f"an integer from 0 to {LARGEST}")


def stage(text: str) -> int:
    """A ZeRO stage."""
    if text not in ("0", "1", "2", "3"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a ZeRO stage (0, 1, 2 or 3)")
    return int(text)


def switch(text: str) -> int:
    """True or false, as 1 or 0."""
    known = {"true": 1, "on": 1, "yes": 1, "1": 1, "false": 0, "off": 0, "no": 0, "0": 0}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def named(text: str) -> str:
    """What is looked up by its name, or the name of a file: anything but nothing."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is no name")
    return text


def word(text: str) -> str:
    """A name of letters, digits, + . _ and -."""
    if not re.fullmatch(r"[\w+.-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return text


def number(text: str) -> float:
    """A positive number without a unit."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,17})?|\.[0-9]{1,17}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return float(text)


def memory(text: str) -> float:
    """Bytes: a number with its unit."""
    try:
        size = parse(text, "B")
    except InputError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if size != 0 and not 1e6 <= size <= 1e15:
        raise argparse.ArgumentTypeError(f'{text!r} is {size:g} bytes; write a unit, for example "4 GiB"')
    return size


def shard(text: str) -> Value:
    return text if text == "all" else _integer(text, 1, f"all, or a positive integer up to {LARGEST}")


VALUES: dict[str, Callable[[str], Value]] = {
    "count": count,
    "count|all": shard,
    "stage": stage,
    "layers": whole,
    "switch": switch,
    "name": word,
}


def list_of(value: Callable[[str], Value]) -> Callable[[str], tuple[Value, ...]]:
    """A comma list of such values, each once."""

    def read(text: str) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(value(part.strip()) for part in text.split(",")))

    return read
