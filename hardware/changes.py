"""What if: a cluster's table with some of its figures changed, each named by its key path."""

import re
from collections.abc import Container, Mapping

from hardware import units
from hardware.errors import InputError
from hardware.reader import Table
from hardware.shipped import find
from hardware.spelling import did_you_mean

Value = str | float
SOURCE = "what-if: set by the user"


def changed(table: Table, changes: Mapping[str, Value]) -> Table:
    """The cluster's table with `changes`: key path -> value, a number in SI or a text with its unit.

    A level is named or counted from the inside out ("levels.spine.bandwidth" = "levels.2.bandwidth"); "gpu.memory"
    reaches into the GPU's own file, and its usable memory follows unless it is set, too. Nothing is checked but that
    the path leads somewhere; reading the table checks the rest. Raises InputError for a path that leads nowhere.
    """
    data: dict[str, object] = {key: table.raw(key) for key in table.keys()}  # noqa: SIM118 (a Table is no dict)
    before = dict(data)
    for path, value in changes.items():
        if path.startswith("gpu.") and isinstance(data.get("gpu"), str):
            data["gpu"] = _gpu(table, str(data["gpu"]))
        _put(data, path, value)
    follow(before, data, changes)
    if "gpu.memory" in changes and "gpu.usable_memory" not in changes:
        old = _gpu(table, str(table.raw("gpu"))) if isinstance(table.raw("gpu"), str) else table.raw("gpu")
        _scale_usable(data, old, changes["gpu.memory"])
    return Table(data, table.file, provenance=table.provenance)


def follow(before: Mapping[str, object], data: dict[str, object], given: Container[str]) -> None:
    """Figures of the base that another one was the reason for: a node of half the GPUs draws half its power, and the
    price and power of a node with other GPUs are not known; what was `given` stays as it is."""
    power = before.get("node_power")
    if "gpu" in given and data.get("gpu") != before.get("gpu"):
        for key in ("price", "node_power"):
            if key not in given:
                data.pop(key, None)
    elif "gpus_per_node" in given and "node_power" not in given and power is not None:
        was, now = (_value(it.get("gpus_per_node")) for it in (before, data))
        if isinstance(was, int) and isinstance(now, int) and was > 0 and was != now:
            watts = units.parse(_value(power), "W") * now / was
            data["node_power"] = {"value": watts, "source": f"{now} of {was} GPUs of a node", "tag": "assumed"}


def _value(fact: object) -> object:
    return fact.get("value") if isinstance(fact, dict) else fact


def _gpu(cluster: Table, name: str) -> dict[str, object]:
    """The GPU's own table, to stand in the cluster's."""
    own = Table.load(find("gpus", "GPU", name, cluster.file.parent))
    return {"name": own.file.stem} | {key: own.raw(key) for key in own.keys()}  # noqa: SIM118


def _put(data: dict[str, object], path: str, value: Value) -> None:
    """Set one value; the tables on the way are copied, as they belong to the file."""
    *above, last = path.split(".")
    place = data
    for depth, name in enumerate(above):
        key = list(place)[int(name)] if name.isdigit() and int(name) < len(place) else name
        inner = place.get(key)
        if not isinstance(inner, dict) or "value" in inner:
            known = [key for key, below in place.items() if isinstance(below, dict) and "value" not in below]
            hint = did_you_mean(name, known) or f"; tables there: {', '.join(known) or 'none'}"
            raise InputError(f"cluster.{path}: there is no table {'.'.join(above[: depth + 1])!r}{hint}")
        place[key] = place = dict(inner)
    old = place.get(last)
    text = isinstance(old, str) and not re.match(r"\s*[\d.]", old)
    place[last] = value if text else {"value": _number(value), "source": SOURCE, "tag": "assumed"}


def _number(value: Value) -> int | float | str:
    """A plain number of a text; what has a unit stays a text."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+", value):
        return int(value)
    return float(value) if isinstance(value, str) and re.fullmatch(r"[0-9]*\.[0-9]+", value) else value


def _scale_usable(data: dict[str, object], old: object, memory: Value) -> None:
    """Usable memory keeps its share of the memory; left to its default where the file does not say."""
    assert isinstance(old, dict)
    gpu = data["gpu"]
    assert isinstance(gpu, dict)
    was, usable = (_plain(old.get(key)) for key in ("memory", "usable_memory"))
    if was is not None and usable is not None:
        gpu["usable_memory"] = {
            "value": usable * units.parse(_number(memory), "B") / was,
            "source": f"{SOURCE}: its share of the memory",
            "tag": "assumed",
        }


def _plain(fact: object) -> float | None:
    value = _value(fact)
    return None if value is None else units.parse(value, "B")
