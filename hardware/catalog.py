"""Names and TOML files -> Gpu and Cluster; what is shipped is in data/gpus, data/clusters and data/curves."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hardware import units
from hardware.cluster import OPERATIONS, Cluster, Curve, Level
from hardware.errors import InputError
from hardware.gpu import GEMM_KINDS, PRECISIONS, GemmTable, Gpu
from hardware.reader import Provenance, Table, did_you_mean

DATA = Path(__file__).parent / "data"

# For a user's file that leaves these out.
_DEFAULT_GEMM = "H100-SXM"
_DEFAULT_CURVES = ("nvlink4", "network")
_DEFAULT_MEMORY_EFFICIENCY = 0.80
_DEFAULT_USABLE_SHARE = 0.98
_DEFAULT_LATENCY = (3.4e-6, 14e-6)
_DEFAULT_MAX_GPUS = 131072
_DEFAULT_PUE = 1.2
_NODE_POWER_PER_BOARD_POWER = 1.8


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs shipped, sorted."""
    return _names("gpus")


def cluster_names() -> tuple[str, ...]:
    """Names of the clusters shipped, sorted."""
    return _names("clusters")


def load_gpu(name_or_path: str | Path) -> Gpu:
    """A GPU by its shipped name or from a TOML file; InputError, one line, if there is none or it is wrong."""
    table = Table.load(_find("gpus", "GPU", str(name_or_path), None))
    gpu = _read_gpu(table)
    table.finish()
    return gpu


def load_cluster(name_or_path: str | Path) -> Cluster:
    """A cluster by its shipped name or from a TOML file; InputError, one line, if there is none or it is wrong."""
    table = Table.load(_find("clusters", "cluster", str(name_or_path), None))
    if table.has("base"):
        base = Table.load(_find("clusters", "cluster", table.text("base"), None, shipped=(table, "base")))
        table = Table(_merged(base, table), table.file)
        table.has("base")
    return _read_cluster(table)


def _names(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (DATA / kind).glob("*.toml")))


def _find(
    kind: str, what: str, name: str, near: Path | None, *, shipped: tuple[Table, str] | None = None
) -> Path:
    """The file of a shipped name, or of a path, which is relative to the folder `near`."""
    names = _names(kind)
    if name in names:
        return DATA / kind / f"{name}.toml"
    looks_like_path = name.endswith(".toml") or "/" in name or "\\" in name
    path = Path(name) if near is None else near / name
    if shipped is None and (looks_like_path or path.is_file()):
        return path
    message = f"unknown {what} {name!r}{did_you_mean(name, names) or ';'} known: {', '.join(names)}"
    if shipped is not None:
        table, key = shipped
        raise table.error(key, message)
    raise InputError(f"{message}; or a path to a TOML file")


def _merged(base: Table, own: Table) -> dict[str, object]:
    result = _merge_values({key: base.raw(key) for key in base.keys()}, {key: own.raw(key) for key in own.keys()})
    return {key: value for key, value in result.items() if key != "name"} | (
        {"name": own.raw("name")} if own.has("name") else {}
    )


def _merge_values(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    result = dict(base)
    for key, value in own.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict) and "value" not in value and "value" not in old
        result[key] = _merge_values(old, value) if both else value  # type: ignore[arg-type]
    return result


@contextmanager
def _in_file(table: Table) -> Iterator[None]:
    """Errors of a dataclass's own check name the key; here they get their file and the path of the table."""
    try:
        yield
    except InputError as error:
        where = f"{table.path}." if table.path else ""
        raise InputError(f"{table.file}: {where}{error}") from None


