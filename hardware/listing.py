"""What `meshscout list gpus` and `list clusters` print: names, summaries, key numbers and their sources."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from hardware import units
from hardware.catalog import cluster_for, cluster_names, gpu_names, load_cluster, load_gpu
from hardware.cluster import Cluster, Curve, Level
from hardware.gpu import Gpu
from hardware.provenance import Provenance
from hardware.shipped import gpu_aliases


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a listing: its label, its text with unit, and where it comes from."""

    label: str
    text: str
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of `meshscout list`: name, one-line summary, key numbers."""

    name: str
    summary: str
    figures: tuple[Figure, ...]


_Machine = TypeVar("_Machine", Gpu, Cluster)
_UNKNOWN = Provenance("assumed", "no source given")
_BY_NAME = Provenance("assumed", "data/aliases.toml, for tables that name the GPU only")


def describe_gpus(*names: str) -> tuple[Entry, ...]:
    """What `meshscout list gpus` prints of these names or files, or of all that are shipped.

    The last lines tell a shipped GPU's other names and the cluster taken for it.
    """
    aliases = gpu_aliases()
    gpus = [load_gpu(name) for name in names or gpu_names()]
    return tuple(
        _gpu_entry(gpu, aliases[gpu.name]) if gpu.name in aliases else _entry(gpu, _gpu_numbers) for gpu in gpus
    )


def describe_clusters(*names: str) -> tuple[Entry, ...]:
    """What `meshscout list clusters` prints of these names or files, or of all that are shipped."""
    return tuple(_entry(load_cluster(name), _cluster_numbers) for name in names or cluster_names())


def _gpu_entry(gpu: Gpu, aliases: tuple[str, ...]) -> Entry:
    entry = _entry(gpu, _gpu_numbers)
    names = Figure(label="cluster, if not given", text=cluster_for(gpu.name), provenance=_BY_NAME)
    others = tuple(Figure(label="also called", text=", ".join(aliases), provenance=_BY_NAME) for _ in aliases[:1])
    return replace(entry, figures=(*entry.figures, names, *others))


def _entry(machine: _Machine, numbers: Callable[[_Machine], Iterator[tuple[str, str, str]]]) -> Entry:
    figures = tuple(
        Figure(label=label, text=text, provenance=machine.provenance.get(key, _UNKNOWN))
        for key, label, text in numbers(machine)
    )
    return Entry(name=machine.name, summary=machine.summary, figures=figures)


def _gpu_numbers(gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    yield "memory", "memory", f"{gpu.memory / 1e9:g} GiB, sold as {gpu.memory / 1e9:g} GB"
    yield "usable_memory", "usable memory", units.format_bytes(gpu.usable_memory)
    yield "memory_bandwidth", "memory bandwidth", units.format_bandwidth(gpu.memory_bandwidth)
    yield "memory_efficiency", "share of it in kernels", f"{gpu.memory_efficiency:.2f}"
    for precision, value in gpu.peak.items():
        key = "peak.bf16" if precision == "fp16" else f"peak.{precision}"
        yield key, f"{precision} peak, dense", units.format_flops(value)
    for kind, table in gpu.gemm.items():
        yield f"gemm.{kind}.eta", f"{kind} GEMM, best fraction of peak", f"{max(map(max, table.eta)):.2f}"
    yield "power", "board power", units.format_power(gpu.power)


def _cluster_numbers(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    yield "gpus_per_node", "GPUs a node", f"{cluster.gpus_per_node}"
    seen: Mapping[str, Curve] = {}
    for level in cluster.levels:
        size = f"{level.size} GPUs" if level.size else "no limit"
        key = f"levels.{level.name}"
        yield f"{key}.size", f"{level.name} joins", size
        text = units.format_bandwidth(level.effective_bandwidth)
        yield f"{key}.bandwidth", f"{level.name} per GPU and direction", text
        if level.curves != seen:
            yield f"{key}.curves.all_reduce.busbw", f"{level.name}, all-reduce reaches", _all_reduce_at_best(level)
        seen = level.curves
    yield "nics_per_gpu", "NICs a GPU", f"{cluster.nics_per_gpu:g}"
    yield "node_power", "node power", units.format_power(cluster.node_power)
    yield "pue", "power of the site over it", f"{cluster.pue:g}"
    if cluster.price is not None:
        yield "price", "price per GPU-hour", f"${cluster.price:.2f}"


def _all_reduce_at_best(level: Level) -> str:
    """Bus bandwidth of the largest message in the largest group of the curve that the level joins."""
    curve = level.curves["all_reduce"]
    fitting = [row for group, row in zip(curve.group, curve.efficiency, strict=True) if not 0 < level.size < group]
    best = (fitting or curve.efficiency)[-1][-1]
    text = units.format_bandwidth(best * level.effective_bandwidth)
    return f"{text} (in-switch reduction)" if best > 1 else text
