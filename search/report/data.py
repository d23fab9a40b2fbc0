"""A stored frontier or sweep -> what the page draws, as JSON: columns, terms, the account, the answers, sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardware.units import format_count
from search.account import DEMANDS
from search.frontier import Stored
from search.report.sources import inputs, replaced, short_names, sources
from search.sweep import answers
from search.sweep.rows import column_of, fits, machine_of, settings_of, value_of

DIGITS = 5
Json = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Page:
    """Title, subtitle and the data of a page."""

    title: str
    subtitle: str
    data: Json


def frontier_page(stored: Stored) -> Page:
    """The page of one search."""
    told, names = stored.provenance, stored.provenance["names"]
    work, space, given = told["workload"], told["space"], told["inputs"]
    batch = f"{work['global_batch']:,} sequences of {work['seq_len']:,} tokens a step"
    lines = [
        {"rule": rule, "count": count, "text": DEMANDS.get(rule, "")}
        for rule, count in space["pruned"].items()
        if count
    ]
    summary = (
        f"{space['candidates']:,} candidates: "
        f"{len(stored.rows):,} here; {told['solver']['solutions']:,} skeletons by CP-SAT ({told['solver']['status']}). "
        f"Candidates by the rule that rejected them:"
    )
    data = _table(stored.rows, stored.columns) | {
        "kind": "frontier",
        "settings": [],
        "account": {"summary": summary, "lines": lines},
        "sources": [inputs(told), *sources([given["model"]], [given["cluster"]], given, stored.path)],
    }
    title = f"{names['model']} on {work['gpus']:,} GPUs of {names['cluster']}"
    return Page(title, f"{work['precision']}, {batch}, profile {names['profile']}", data)


def sweep_page(stored: Stored) -> Page:
    """The page of a sweep: the best layout of every machine and size, and the reasons where there is none."""
    told = stored.provenance
    given = told["inputs"]
    rows = _as_typed(stored.rows, given["set"])
    best = [row for row in answers.best(rows, given["objective"]) if fits(row)]
    kept = [row for row in rows if fits(row) and (row["pareto"] or any(row is it for it in best))]
    settings, naming = settings_of(rows), _naming(rows, [path for path, _ in given["set"]])
    data = _table(kept, stored.columns) | {
        "kind": "sweep",
        "naming": naming,
        "best": [next(i for i, row in enumerate(kept) if row is it) for it in best],
        "reasons": list(_reasons(rows, settings)),
        "fewest": _answers(told, "fewest", settings),
        "max_days": given.get("max_days"),
        "knees": [_knee(it, naming) for it in _answers(told, "knees", settings)],
        "account": None,
        "sources": [inputs(told), *sources(given["model"], given["cluster"], given, stored.path)],
    }
    models, clusters = ", ".join(given["model"]), ", ".join(given["cluster"])
    tokens = format_count(given["tokens"]).strip()
    facts = [f"{tokens} tokens", given["precision"], f"profile {given['profile']}", *replaced(given)]
    return Page(f"{models} on {clusters}", ", ".join(facts), data)


def _naming(rows: Rows, paths: Sequence[str]) -> list[list[str]]:
    """The columns that tell machines apart, each with the name before its value, none where that says it."""
    names = {"model": "", "cluster": ""} | dict(zip(map(column_of, paths), short_names(paths), strict=True))
    return [
        [column, name]
        for column, name in names.items()
        if column == "cluster" or len({row[column] for row in rows}) > 1
    ]


def _reasons(rows: Rows, settings: Sequence[str]) -> Iterator[Json]:
    """The rows of the sizes that have no layout at any batch."""
    fitting = {(*machine_of(dict(row), settings), row["gpus"]) for row in rows if fits(dict(row))}
    for row in rows:
        if (*machine_of(dict(row), settings), row["gpus"]) not in fitting:
            yield {name: row[name] for name in ("model", "cluster", *settings, "gpus", "global_batch", "reason")}


def _answers(told: Mapping[str, Any], name: str, settings: Sequence[str]) -> list[Json]:
    """The stored answers with their machines by column, what-ifs as they were typed."""
    columns = ("model", "cluster", *settings)
    found = [dict(zip(columns, it["machine"], strict=True)) | it for it in told["answers"][name]]
    return _as_typed(found, told["inputs"]["set"])


def _as_typed(rows: Rows, settings: Sequence[tuple[str, Sequence[str]]]) -> list[Json]:
    """The rows with what-ifs as they were typed: 25GB/s, not 25000000000."""
    typed = {column_of(path): {value_of(text): text for text in values} for path, values in settings}
    return [dict(row) | {name: texts.get(row[name], row[name]) for name, texts in typed.items()} for row in rows]


def _table(rows: Rows, columns: Mapping[str, Mapping[str, str]]) -> Json:
    """The rows by column, numbers to five digits; a column of one value is kept once."""
    found: Json = {name: [_short(row[name]) for row in rows] for name in columns}
    constant = {name: values[0] for name, values in found.items() if values and all(it == values[0] for it in values)}
    terms = {
        kind: [name for name in columns if name.startswith(f"{kind}_") and name not in _TOTALS]
        for kind in ("time", "memory")
    }
    return {
        "count": len(rows),
        "columns": columns,
        "constant": constant,
        "rows": {name: values for name, values in found.items() if name not in constant},
        "terms": terms,
    }


_TOTALS = ("memory_headroom", "memory_low", "memory_high")


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _knee(knee: Mapping[str, Any], naming: Sequence[Sequence[str]]) -> str:
    where = ", ".join(f"{name}={knee[column]}" if name else str(knee[column]) for column, name in naming)
    gain = f"{knee['gain']:.0%}"
    more = f"the next size gains {gain}" if knee["met"] else f"none met; the last step still gains {gain}"
    return f"{where}: {knee['gpus']:,} GPUs, {more}"