def _read_gpu(table: Table) -> Gpu:
    name = table.text("name", default=table.file.stem)
    summary = table.text("summary", default=name)
    memory = table.number("memory", above=0, unit="B")
    usable = table.number("usable_memory", default=memory * _DEFAULT_USABLE_SHARE, above=0, unit="B")
    bandwidth = table.number("memory_bandwidth", above=0, unit="B/s")
    efficiency = table.number(
        "memory_efficiency", default=_DEFAULT_MEMORY_EFFICIENCY, above=0, maximum=1, unit="1"
    )
    power = table.number("power", above=0, unit="W")
    peak = _read_peak(table.table("peak"))
    gemm, inherited = _read_gemm(table, peak)
    defaults = {
        "usable_memory": Provenance("assumed", f"{_DEFAULT_USABLE_SHARE:g} of memory"),
        "memory_efficiency": Provenance("assumed", "default of aiconfigurator"),
    }
    with _in_file(table):
        return Gpu(
            name=name, summary=summary, memory=memory, usable_memory=usable, memory_bandwidth=bandwidth, peak=peak,
            gemm=gemm, memory_efficiency=efficiency, power=power, provenance=defaults | inherited | table.sources,
        )  # fmt: skip


def _read_peak(table: Table) -> dict[str, float]:
    peak = {"bf16": table.number("bf16", above=0, unit="FLOP/s")}
    peak["fp16"] = table.number("fp16", default=peak["bf16"], above=0, unit="FLOP/s")
    for precision in PRECISIONS[2:]:
        value = table.optional_number(precision, above=0, unit="FLOP/s")
        if value is not None:
            peak[precision] = value
    return peak


def _read_gemm(
    gpu: Table, peak: Mapping[str, float]
) -> tuple[dict[str, GemmTable], dict[str, Provenance]]:
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
    other = load_gpu(_find("gpus", "GPU", like, gpu.file.parent, shipped=(table, "like")))
    tag = "inherited" if gpu.has("gemm") else "assumed"
    provenance = {}
    for kind in missing:
        source = other.gemm.get(kind)
        if source is None:
            raise table.error(kind, f"is missing, and {other.name} has none to inherit")
        tables[kind] = source.scaled(factors[kind])
        provenance[f"gemm.{kind}.eta"] = Provenance(
            "assumed" if tag == "assumed" else "inherited", f"{other.name}'s table times {factors[kind]:.4g}"
        )
    return tables, provenance


def _read_gemm_table(table: Table) -> GemmTable:
    m, n = table.numbers("m", above=0, unit="1"), table.numbers("n", above=0, unit="1")
    eta = table.rows("eta", above=0, maximum=1, unit="1")
    with _in_file(table):
        return GemmTable(m=m, n=n, eta=eta)


def _read_cluster(table: Table) -> Cluster:
    name = table.text("name", default=table.file.stem)
    summary = table.text("summary", default=name)
    gpu = _gpu_of(table)
    gpus_per_node = table.integer("gpus_per_node", minimum=1)
    levels, defaults = _read_levels(table.table("levels"))
    nics = table.number("nics_per_gpu", default=1.0, above=0, unit="1")
    max_gpus = table.integer("max_gpus", default=_DEFAULT_MAX_GPUS, minimum=1)
    price = table.optional_number("price", minimum=0, unit="$/h")
    boards = gpu.power * gpus_per_node
    node_power = table.number("node_power", default=boards * _NODE_POWER_PER_BOARD_POWER, above=0, unit="W")
    pue = table.number("pue", default=_DEFAULT_PUE, minimum=1, unit="1")
    table.finish()
    defaults |= {
        "nics_per_gpu": Provenance("assumed", "one NIC per GPU"),
        "max_gpus": Provenance("assumed", "no limit of the machine"),
        "node_power": Provenance("assumed", f"{_NODE_POWER_PER_BOARD_POWER:g} x the GPUs' board power"),
        "pue": Provenance("assumed", "a modern data centre"),
    }
    own = {key: value for key, value in table.sources.items() if not key.startswith("gpu.")}
    with _in_file(table):
        return Cluster(
            name=name, summary=summary, gpu=gpu, gpus_per_node=gpus_per_node, levels=levels, nics_per_gpu=nics,
            max_gpus=max_gpus, price=price, node_power=node_power, pue=pue, provenance=defaults | own,
        )  # fmt: skip


