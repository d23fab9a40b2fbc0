"""A GPU's TOML table -> Gpu; GEMM tables that were not measured come from a relative."""

import os
from collections.abc import Mapping

from hardware.gpu import GEMM_KINDS, PRECISIONS, GemmTable, Gpu
from hardware.physical import optional_physical, physical
from hardware.provenance import Provenance
from hardware.reader import Table
from hardware.shipped import find, in_file

# For a user's file that leaves these out.
_DEFAULT_GEMM = "H100-SXM"
_DEFAULT_MEMORY_EFFICIENCY = 0.80
_DEFAULT_USABLE_SHARE = 0.98


def load(path: str | os.PathLike[str]) -> Gpu:
    """The GPU of a TOML file; InputError, one line, if the file is wrong."""
    table = Table.load(path)
    gpu = read(table)
    table.finish()
    return gpu


def read(table: Table) -> Gpu:
    """The GPU of a table, which may be a part of a cluster's file; the caller checks for unknown keys."""
    name = table.text("name", default=table.file.stem)
    summary = table.text("summary", default=name)
    architecture = table.optional_text("architecture") or ""
    memory = physical(table, "memory", "B")
    usable = physical(table, "usable_memory", "B", memory * _DEFAULT_USABLE_SHARE)
    bandwidth = physical(table, "memory_bandwidth", "B/s")
    efficiency = table.number("memory_efficiency", default=_DEFAULT_MEMORY_EFFICIENCY, above=0, maximum=1, unit="1")
    power = physical(table, "power", "W")
    peak = _read_peak(table.table("peak"))
    gemm, inherited = _read_gemm(table, peak)
    defaults = {
        "usable_memory": Provenance("assumed", f"{_DEFAULT_USABLE_SHARE:g} of memory"),
        "memory_efficiency": Provenance("assumed", "default of aiconfigurator"),
        "peak.fp16": table.sources["peak.bf16"],
    }
    with in_file(table):
        return Gpu(
            name=name, summary=summary, architecture=architecture, memory=memory, usable_memory=usable,
            memory_bandwidth=bandwidth, peak=peak, gemm=gemm, memory_efficiency=efficiency, power=power,
            provenance=defaults | inherited | table.sources,
        )  # fmt: skip


def _read_peak(table: Table) -> dict[str, float]:
    peak = {"bf16": physical(table, "bf16", "FLOP/s")}
    peak["fp16"] = physical(table, "fp16", "FLOP/s", peak["bf16"])
    for precision in PRECISIONS[2:]:
        value = optional_physical(table, precision, "FLOP/s")
        if value is not None:
            peak[precision] = value
    return peak


def _read_gemm(gpu: Table, peak: Mapping[str, float]) -> tuple[dict[str, GemmTable], dict[str, Provenance]]:
    """The GEMM tables that the file holds; missing ones from the GPU named by `gemm.like`, scaled."""
    kinds = [kind for kind in GEMM_KINDS if kind == "bf16" or "fp8" in peak or "mxfp8" in peak]
    table = gpu.optional_table("gemm") or Table({}, gpu.file, "gemm")
    tables = {kind: _read_gemm_table(table.table(kind)) for kind in kinds if table.has(kind)}
    missing = [kind for kind in kinds if kind not in tables]
    scales = table.optional_table("scale") or Table({}, gpu.file, "gemm.scale")
    factors = {kind: scales.number(kind, default=1.0, above=0, unit="1") for kind in kinds}
    like = table.text("like", default=_DEFAULT_GEMM)
    if not missing:
        return tables, {}
    other = load(find("gpus", "GPU", like, gpu.file.parent, shipped=(table, "like")))
    provenance = {}
    for kind in missing:
        source = other.gemm.get(kind)
        if source is None:
            raise table.error(kind, f"is missing, and {other.name} has none to inherit")
        tables[kind] = source.scaled(factors[kind])
        provenance[f"gemm.{kind}.eta"] = Provenance(
            "inherited" if gpu.has("gemm") else "assumed", f"{other.name}'s table times {factors[kind]:.4g}"
        )
    return tables, provenance


def _read_gemm_table(table: Table) -> GemmTable:
    m, n = table.numbers("m", above=0, unit="1"), table.numbers("n", above=0, unit="1")
    eta = table.rows("eta", above=0, maximum=1, unit="1")
    with in_file(table):
        return GemmTable(m=m, n=n, eta=eta)
