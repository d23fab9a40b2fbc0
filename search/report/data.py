"""A stored frontier or sweep -> what the page draws, as JSON: columns, terms, the account, assumptions and sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.model import load_model
from costmodel.profile import load_profile
from hardware.catalog import load_cluster
from hardware.errors import InputError
from hardware.reader import Provenance
from hardware.units import format_count
from search.account import DEMANDS
from search.frontier import Stored
from search.sweep import answers
from search.sweep.rows import column_of, fits, settings_of, value_of

DIGITS = 5
MOST_SOURCES = 400
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
    work, space = told["workload"], told["space"]
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
        "sources": [_inputs(told), *_sources([told["inputs"]["model"]], [told["inputs"]["cluster"]], told["inputs"])],
    }
    title = f"{names['model']} on {work['gpus']:,} GPUs of {names['cluster']}"
    return Page(title, f"{work['precision']}, {batch}, profile {names['profile']}", data)


def sweep_page(stored: Stored) -> Page:
    """The page of a sweep: the best layout of every machine and size, and the reasons where there is none."""
    told = stored.provenance
    given = told["inputs"]
    rows = _as_typed(stored.rows, given["set"])
    good = [row for row in rows if fits(row)]
    best = [row for row in answers.best(rows, given["objective"]) if fits(row)]
    kept = [row for row in good if row["pareto"] or any(row is it for it in best)]
    settings = settings_of(rows)
    reasons = [
        {name: row[name] for name in ("model", "cluster", *settings, "gpus", "reason")} for row in rows if not fits(row)
    ]
    data = _table(kept, stored.columns) | {
        "kind": "sweep",
        "settings": settings,
        "best": [next(i for i, row in enumerate(kept) if row is it) for it in best],
        "reasons": reasons,
        "knees": list(_knees(told["answers"]["knees"])),
        "account": None,
        "sources": [_inputs(told), *_sources(given["model"], given["cluster"], given)],
    }
    models, clusters = ", ".join(given["model"]), ", ".join(given["cluster"])
    tokens = format_count(given["tokens"]).strip()
    return Page(f"{models} on {clusters}", f"{tokens} tokens, {given['precision']}, profile {given['profile']}", data)


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


def _knees(knees: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for knee in knees:
        where = ", ".join(map(str, knee["machine"]))
        gain = f"{knee['gain']:.0%}"
        more = f"the next size gains {gain}" if knee["met"] else f"none met; the last step still gains {gain}"
        yield f"{where}: {knee['gpus']:,} GPUs, {more}"


def _inputs(told: Mapping[str, Any]) -> Json:
    """What was asked for, and by which versions."""
    given = dict(told["inputs"]) | dict(told.get("workload", {}))
    rows = [[name.replace("_", " "), _text(value), ""] for name, value in given.items() if value not in (None, [], {})]
    rows += [[f"version of {name}", text, ""] for name, text in told["versions"].items()]
    return {"name": "Inputs", "rows": rows}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(part)}" for name, part in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _sources(models: Sequence[str], clusters: Sequence[str], given: Mapping[str, Any]) -> Iterator[Json]:
    """Figures of the clusters, GPUs and the profile with tag and source, as far as their files are still there."""
    for name in models:
        try:
            model = load_model(name, given.get("family"))
        except InputError:
            continue
        yield {"name": f"Model {name}", "rows": [["architecture", model.source, ""]]}
    for name in clusters:
        try:
            cluster = load_cluster(name)
            profile = load_profile(given["profile"]).on(cluster.gpu)
        except InputError:
            continue
        yield {"name": f"Cluster {name}", "rows": list(_facts(cluster.provenance))}
        yield {"name": f"GPU {cluster.gpu.name}", "rows": list(_facts(cluster.gpu.provenance))}
        yield {"name": f"Profile {profile.name} on {cluster.gpu.name}", "rows": list(_facts(profile.provenance))}


def _facts(provenance: Mapping[str, Provenance]) -> Iterator[list[str]]:
    for name, fact in list(provenance.items())[:MOST_SOURCES]:
        yield [name, fact.tag, fact.source]
