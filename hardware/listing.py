"""What `meshscout list gpus` and `list clusters` print: names, summaries, key numbers and their sources."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from hardware import units
from hardware.catalog import cluster_names, gpu_names, load_cluster, load_gpu
from hardware.cluster import Cluster
from hardware.gpu import Gpu
from hardware.reader import Provenance


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


def describe_gpus() -> tuple[Entry, ...]:
    """What `meshscout list gpus` prints."""
    return tuple(_entry(load_gpu(name), _gpu_numbers) for name in gpu_names())


def describe_clusters() -> tuple[Entry, ...]:
    """What `meshscout list clusters` prints."""
    return tuple(_entry(load_cluster(name), _cluster_numbers) for name in cluster_names())


def _entry(machine: _Machine, numbers: Callable[[_Machine], Iterator[tuple[str, str, str]]]) -> Entry:
    figures = tuple(
        Figure(label=label, text=text, provenance=machine.provenance.get(key, _UNKNOWN))
        for key, label, text in numbers(machine)
    )
    return Entry(name=machine.name, summary=machine.summary, figures=figures)


def _gpu_numbers(gpu: Gpu) -> Iterator[tuple[str, str, str]]:
    yield "memory", "memory", f"{gpu.memory / 1e9:g} GB"
    yield "usable_memory", "usable memory", units.format_bytes(gpu.usable_memory)
    yield "memory_bandwidth", "memory bandwidth", units.format_bandwidth(gpu.memory_bandwidth)
    for precision, value in gpu.peak.items():
        key = "peak.bf16" if precision == "fp16" else f"peak.{precision}"
        yield key, f"{precision} peak, dense", units.format_flops(value)
    for kind, table in gpu.gemm.items():
        yield f"gemm.{kind}.eta", f"{kind} GEMM, best fraction of peak", f"{max(map(max, table.eta)):.2f}"
    yield "power", "board power", units.format_power(gpu.power)


def _cluster_numbers(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    yield "gpus_per_node", "GPUs a node", f"{cluster.gpus_per_node}"
    for level in cluster.levels:
        size = f"{level.size} GPUs" if level.size else "no limit"
        key = f"levels.{level.name}"
        yield f"{key}.size", f"{level.name} joins", size
        text = units.format_bandwidth(level.effective_bandwidth)
        yield f"{key}.bandwidth", f"{level.name} per GPU and direction", text
    yield "node_power", "node power", units.format_power(cluster.node_power)
    if cluster.price is not None:
        yield "price", "price per GPU-hour", f"${cluster.price:.2f}"
