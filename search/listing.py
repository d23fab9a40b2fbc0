"""What is shipped, with the source of every number; imports nothing heavier than it lists."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import costmodel
from costmodel.model import Model, load_model, model_names
from hardware.errors import InputError
from hardware.listing import Entry, Figure, describe_clusters, describe_gpus
from hardware.provenance import Provenance
from hardware.reader import Table
from hardware.spelling import did_you_mean
from search.terminal import put

PROFILES = Path(costmodel.__file__).parent / "profiles"
DITTO = '"'
WIDTH = 120
SPACES = Path(__file__).parent / "spaces"


def print_list(kind: str, *names: str, as_json: bool) -> None:
    """Print the entries of one kind (models, clusters, gpus, profiles, spaces), all or those named, to stdout.

    Raises InputError for a name that is not shipped and no file.
    """
    entries = DESCRIBE[kind](*names)
    if as_json:
        put(json.dumps([_record(entry) for entry in entries], indent=2))
    else:
        put("\n".join(line for entry in entries for line in _lines(entry)))


def _record(entry: Entry) -> dict[str, object]:
    figures = [{"label": figure.label, "text": figure.text, **figure.provenance._asdict()} for figure in entry.figures]
    return {"name": entry.name, "summary": entry.summary, "figures": figures}


def _lines(entry: Entry) -> Iterator[str]:
    """The entry's figures as aligned lines, wrapped; a source like that of the line above is a ditto mark."""
    yield from _wrapped(f"{entry.name}: {entry.summary}", 4)
    width = max((len(figure.text) for figure in entry.figures), default=0)
    label = max([30, *(len(figure.label) for figure in entry.figures)])
    above = ""
    for figure in entry.figures:
        source = f"[{figure.provenance.tag}] {figure.provenance.source}"
        start = f"    {figure.label:<{label}} {figure.text:<{min(width, 30)}} "
        yield from _wrapped(
            start + (DITTO if source == above else source), len(start) if len(start) < 80 else label + 5
        )
        above = source


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _describe_models(*names: str) -> tuple[Entry, ...]:
    return tuple(_model_entry(load_model(name)) for name in names or model_names())


def _model_entry(model: Model) -> Entry:
    from costmodel import params

    def figure(label: str, value: object, tag: str = "spec") -> Figure:
        return Figure(label=label, text=f"{value}", provenance=Provenance(tag, model.source))  # type: ignore[arg-type]

    total, active = params.total(model), params.active(model)
    summary = f"{total / 1e9:.1f} billion parameters"
    figures = [figure("parameters", f"{total}")]
    if model.is_moe:
        summary += f", {active / 1e9:.1f} active"
        figures.append(figure("active parameters", f"{active}"))
        figures.append(figure("experts", f"{model.experts_per_token} of {model.experts}"))
        figures.append(figure("expert width", model.expert_ffn_hidden))
    if model.mtp_layers:
        summary += f", {params.mtp(model) / 1e9:.1f} more for multi-token prediction"
        figures.append(figure("MTP modules", f"{model.mtp_layers}, {params.mtp(model)} parameters, counted"))
    figures += [
        figure("layers", model.layers),
        figure("hidden size", model.hidden),
        figure("heads, KV heads", f"{model.heads}, {model.kv_heads} ({model.attention})"),
        figure("vocabulary", model.vocab),
        figure("sequence length", model.seq_len),
    ]
    return Entry(name=model.name, summary=summary, figures=tuple(figures))


def _describe_profiles(*names: str) -> tuple[Entry, ...]:
    return tuple(_profile_entry(path) for path in _files(PROFILES, "profile", names))


def _profile_entry(path: Path) -> Entry:
    """A profile and, if it is shipped, the rates fitted for it, by GPU or architecture."""
    entry, rates = _file_entry(path), PROFILES / "fitted" / path.name
    if path.parent != PROFILES or not rates.is_file():
        return entry
    found = [figure for figure in _file_figures(Table.load(rates)) if figure.label.startswith("gpu.")]
    return replace(entry, figures=(*entry.figures, *found))


def _describe_spaces(*names: str) -> tuple[Entry, ...]:
    return tuple(map(_file_entry, _files(SPACES, "space", names)))


def _files(folder: Path, what: str, names: tuple[str, ...]) -> Iterator[Path]:
    """The files shipped in a folder: all, or those of some names, which may be paths of TOML files instead."""
    shipped = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    for name in names or shipped:
        if name not in shipped and not name.endswith(".toml"):
            raise InputError(f"unknown {what} {name!r}{did_you_mean(name, shipped) or ';'} known: {', '.join(shipped)}")
        yield shipped.get(name, Path(name))


def _file_entry(path: Path) -> Entry:
    """What a TOML file says, as it says it; a profile's `base` is the profile that gives the rest."""
    table = Table.load(path)
    summary = table.text("summary", f"{path}, its own numbers alone")
    return Entry(name=path.stem, summary=summary, figures=tuple(_file_figures(table)))


def _file_figures(table: Table) -> Iterator[Figure]:
    names = table.keys()
    for name in names:
        value = table.raw(name)
        if name in ("summary", "fitted_on"):
            continue
        if isinstance(value, dict) and "value" not in value:
            yield from _file_figures(table.table(name))
            continue
        provenance = table.provenance
        if isinstance(value, dict):
            provenance = Provenance(value.get("tag", "spec"), value.get("source", provenance.source))
            value = value["value"]
        yield Figure(label=f"{table.path}.{name}".lstrip("."), text=_text(value), provenance=provenance)


def _text(value: object) -> str:
    """A list by its members, and a recompute set by its name and modules."""
    if isinstance(value, list):
        return ", ".join(_text(part) for part in value)
    if isinstance(value, dict):
        return f"{value['name']} ({'+'.join(value['modules'])})" if "modules" in value else str(value["name"])
    return str(value)


DESCRIBE: dict[str, Callable[..., tuple[Entry, ...]]] = {
    "models": _describe_models,
    "clusters": describe_clusters,
    "gpus": describe_gpus,
    "profiles": _describe_profiles,
    "spaces": _describe_spaces,
}
