"""Range: what the measured runs cover that a profile's rates on one GPU rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hardware.reader import Table

FAR = 2.0
"""A number of GPUs or parameters or a sequence length may lie beyond the runs by this factor, a degree not at all."""
AMOUNTS = ("gpus", "parameters", "seq_len")
DEGREES = ("tp", "pp", "cp", "ep")
KINDS = ("dense", "moe")
Ends = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """How many runs, their precisions and kinds of model, and the least and most of each amount and degree."""

    runs: int
    precisions: tuple[str, ...]
    kinds: tuple[str, ...]
    ends: Mapping[str, Ends]

    def limits(self, name: str) -> Ends:
        """Between which an amount or degree counts as covered."""
        low, high = self.ends[name]
        return (low / FAR, high * FAR) if name in AMOUNTS else (low, high)

    def with_(self, other: Range | None) -> Range:
        """What either covers."""
        if other is None:
            return self
        pairs = {name: (*self.ends[name], *other.ends[name]) for name in self.ends}
        return Range(
            runs=self.runs + other.runs,
            precisions=tuple(sorted({*self.precisions, *other.precisions})),
            kinds=tuple(sorted({*self.kinds, *other.kinds})),
            ends={name: (min(ends), max(ends)) for name, ends in pairs.items()},
        )

    def misses(self, values: Mapping[str, float]) -> tuple[str, ...]:
        """For each amount or degree that lies outside, one sentence with the numbers."""
        found = []
        for name, value in values.items():
            low, high = self.limits(name)
            if not low <= value <= high:
                seen = " to ".join(dict.fromkeys(f"{end:,.15g}" for end in self.ends[name]))
                found.append(f"{name} {value:,.15g}: measured runs have {seen}")
        return tuple(found)


def range_of(precisions: Iterable[str], kinds: Iterable[str], values: Iterable[Mapping[str, float]]) -> Range:
    """The range of runs, each given by its precision, kind of model, and amounts and degrees by name."""
    rows = list(values)
    ends = {name: (min(row[name] for row in rows), max(row[name] for row in rows)) for name in (*AMOUNTS, *DEGREES)}
    return Range(runs=len(rows), precisions=tuple(sorted(set(precisions))), kinds=tuple(sorted(set(kinds))), ends=ends)


def read_ranges(table: Table | None) -> dict[str, Range]:
    """The tables `[range.GPU]` of a profile's file. Raises InputError for a key or value that is none."""
    return {gpu: _read(table.table(gpu)) for gpu in table.keys()} if table else {}  # noqa: SIM118 (a Table is no dict)


def _read(table: Table) -> Range:
    ends = {}
    for name in (*AMOUNTS, *DEGREES):
        values = table.numbers(name, minimum=1)
        if len(values) != 2 or values[0] > values[1]:
            raise table.error(name, "expected the least and the most", list(values))
        ends[name] = (values[0], values[1])
    kinds = table.texts("kinds")
    for kind in kinds:
        if kind not in KINDS:
            raise table.error("kinds", f"must be among {', '.join(KINDS)}", kind)
    runs = table.integer("runs", minimum=1)
    return Range(runs=runs, precisions=table.texts("precisions"), kinds=kinds, ends=ends)


def range_lines(gpu: str, it: Range, source: str) -> list[str]:
    """The lines of `[range.GPU]` as `read_ranges` reads them."""
    texts = {name: ", ".join(f'"{text}"' for text in getattr(it, name)) for name in ("precisions", "kinds")}
    return [
        f"[range.{gpu}]",
        f'source = "{source}"',
        'tag = "measured"',
        f"runs = {it.runs}",
        *(f"{name} = [{text}]" for name, text in texts.items()),
        *(f"{name} = [{low:.15g}, {high:.15g}]" for name, (low, high) in it.ends.items()),
        "",
    ]
