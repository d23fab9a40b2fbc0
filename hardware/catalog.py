"""Names and TOML files -> Gpu and Cluster; what is shipped is in data/gpus, data/clusters and data/curves."""

from collections.abc import Mapping
from pathlib import Path

from hardware import gpu_file, units
from hardware.changes import Value, changed, follow
from hardware.cluster import OPERATIONS, Cluster, Curve, Level
from hardware.errors import InputError
from hardware.gpu import Gpu
from hardware.physical import check, physical
from hardware.provenance import Provenance
from hardware.reader import Table
from hardware.shipped import default_cluster, find, in_file, names_of, shipped_gpu, unknown

# For a user's file that leaves these out.
_DEFAULT_CURVES = ("nvlink4", "network")
_DEFAULT_LATENCY = (3.4e-6, 14e-6)
_DEFAULT_MAX_GPUS = 131072
_DEFAULT_PUE = 1.2
_NODE_POWER_PER_BOARD_POWER = 1.8


def gpu_names() -> tuple[str, ...]:
    """Names of the GPUs shipped, sorted."""
    return names_of("gpus")


def cluster_names() -> tuple[str, ...]:
    """Names of the clusters shipped, sorted."""
    return names_of("clusters")


def gpu_alias(name: str) -> str:
    """The shipped name of a GPU that a table of measured runs calls `name`: "A100-80G" -> "A100-SXM-80G".

    Case, spaces, underscores, "GB" for "G" and the vendor's name in front make no difference. InputError, one line,
    for a name that is nowhere.
    """
    shipped = shipped_gpu(name)
    if shipped is None:
        raise InputError(unknown("gpus", "GPU", name))
    return shipped


def cluster_for(gpu: str) -> str:
    """The shipped cluster to take when only the GPU is known, by its shipped name or another one of `gpu_alias`."""
    return default_cluster(gpu_alias(gpu))


def load_gpu(name_or_path: str | Path) -> Gpu:
    """A GPU by its shipped name, by another one of `gpu_alias`, or from a TOML file.

    InputError, one line, if it is missing or wrong.
    """
    return gpu_file.load(find("gpus", "GPU", str(name_or_path), None))


def load_cluster(name_or_path: str | Path, changes: Mapping[str, Value] | None = None) -> Cluster:
    """A cluster by its shipped name or from a TOML file, with `changes` by key path (hardware.changes).

    InputError, one line, if it is missing or wrong.
    """
    table = Table.load(find("clusters", "cluster", str(name_or_path), None))
    if table.has("base"):
        base = Table.load(find("clusters", "cluster", table.text("base"), None, shipped=(table, "base")))
        table = Table(_merged(base, table), table.file, provenance=table.provenance)
    return _read_cluster(changed(table, changes) if changes else table)


def _merged(base: Table, own: Table) -> dict[str, object]:
    """The keys of `own` over those of `base`, table by table; its name and summary are its own."""
    below = {key: base.raw(key) for key in base.keys() if key not in ("name", "summary")}  # noqa: SIM118
    given = {key: own.raw(key) for key in own.keys() if key != "base"}  # noqa: SIM118
    merged = _merge_values(below, given)
    follow(below, merged, given)
    return merged


