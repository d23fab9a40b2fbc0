"""The figures behind a page with value, tag and source, as their files have them now; what the user set instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from costmodel.model import load_model
from costmodel.profile import load_profile
from hardware import units
from hardware.catalog import load_cluster, load_gpu
from hardware.cluster import Cluster
from hardware.errors import InputError
from hardware.gpu import Gpu
from hardware.provenance import Provenance
from search.defaults import said
from search.files import beside
from search.version import VERSION

Json = dict[str, Any]
Set = Mapping[str, tuple[str, str]]
"""By key path: the values that the user set instead, and by which option."""

FOLLOW = {"gpu.memory": ("gpu.usable_memory",), "gpus_per_node": ("node_power",), "gpu": ("node_power", "price")}
"""Figures that change with another one that is set (hardware.changes)."""
UNSET = "unknown"
GONE = "cannot be read any more"


def inputs(told: Mapping[str, Any]) -> Json:
    """What was asked for, and by which versions."""
    given = dict(told["inputs"]) | dict(told.get("workload", {}))
    if settings := given.pop("settings", None):
        given["defaults"] = " ".join(" ".join(said(settings)).split()).removeprefix("defaults: ")
    rows = [[name.replace("_", " "), _text(value)] for name, value in given.items() if value not in (None, [], {})]
    rows += [[f"version of {name}", text] for name, text in told["versions"].items()]
    return {"name": "Inputs", "rows": [*rows, ["version that made this page", VERSION]]}


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(part)}" for name, part in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def replaced(given: Mapping[str, Any]) -> list[str]:
    """What the user set instead of the files' figures: "cluster.pue=1.1", "price of dgx-h100 $2.10"."""
    prices = [f"price of {cluster} {_price(price)}" for cluster, price in given.get("price") or []]
    return [*(f"{path}={', '.join(values)}" for path, values in given.get("set") or []), *prices]


def sources(models: Sequence[str], clusters: Sequence[str], given: Mapping[str, Any], file: str) -> Iterator[Json]:
    """Figures of the models, clusters, GPUs and the profile that `file` was made of: name, value, tag and source."""
    loaded = {name: found for name in clusters if (found := _read(load_cluster, file, name))}
    sets = {name: _set_on(cluster, name, given) for name, cluster in loaded.items()}
    if loaded:
        yield {
            "name": "Price and power",
            "heads": ["cluster", "price per GPU-hour", "node power", "GPUs a node", "PUE", "set by the user"],
            "rows": [_paid(name, cluster, sets[name]) for name, cluster in loaded.items()],
        }
    for name in models:
        model = _read(load_model, file, name, given.get("family"))
        yield {"name": f"Model {name}", "rows": [["architecture", "", "", model.source if model else GONE]]}
    for name in clusters:
        if name not in loaded:
            yield {"name": f"Cluster {name}", "rows": [["file", "", "", GONE]]}
            continue
        cluster, instead = loaded[name], sets[name]
        yield {"name": f"Cluster {name}", "rows": list(_facts(cluster, instead))}
        own = {path.removeprefix("gpu."): it for path, it in instead.items() if path.startswith("gpu.")}
        yield {"name": f"GPU {cluster.gpu.name} of {name}", "rows": list(_facts(cluster.gpu, own))}
        for other in filter(None, (_read(load_gpu, file, text) for text in _values_of("cluster.gpu", given))):
            yield {"name": f"GPU {other.name}, set with --set", "rows": list(_facts(other, {}))}
        profile = _read(load_profile, file, given["profile"])
        if profile:
            rows = list(_facts(profile.on(cluster.gpu), {}))
            yield {"name": f"Profile {profile.name} on {cluster.gpu.name}", "rows": rows}


def _read(load: Callable[..., Any], file: str, name: str, *more: Any) -> Any:
    try:
        return load(beside(name, file), *more)
    except InputError:
        return None


def _values_of(path: str, given: Mapping[str, Any]) -> Sequence[str]:
    return next((values for other, values in given.get("set") or [] if other == path), ())


