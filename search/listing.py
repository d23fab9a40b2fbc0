"""What is shipped, with the source of every number; imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from costmodel import params
from costmodel.model import Model, load_model, model_names
from costmodel.profile import Profile, load_profile, profile_names
from hardware.listing import Entry, Figure, describe_clusters, describe_gpus
from hardware.reader import Provenance, Table
from hardware.units import format_count

SPACES = Path(__file__).parent / "spaces"


def print_list(kind: str, *, as_json: bool) -> None:
    """Print the entries of one kind (models, clusters, gpus, profiles, spaces) to stdout."""
    entries = DESCRIBE[kind]()
    if as_json:
        print(json.dumps([_record(entry) for entry in entries], indent=2))
        return
    for entry in entries:
        print("\n".join(_lines(entry)))


def _record(entry: Entry) -> dict[str, object]:
    figures = [{"label": figure.label, "text": figure.text, **figure.provenance._asdict()} for figure in entry.figures]
    return {"name": entry.name, "summary": entry.summary, "figures": figures}


def _lines(entry: Entry) -> Iterator[str]:
    yield f"{entry.name}: {entry.summary}"
    for figure in entry.figures:
        source = f"[{figure.provenance.tag}] {figure.provenance.source}"
        yield f"    {figure.label:<34} {figure.text:<22} {source}"


def _describe_models() -> tuple[Entry, ...]:
    return tuple(_model_entry(load_model(name)) for name in model_names())


def _model_entry(model: Model) -> Entry:
    def figure(label: str, value: object, tag: str = "spec") -> Figure:
        return Figure(label=label, text=f"{value}", provenance=Provenance(tag, model.source))  # type: ignore[arg-type]

    total, active = params.total(model), params.active(model)
    summary = f"{format_count(total)} parameters"
    figures = [figure("parameters", f"{total}")]
    if model.is_moe:
        summary += f", {format_count(active)} active"
        figures.append(figure("active parameters", f"{active}"))
        figures.append(figure("experts", f"{model.experts_per_token} of {model.experts}"))
        figures.append(figure("expert width", model.expert_ffn_hidden))
    figures += [
        figure("layers", model.layers),
        figure("hidden size", model.hidden),
        figure("heads, KV heads", f"{model.heads}, {model.kv_heads} ({model.attention})"),
        figure("vocabulary", model.vocab),
        figure("sequence length", model.seq_len),
    ]
    return Entry(name=model.name, summary=summary, figures=tuple(figures))


def _describe_profiles() -> tuple[Entry, ...]:
    return tuple(_profile_entry(load_profile(name)) for name in profile_names())


def _profile_entry(profile: Profile) -> Entry:
    launch = Provenance("spec", profile.source)
    can = {
        "ZeRO stages": _joined(profile.zero_stages),
        "ZeRO stages with PP": _joined(profile.zero_stages_with_pp),
        "schedules": _joined(profile.schedules),
        "recompute": _joined(choice.name for choice in profile.recompute),
        "gradients, moments": f"{profile.grad_dtype}, {profile.moments_dtype}",
    }
    figures = [Figure(label=label, text=text, provenance=launch) for label, text in can.items()]
    for group in ("time", "memory"):
        for name, value in asdict(getattr(profile, group)).items():
            source = profile.provenance.get(f"{group}.{name}", launch)
            figures.append(Figure(label=f"{group}.{name}", text=f"{value:g}", provenance=source))
    return Entry(name=profile.name, summary=profile.summary, figures=tuple(figures))


def _joined(values: object) -> str:
    return ", ".join(str(value) for value in values)  # type: ignore[attr-defined]


def _describe_spaces() -> tuple[Entry, ...]:
    return tuple(_space_entry(Table.load(path)) for path in sorted(SPACES.glob("*.toml")))


def _space_entry(table: Table) -> Entry:
    figures = [*_space_figures(table.table("axes"), ""), *_space_figures(table.table("at_most"), " at most")]
    return Entry(name=table.file.stem, summary=table.text("summary"), figures=tuple(figures))


def _space_figures(table: Table, suffix: str) -> Iterator[Figure]:
    axes = table.keys()
    for axis in axes:
        value = table.raw(axis)
        text = _joined(value) if isinstance(value, list) else str(value)
        source = Provenance("assumed", f"spaces/{table.file.name}")
        yield Figure(label=f"{axis}{suffix}", text=text, provenance=source)


DESCRIBE: dict[str, Callable[[], tuple[Entry, ...]]] = {
    "models": _describe_models,
    "clusters": describe_clusters,
    "gpus": describe_gpus,
    "profiles": _describe_profiles,
    "spaces": _describe_spaces,
}
