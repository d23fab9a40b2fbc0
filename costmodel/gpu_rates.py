"""Rates by GPU and architecture: read from the tables of a profile's file, over those of its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TypeVar

from costmodel.rates import Interval, MemoryRates, TimeRates
from hardware.catalog import gpu_names, load_gpu
from hardware.physical import check
from hardware.provenance import Provenance
from hardware.reader import Table

R = TypeVar("R", "TimeRates", "MemoryRates", "Interval")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRates:
    """The rates on a GPU, or on an architecture's GPUs, and the provenance of those that are not the profile's own."""

    time: TimeRates
    memory: MemoryRates
    fitted_on: tuple[str, ...] = ()
    """GPUs whose runs an architecture's rates were fitted to"""
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    def on(self, key: str, gpu: str) -> GpuRates:
        """These rates, which `key` has, for this GPU: inherited unless they were found on it."""
        if gpu in (key, *self.fitted_on):
            return self
        return replace(self, provenance=inherited_from(self.provenance, key))


ByGpu = Mapping[str, GpuRates]
"""Rates by the name of a GPU or of an architecture."""


def inherited_from(found: Mapping[str, Provenance], whence: str) -> dict[str, Provenance]:
    """The provenance of numbers that another thing than `whence` takes."""
    return {name: it.inherited(whence) for name, it in found.items()}


def times_of(by_gpu: ByGpu, base: str, memory: MemoryRates) -> ByGpu:
    """By GPU, the rates of time of another framework, the profile `base`, over a profile's own memory."""
    times = {
        key: {name: it for name, it in rates.provenance.items() if name.startswith("time.")}
        for key, rates in by_gpu.items()
    }
    return {
        key: GpuRates(
            time=rates.time,
            memory=memory,
            fitted_on=rates.fitted_on,
            provenance=inherited_from(times[key], f"profile {base}"),
        )
        for key, rates in by_gpu.items()
    }


def read_by_gpu(table: Table, own: GpuRates, inherited: ByGpu) -> ByGpu:
    """Rates of the GPUs (or architectures) that a file has tables for, over those that a user's base has for them.

    A GPU starts from the file's table of its architecture; what all leave out is the profile's `own`. A table of an
    architecture stands for all of its GPUs.
    """
    found: dict[str, GpuRates] = {}
    if gpus := table.optional_table("gpu"):
        for gpu in sorted(gpus.keys(), key=architecture_of):
            of, its = architecture_of(gpu), gpus.table(gpu)
            start = found[of].on(of, gpu) if of in found else inherited.get(gpu) or inherited.get(of) or own
            found[gpu] = GpuRates(
                fitted_on=its.texts("fitted_on", ()),
                time=read_rates(its.optional_table("time"), TimeRates, start.time, its),
                memory=read_rates(its.optional_table("memory"), MemoryRates, start.memory, its),
                provenance={**start.provenance, **its.sources},
            )
    return {gpu: rates for gpu, rates in inherited.items() if architecture_of(gpu) not in found} | found


@cache
def architecture_of(gpu: str) -> str:
    """The architecture of a shipped GPU, empty for other names."""
    return load_gpu(gpu).architecture if gpu in gpu_names() else ""


def rates_under(table: Table, said: Mapping[str, Provenance], by_gpu: ByGpu, base: str) -> ByGpu:
    """The rates by GPU of a user's base, the profile `base`, under what the user's file itself says of them."""
    time, memory = table.optional_table("time"), table.optional_table("memory")
    return {
        gpu: replace(
            rates,
            time=read_rates(time, TimeRates, rates.time, table),
            memory=read_rates(memory, MemoryRates, rates.memory, table),
            provenance={**inherited_from(rates.provenance, f"profile {base}"), **said},
        )
        for gpu, rates in by_gpu.items()
    }


def read_rates(table: Table | None, kind: type[R], base: R | None, outer: Table) -> R:
    """Rates by name; `base` gives those that the table leaves out."""
    if table is None:
        if base is None:
            raise outer.error(_TABLES[kind], "is missing")
        return base
    values = {}
    for rate in fields(kind):
        unit = rate.metadata["unit"]
        least, most = rate.metadata["within"]
        top = None if rate.name in _AMOUNTS else most
        value = table.number(rate.name, getattr(base, rate.name, None), minimum=least, maximum=top, unit=unit)
        if value and rate.name in _AMOUNTS and table.has(rate.name):
            check(table, rate.name, unit, (value,))
        values[rate.name] = value
    return kind(**values)


_TABLES: dict[type, str] = {TimeRates: "time", MemoryRates: "memory", Interval: "interval"}
_AMOUNTS = (
    "kernel", "layer_floor", "tp_floor", "tp_floor_network", "ring_step", "send", "shard_layer", "overhead",
    "gather_buffer", "dispatch_buffer",
)  # fmt: skip
"""Rates that are whole times and amounts of memory, not bytes per element: a number without its unit is noticed."""
