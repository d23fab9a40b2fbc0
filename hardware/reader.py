"""A TOML file -> a checked table: it knows its file, its key path and which of its keys were read."""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast, get_args

from hardware import units
from hardware.errors import InputError
from hardware.provenance import Provenance, Tag
from hardware.spelling import did_you_mean

_RESERVED = ("source", "tag")
_Bounds = tuple[float | None, float | None, float | None]
_FACT_KEYS = ("value", "source", "tag", "note")


class Table:
    """A TOML table. A number may be plain (SI), a text with a unit, or a fact with its source:
    `{value = "3.35 TB/s", source = "data sheet", tag = "spec"}`. The keys `source` and `tag` of a table hold
    for the plain numbers in it and below. Every method that reads raises InputError, one line that names
    file, key and value.
    """

    def __init__(
        self, data: Mapping[str, object], file: str | os.PathLike[str], path: str = "",
        provenance: Provenance | None = None,
    ) -> None:  # fmt: skip
        self.file = Path(file)
        self.path = path
        self._data = data
        self._asked: set[str] = set()
        self._sources: dict[str, Provenance] = {}
        self._children: dict[str, Table] = {}
        self._provenance = self._own_provenance(provenance)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Table":
        """Reads a TOML file; InputError for a file that is missing, unreadable or no TOML."""
        try:
            with open(path, "rb") as file:
                return cls(tomllib.load(file), path)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file") from None
        except IsADirectoryError:
            raise InputError(f"{path}: is a folder, expected a TOML file") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            text = " ".join(str(error).split())
            raise InputError(f"{path}: not a TOML file: {text}") from None

    # -- what is there

    def keys(self) -> tuple[str, ...]:
        """The keys in the order of the file, without the table's own `source` and `tag`."""
        return tuple(key for key in self._data if key not in _RESERVED)

    def has(self, key: str) -> bool:
        """Whether the file has this key; from now on it is a known one."""
        self._asked.add(key)
        return key in self._data

    def raw(self, key: str) -> object:
        """The value as TOML gives it; InputError if it is missing."""
        if not self.has(key):
            raise self.error(key, "is missing")
        return self._data[key]

    # -- single values

    def number(
        self, key: str, default: float | None = None, minimum: float | None = None, *,
        above: float | None = None, maximum: float | None = None, unit: str | None = None,
    ) -> float:  # fmt: skip
        """A finite number in SI; without a default the key must be there.

        minimum and maximum are inclusive, `above` is exclusive; `unit` is the expected SI unit ("B", "B/s",
        "FLOP/s", "s", "W", "$/h", "1"; None takes any).
        """
        if default is not None and not self.has(key):
            return default
        value, provenance = self._fact(key)
        try:
            result = units.parse(value, unit)
        except InputError as error:
            raise self.error(key, str(error), value) from None
        self._check_bounds(key, value, result, (minimum, above, maximum))
        self._sources[key] = provenance
        return result

    def optional_number(
        self, key: str, minimum: float | None = None, *, above: float | None = None,
        maximum: float | None = None, unit: str | None = None,
    ) -> float | None:  # fmt: skip
        """As `number`, but None if the key is not there."""
        if not self.has(key):
            return None
        return self.number(key, minimum=minimum, above=above, maximum=maximum, unit=unit)

    def integer(
        self, key: str, default: int | None = None, minimum: int | None = None, *, maximum: int | None = None
    ) -> int:
        """A whole number; without a default the key must be there."""
        if default is not None and not self.has(key):
            return default
        value, provenance = self._fact(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "expected a whole number", value)
        self._check_bounds(key, value, value, (minimum, None, maximum))
        self._sources[key] = provenance
        return value

    def optional_integer(self, key: str, minimum: int | None = None, *, maximum: int | None = None) -> int | None:
        """As `integer`, but None if the key is not there."""
        return self.integer(key, minimum=minimum, maximum=maximum) if self.has(key) else None

    def text(self, key: str, default: str | None = None, *, choices: Iterable[str] | None = None) -> str:
        """A text that is not empty, one of `choices` if these are given."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "expected a text", value)
        if choices is not None and value not in (known := tuple(choices)):
            hint = did_you_mean(value, known)
            raise self.error(key, f"must be one of {', '.join(known)}{hint}", value)
        return value

    def optional_text(self, key: str, *, choices: Iterable[str] | None = None) -> str | None:
        """As `text`, but None if the key is not there."""
        return self.text(key, choices=choices) if self.has(key) else None

    def flag(self, key: str, default: bool | None = None) -> bool:
        """true or false."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, bool):
            raise self.error(key, "expected true or false", value)
        return value

    # -- lists

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of texts."""
        if default is not None and not self.has(key):
            return default
        values = self._list(key, self.raw(key))
        if any(not isinstance(value, str) or not value.strip() for value in values):
            raise self.error(key, "expected a list of texts", values)
        return tuple(cast(list[str], values))

    def numbers(
        self, key: str, default: tuple[float, ...] | None = None, minimum: float | None = None, *,
        above: float | None = None, maximum: float | None = None, unit: str | None = None,
    ) -> tuple[float, ...]:  # fmt: skip
        """A list of finite numbers in SI; the bounds hold for each."""
        if default is not None and not self.has(key):
            return default
        values, provenance = self._fact(key)
        result = self._row(key, values, (minimum, above, maximum), unit)
        self._sources[key] = provenance
        return result

    def rows(
        self, key: str, minimum: float | None = None, *, above: float | None = None,
        maximum: float | None = None, unit: str | None = None,
    ) -> tuple[tuple[float, ...], ...]:  # fmt: skip
        """A list of rows of numbers, all of one length."""
        values, provenance = self._fact(key)
        bounds = (minimum, above, maximum)
        result = tuple(self._row(key, row, bounds, unit) for row in self._list(key, values))
        if len({len(row) for row in result}) > 1:
            raise self.error(key, f"rows of different lengths: {', '.join(str(len(row)) for row in result)}")
        self._sources[key] = provenance
        return result

    # -- tables in the table

    def table(self, key: str) -> "Table":
        """The table under this key (the same object at every call)."""
        if key not in self._children:
            value = self.raw(key)
            if not isinstance(value, dict):
                raise self.error(key, "expected a table", value)
            self._children[key] = Table(value, self.file, self._dotted(key), self._provenance)
        return self._children[key]

    def optional_table(self, key: str) -> "Table | None":
        """As `table`, but None if the key is not there."""
        return self.table(key) if self.has(key) else None

    def tables(self, key: str, default: tuple["Table", ...] | None = None) -> tuple["Table", ...]:
        """A list of tables ([[key]])."""
        if default is not None and not self.has(key):
            return default
        values = self._list(key, self.raw(key))
        for index, value in enumerate(values):
            name = f"{key}[{index}]"
            if not isinstance(value, dict):
                raise self.error(name, "expected a table", value)
            self._children.setdefault(name, Table(value, self.file, self._dotted(name), self._provenance))
        return tuple(self._children[f"{key}[{index}]"] for index in range(len(values)))

    # -- afterwards

    @property
    def sources(self) -> dict[str, Provenance]:
        """The provenance of every number read so far, by key path relative to this table."""
        result = dict(self._sources)
        for key, child in self._children.items():
            result |= {f"{key}.{name}": provenance for name, provenance in child.sources.items()}
        return result

    @property
    def provenance(self) -> Provenance:
        """What holds for numbers of this table that bring no source of their own."""
        return self._provenance

    def finish(self) -> None:
        """InputError for the first key, here or in a table that was read, that nobody asked for."""
        known = sorted(self._asked)
        for key in self.keys():
            if key not in self._asked:
                hint = did_you_mean(key, known) or ";"
                where = f" of {self.path!r}" if self.path else ""
                listed = ", ".join(known)
                raise InputError(f"{self.file}: unknown key {self._dotted(key)!r}{hint} known keys{where}: {listed}")
        for child in self._children.values():
            child.finish()

    def error(self, key: str, message: str, value: object = None) -> InputError:
        """An InputError, to be raised by the caller, that names the file, the key path and the value."""
        figure = value.get("value", value) if isinstance(value, dict) else value
        shown = "" if value is None else f" = {_shorten(figure)}"
        separator = " " if message.startswith("is ") else ": "
        return InputError(f"{self.file}: {self._dotted(key)}{shown}{separator}{message}")

    # -- inside

    def _dotted(self, key: str) -> str:
        key = key if key.isprintable() else repr(key)
        return f"{self.path}.{key}" if self.path else key

    def _own_provenance(self, outer: Provenance | None) -> Provenance:
        source, tag = self._data.get("source"), self._data.get("tag")
        if outer is None:
            outer = Provenance("assumed", f"{self.file.name}, no source given")
        return Provenance(
            self._checked_tag("tag", tag) if tag is not None else "spec" if source is not None else outer.tag,
            source if isinstance(source, str) else outer.source,
        )

    def _checked_tag(self, key: str, tag: object) -> Tag:
        if tag not in get_args(Tag):
            raise self.error(key, f"must be one of {', '.join(get_args(Tag))}", tag)
        return cast(Tag, tag)

    def _fact(self, key: str) -> tuple[object, Provenance]:
        value = self.raw(key)
        if not isinstance(value, dict):
            return value, self._provenance
        for name in value:
            if name not in _FACT_KEYS:
                raise self.error(f"{key}.{name}", f"is unknown; known keys: {', '.join(_FACT_KEYS)}")
        if "value" not in value:
            raise self.error(f"{key}.value", "is missing")
        source, tag = value.get("source", self._provenance.source), value.get("tag", "spec")
        if not isinstance(source, str):
            raise self.error(f"{key}.source", "expected a text", source)
        if "tag" not in value and "source" not in value:
            tag = self._provenance.tag
        return value["value"], Provenance(self._checked_tag(f"{key}.tag", tag), source)

    def _list(self, key: str, value: object) -> list[object]:
        if not isinstance(value, list) or not value:
            raise self.error(key, "expected a list that is not empty", value)
        return value

    def _row(self, key: str, values: object, bounds: _Bounds, unit: str | None) -> tuple[float, ...]:
        row = []
        for value in self._list(key, values):
            try:
                number = units.parse(value, unit)
            except InputError as error:
                raise self.error(key, str(error), value) from None
            self._check_bounds(key, value, number, bounds)
            row.append(number)
        return tuple(row)

    def _check_bounds(self, key: str, value: object, number: float, bounds: _Bounds) -> None:
        minimum, above, maximum = bounds
        if minimum is not None and number < minimum:
            raise self.error(key, f"must be at least {minimum:g}", value)
        if above is not None and number <= above:
            raise self.error(key, f"must be above {above:g}", value)
        if maximum is not None and number > maximum:
            raise self.error(key, f"must be at most {maximum:g}", value)


def _shorten(value: object) -> str:
    text = repr(value).replace("\n", "\\n")
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