def _paid(name: str, cluster: Cluster, instead: Set) -> list[str]:
    shown = [
        instead[path][0] if path in instead else _shown(path, getattr(cluster, path))
        for path in ("price", "node_power", "gpus_per_node", "pue")
    ]
    return [name, *shown, ", ".join(f"{path} ({how})" for path, (_, how) in instead.items())]


def _set_on(cluster: Cluster, name: str, given: Mapping[str, Any]) -> Set:
    """What was set on a cluster, a level by its name; usable memory follows the memory."""
    prices = dict(given.get("price") or [])
    instead = {"price": (_price(prices[name]), "--price")} if name in prices else {}
    for path, values in given.get("set") or []:
        parts = path.removeprefix("cluster.").split(".")
        if parts[0] == "levels" and parts[1].isdigit() and int(parts[1]) < len(cluster.levels):
            parts[1] = cluster.levels[int(parts[1])].name
        instead[".".join(parts)] = (", ".join(values), "--set")
    for path, others in FOLLOW.items():
        for other in others if path in instead else ():
            instead.setdefault(other, (f"follows {path}", instead[path][1]))
    return instead


def _facts(thing: Any, instead: Set) -> Iterator[list[str]]:
    """Name, value, tag and source of each figure: first what the user set, then single figures, then curves."""
    told: Mapping[str, Provenance] = thing.provenance
    for path, (text, how) in instead.items():
        if not path.startswith("gpu."):
            before = _shown(path, _value(thing, path))
            source = told[path].source if path in told else "no source"
            yield [path, text, "set", f"{how}; the file has {before or UNSET}: {source}"]
    rows = [
        [path, _shown(path, _value(thing, path), _unit(thing, path)), fact.tag, fact.source]
        for path, fact in told.items()
        if path not in instead
    ]
    yield from sorted(rows, key=lambda row: (not row[1], row[1].startswith("at most")))


def _value(thing: Any, path: str) -> Any:
    """What a key path leads to; None if the object keeps it under another name."""
    for part in path.split("."):
        if isinstance(thing, Mapping):
            thing = thing.get(part)
        elif isinstance(thing, tuple):
            thing = next((it for it in thing if getattr(it, "name", None) == part), None)
        else:
            thing = getattr(thing, {"busbw": "efficiency"}.get(part, part), None)
    return thing


def _unit(thing: Any, path: str) -> str:
    """The unit that a rate of a profile declares."""
    above, _, last = path.rpartition(".")
    owner = _value(thing, above) if above else None
    declared = {it.name: it.metadata.get("unit", "") for it in fields(owner)} if is_dataclass(owner) else {}
    unit = str(declared.get(last, ""))
    return "" if unit == "1" else unit


def _price(value: float) -> str:
    return f"${value:.2f}"


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "bandwidth": units.format_bandwidth, "memory_bandwidth": units.format_bandwidth, "latency": units.format_seconds,
    "memory": units.format_decimal_bytes, "usable_memory": units.format_bytes, "power": units.format_power,
    "node_power": units.format_power, "price": _price,
}  # fmt: skip


def _shown(path: str, value: Any, unit: str = "") -> str:
    """A figure as text with its unit; of a table of efficiencies the best; nothing for what is no figure."""
    above, _, last = path.rpartition(".")
    if value is None:
        return UNSET if last == "price" else ""
    if last in ("busbw", "eta"):
        return f"at most {max(map(max, value)):.3g} of {'the link' if last == 'busbw' else 'peak'}"
    if isinstance(value, bool | str | Gpu):
        return value.name if isinstance(value, Gpu) else str(value)
    if not isinstance(value, int | float):
        whole = isinstance(value, tuple) and all(isinstance(it, int) for it in value)
        return ", ".join(map(str, value)) if whole else ""
    if last == "size":
        return f"{value} GPUs" if value else "no limit"
    if isinstance(value, int):
        return f"{value:,}"
    if above == "peak":
        return units.format_flops(value)
    if last in _FORMATS and not above.startswith("time"):
        return _FORMATS[last](value)
    return f"{value:.5g} {unit}".strip()


def short_names(paths: Sequence[str]) -> list[str]:
    """What-ifs as a reader meets them: the last two parts of the path, or all of it where two are alike then."""
    short = [".".join(path.split(".")[-2:]) for path in paths]
    return [name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)]