def _merge_values(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    result = dict(base)
    for key, value in own.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not {"value"} & (old.keys() | value.keys()):
            result[key] = _merge_values(old, value)
        else:
            result[key] = value
    return result


def _read_cluster(table: Table) -> Cluster:
    name = table.text("name", default=table.file.stem)
    summary = table.text("summary", default=name)
    gpu = _gpu_of(table)
    gpus_per_node = table.integer("gpus_per_node", minimum=1)
    levels, defaults = _read_levels(table.table("levels"), gpu.name)
    nics = table.number("nics_per_gpu", default=1.0, above=0, unit="1")
    max_gpus = table.integer("max_gpus", default=_DEFAULT_MAX_GPUS, minimum=1)
    price = table.optional_number("price", minimum=0, unit="$/h")
    boards = gpu.power * gpus_per_node
    node_power = physical(table, "node_power", "W", boards * _NODE_POWER_PER_BOARD_POWER)
    pue = table.number("pue", default=_DEFAULT_PUE, minimum=1, unit="1")
    table.finish()
    defaults |= {
        "nics_per_gpu": Provenance("assumed", "one NIC per GPU"),
        "max_gpus": Provenance("assumed", "no limit of the machine"),
        "node_power": Provenance("assumed", f"{_NODE_POWER_PER_BOARD_POWER:g} x the GPUs' board power"),
        "pue": Provenance("assumed", "a modern data centre"),
    }
    own = {key: value for key, value in table.sources.items() if not key.startswith("gpu.")}
    with in_file(table):
        return Cluster(
            name=name, summary=summary, gpu=gpu, gpus_per_node=gpus_per_node, levels=levels,
            nics_per_gpu=nics, max_gpus=max_gpus, price=price, node_power=node_power, pue=pue,
            provenance=defaults | own,
        )  # fmt: skip


def _gpu_of(cluster: Table) -> Gpu:
    """`gpu` is a shipped name or an alias of it, a path relative to the cluster's file, or a table."""
    if isinstance(cluster.raw("gpu"), dict):
        return gpu_file.read(cluster.table("gpu"))
    name = cluster.text("gpu")
    try:
        path = find("gpus", "GPU", name, cluster.file.parent)
    except InputError as error:
        raise cluster.error("gpu", str(error)) from None
    return load_gpu(path)


def _read_levels(table: Table, gpu: str) -> tuple[tuple[Level, ...], dict[str, Provenance]]:
    """[levels.NAME] tables in the order of the file, innermost first."""
    levels: list[Level] = []
    defaults: dict[str, Provenance] = {}
    for index, name in enumerate(table.keys()):
        level, provenance = _read_level(table.table(name), name, gpu, outer=index > 0)
        levels.append(level)
        defaults |= {f"levels.{name}.{key}": value for key, value in provenance.items()}
    return tuple(levels), defaults


def _read_level(table: Table, name: str, gpu: str, *, outer: bool) -> tuple[Level, dict[str, Provenance]]:
    bandwidth = physical(table, "bandwidth", "B/s")
    size = table.integer("size", minimum=0)
    oversubscription = table.number("oversubscription", default=1.0, minimum=1, maximum=1000, unit="1")
    latency = physical(table, "latency", "s", _DEFAULT_LATENCY[outer])
    scale = table.number("curve_scale", default=1.0, above=0, unit="1")
    curves, provenance = _read_curves(table, _DEFAULT_CURVES[outer], (bandwidth, scale), gpu)
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
    level: Table, default: str, link: tuple[float, float], gpu: str
) -> tuple[dict[str, Curve], dict[str, Provenance]]:
    """`curves` of a level is a shipped name, a path relative to the cluster's file, or a table.

    link = (bandwidth, curve_scale) of the level. What was measured on another link or GPU counts as inherited.
    """
    given = level.has("curves")
    if given and isinstance(level.raw("curves"), dict):
        table = level.table("curves")
    else:
        name = level.text("curves", default=default)
        try:
            table = Table.load(find("curves", "set of curves", name, level.file.parent))
        except InputError as error:
            raise level.error("curves", str(error)) from None
    reference = physical(table, "bandwidth", "B/s")
    size = table.numbers("size", above=0, unit="B")
    curves = {op: _read_curve(table.table(op), op, size, reference) for op in OPERATIONS}
    table.has("summary")
    measured_on = table.texts("measured_on", default=(gpu,))
    table.finish()
    sources = {f"curves.{key}": value for key, value in table.sources.items() if key.endswith(".busbw")}
    if not given:
        sources = {key: Provenance("assumed", f"{default}: {value.source}") for key, value in sources.items()}
    elif link != (reference, 1.0) or gpu not in measured_on:
        text = f"for a link of {units.format_bandwidth(reference)}: " if link != (reference, 1.0) else ""
        sources = {key: Provenance("inherited", text + value.source) for key, value in sources.items()}
    return {op: curve.rebased(reference, *link) for op, curve in curves.items()}, sources


def _read_curve(table: Table, op: str, size: tuple[float, ...], reference: float) -> Curve:
    group = tuple(int(value) for value in table.numbers("group", minimum=2, unit="1"))
    latency = table.numbers("latency", minimum=0, unit="s")
    check(table, "latency", "s", latency)
    most = None if op == "all_reduce" else reference
    busbw = table.rows("busbw", above=0, maximum=most, unit="B/s")
    check(table, "busbw", "B/s", (value for row in busbw for value in row))
    efficiency = tuple(tuple(value / reference for value in row) for row in busbw)
    with in_file(table):
        return Curve(group=group, latency=latency, size=size, efficiency=efficiency)