def _gpu_of(cluster: Table) -> Gpu:
    """`gpu` is a shipped name, a path relative to the cluster's file, or a table."""
    if isinstance(cluster.raw("gpu"), dict):
        return _read_gpu(cluster.table("gpu"))
    name = cluster.text("gpu")
    try:
        path = _find("gpus", "GPU", name, cluster.file.parent)
    except InputError as error:
        raise cluster.error("gpu", str(error)) from None
    return load_gpu(path)


def _read_levels(table: Table) -> tuple[tuple[Level, ...], dict[str, Provenance]]:
    """[levels.NAME] tables in the order of the file, innermost first."""
    levels: list[Level] = []
    defaults: dict[str, Provenance] = {}
    for index, name in enumerate(table.keys()):
        level, provenance = _read_level(table.table(name), name, outer=index > 0)
        levels.append(level)
        defaults |= {f"levels.{name}.{key}": value for key, value in provenance.items()}
    return tuple(levels), defaults


def _read_level(table: Table, name: str, *, outer: bool) -> tuple[Level, dict[str, Provenance]]:
    bandwidth = table.number("bandwidth", above=0, unit="B/s")
    size = table.integer("size", minimum=0)
    oversubscription = table.number("oversubscription", default=1.0, minimum=1, unit="1")
    latency = table.number("latency", default=_DEFAULT_LATENCY[outer], minimum=0, unit="s")
    scale = table.number("curve_scale", default=1.0, above=0, unit="1")
    curves, provenance = _read_curves(table, _DEFAULT_CURVES[outer], bandwidth, scale)
    provenance |= {
        "latency": Provenance("assumed", "NCCL src/graph/tuning.cc, Simple protocol"),
        "oversubscription": Provenance("assumed", "a full-bandwidth network"),
    }
    try:
        return Level(
            name=name, size=size, bandwidth=bandwidth, oversubscription=oversubscription, latency=latency,
            curves=curves,
        ), provenance  # fmt: skip
    except InputError as error:
        raise InputError(f"{table.file}: {error}") from None


def _read_curves(
    level: Table, default: str, bandwidth: float, scale: float
) -> tuple[dict[str, Curve], dict[str, Provenance]]:
    """`curves` of a level is a shipped name, a path relative to the cluster's file, or a table."""
    given = level.has("curves")
    if given and isinstance(level.raw("curves"), dict):
        table = level.table("curves")
    else:
        name = level.text("curves", default=default)
        try:
            table = Table.load(_find("curves", "set of curves", name, level.file.parent))
        except InputError as error:
            raise level.error("curves", str(error)) from None
    reference = table.number("bandwidth", above=0, unit="B/s")
    size = table.numbers("size", above=0, unit="B")
    curves = {op: _read_curve(table.table(op), size, reference) for op in OPERATIONS}
    table.has("summary")
    table.finish()
    sources = {f"curves.{key}": value for key, value in table.sources.items() if key.endswith(".busbw")}
    if not given:
        sources = {key: Provenance("assumed", f"{default}: {value.source}") for key, value in sources.items()}
    elif (bandwidth, scale) != (reference, 1.0):
        text = f"for a link of {units.format_bandwidth(reference)}: "
        sources = {key: Provenance("inherited", text + value.source) for key, value in sources.items()}
    return {op: curve.rebased(reference, bandwidth, scale) for op, curve in curves.items()}, sources


def _read_curve(table: Table, size: tuple[float, ...], reference: float) -> Curve:
    group = tuple(int(value) for value in table.numbers("group", minimum=2, unit="1"))
    latency = table.numbers("latency", minimum=0, unit="s")
    busbw = table.rows("busbw", above=0, unit="B/s")
    efficiency = tuple(tuple(value / reference for value in row) for row in busbw)
    with _in_file(table):
        return Curve(group=group, latency=latency, size=size, efficiency=efficiency)


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
