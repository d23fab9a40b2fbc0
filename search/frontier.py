"""Ranked layouts <-> Parquet: the schema with units and meanings, the provenance, atomic writing, reading back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from costmodel.estimate import Estimate, Time, estimate
from costmodel.interval import Bounds, bounds
from costmodel.layouts import CODED, Layouts
from costmodel.memory import Memory
from costmodel.problem import Problem
from costmodel.profile import Profile
from hardware.errors import InputError
from search.assignment import Balanced
from search.engine import SearchResult
from search.expansion import CHUNK
from search.files import whole
from search.stage_rows import stage_columns
from search.version import VERSION

SCHEMA_VERSION = "2"
KEY = "meshscout"

_LAYOUT = {
    "rank": "place of the layout by MFU, then headroom; 1 is best",
    "tp": "tensor-parallel degree",
    "pp": "pipeline stages",
    "vpp": "virtual stages per pipeline rank",
    "dp": "data-parallel degree, context parallelism not included",
    "dp_shard": "ranks over which ZeRO shards its states; divides dp * cp",
    "cp": "context-parallel degree",
    "ep": "expert-parallel degree",
    "etp": "tensor-parallel degree inside an expert",
    "zero_stage": "ZeRO stage",
    "micro_batch": "sequences per micro-batch and data-parallel rank",
    "recompute": "set of modules recomputed in the backward pass, as the profile names it",
    "recompute_layers": "layers of each stage that the set holds for, dense ones first, the rest keep all; 0: all",
    "sequence_parallel": "whether norms and residuals are split over the tensor-parallel group",
    "schedule": "pipeline schedule",
    "rank_order": "order in which ranks fill the machine, from the inside out",
    "precision": "number format of the matrix multiplications",
    "layers_per_stage": "transformer layers on each pipeline stage",
    "recompute_layers_per_stage": "layers of each stage that are computed again, in whole or in part",
    "recompute_per_stage": "layers of each stage under each recompute set, | between stages that differ",
    "pipeline_layout": "the virtual stages as Megatron-Core's --pipeline-model-parallel-layout",
    "balance_gain": "step time that stages balanced by CP-SAT save against the closed-form split; 0 if not balanced",
}
_LISTS = ("layers_per_stage", "recompute_layers_per_stage")
_TEXTS = ("recompute", "schedule", "rank_order", "precision", "recompute_per_stage", "pipeline_layout")
_TYPES = {"sequence_parallel": pa.bool_(), "calibrated": pa.bool_(), "balance_gain": pa.float64()}
_TYPES |= dict.fromkeys(_TEXTS, pa.string())
_TYPES |= dict.fromkeys(_LISTS, pa.list_(pa.field("item", pa.int32(), nullable=False)))
_UNITS = {"micro_batch": "sequences", "recompute_layers": "layers", "sequence_parallel": "true or false"}
_UNITS |= dict.fromkeys(_TEXTS, "text") | dict.fromkeys(_LISTS, "layers")
_HEADLINES = {
    "step_time": "step_time",
    "mfu": "mfu",
    "tokens_per_second_per_gpu": "tokens_per_second_per_gpu",
    "communication_overhead": "communication_overhead",
    "memory": "memory_total",
    "memory_headroom": "memory_headroom",
}
"""Column -> field of Estimate."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A file read back: one dict a row with the columns of the schema, the provenance, unit and meaning of each column,
    whether `search` (frontier) or `sweep` wrote it, and its path."""

    rows: list[dict[str, Any]]
    provenance: dict[str, Any]
    columns: dict[str, dict[str, str]]
    kind: str
    path: str


def arrow_schema(provenance: Mapping[str, object] | None = None) -> pa.Schema:
    """The schema: every column non-null, with `unit` and `meaning` in its metadata.

    The file's own metadata holds them again, as JSON under `meshscout.columns`: pandas, DuckDB and polars show no
    column's metadata.
    """
    columns = [
        field_of(name, _TYPES.get(name, pa.int64()), _UNITS.get(name, "1"), meaning)
        for name, meaning in _LAYOUT.items()
    ]
    declared = {part.name: part.metadata for part in fields(Estimate)}
    columns += [_number(name, declared[source]) for name, source in _HEADLINES.items()]
    columns += [_number(part.name, part.metadata) for part in fields(Bounds)]
    for prefix, tree in (("memory", Memory), ("time", Time)):
        columns += [_number(f"{prefix}_{part.name}", part.metadata) for part in fields(tree)]
    return pa.schema(columns, metadata=metadata_of(columns, provenance or {}))


def metadata_of(columns: Sequence[pa.Field], provenance: Mapping[str, object]) -> dict[str, str]:
    """A file's own metadata: the schema version, the provenance, and unit and meaning of its columns again."""
    units = {column.name: {key.decode(): text.decode() for key, text in column.metadata.items()} for column in columns}
    told = json.dumps(units, ensure_ascii=False)  # in the order of the columns
    metadata = {"schema_version": SCHEMA_VERSION, "provenance": _json(provenance), "columns": told}
    return {f"{KEY}.{name}": text for name, text in metadata.items()}


def _json(value: object) -> str:
    """Canonical JSON in UTF-8; what a path holds beside it becomes an escape that reads back as the same path."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


def _number(name: str, metadata: Mapping[str, str]) -> pa.Field:
    return field_of(name, _TYPES.get(name, pa.float64()), metadata["unit"], metadata["meaning"])


def field_of(name: str, kind: pa.DataType, unit: str, meaning: str, *, null: bool = False) -> pa.Field:
    """A column with its unit and meaning; non-null unless `null`."""
    return pa.field(name, kind, nullable=null, metadata={"unit": unit, "meaning": meaning})


def columns_of(
    problem: Problem, layouts: Layouts, cost: Estimate, first: int = 1, balanced: Sequence[Balanced | None] = ()
) -> dict[str, Any]:
    """Every column of the schema, in its order, for ranked layouts of which the first has rank `first`; `balanced` are
    their stages where they were balanced."""
    recompute = [choice.name for choice in problem.profile.recompute]
    columns: dict[str, Any] = {"rank": np.arange(first, first + len(layouts))}
    columns |= {axis.name: getattr(layouts, axis.name) for axis in fields(Layouts)}
    columns["recompute"] = [recompute[code] for code in layouts.recompute]
    columns |= {axis: [names[code] for code in getattr(layouts, axis)] for axis, names in CODED.items()}
    columns["sequence_parallel"] = layouts.sequence_parallel == 1
    columns["precision"] = [problem.workload.precision] * len(layouts)
    columns |= stage_columns(problem, layouts, balanced)
    columns |= {name: getattr(cost, source) for name, source in _HEADLINES.items()}
    ends = bounds(problem, layouts, cost)
    columns |= {part.name: getattr(ends, part.name) for part in fields(Bounds)}
    for prefix, tree in (("memory", cost.memory), ("time", cost.time)):
        columns |= {f"{prefix}_{part.name}": getattr(tree, part.name) for part in fields(tree)}
    return columns


def rows_of(
    problem: Problem, layouts: Layouts, cost: Estimate, balanced: Sequence[Balanced | None] = ()
) -> list[dict[str, Any]]:
    """The rows as Python numbers, texts and lists: what `read_frontier` gives back for the same layouts."""
    columns = {
        name: column.tolist() if isinstance(column, np.ndarray) else column
        for name, column in columns_of(problem, layouts, cost, balanced=balanced).items()
    }
    columns |= {name: [list(stages) for stages in columns[name]] for name in _LISTS}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def provenance(result: SearchResult, inputs: Mapping[str, object] | None = None) -> dict[str, object]:
    """Where a result comes from: inputs and their SHA-256, versions, the account of the space, the solver.

    `inputs` is what the caller was given (names, files); it is stored as it is. No time, no thread count and nothing
    that bounds change: the same search gives the same provenance.
    """
    problem, account = result.problem, result.account
    pruned = {rule: count for rule, count in account.pruned.items() if rule != "memory"}
    parts = {
        "model": problem.model,
        "cluster": problem.cluster,
        "profile": problem.profile,
        "workload": problem.workload,
        "space": result.space,
    }
    return {
        "inputs": dict(inputs or {}),
        "names": {name: part.name for name, part in parts.items() if hasattr(part, "name")},
        "workload": asdict(problem.workload),
        "limits": {axis: list(values) for axis, values in result.space.limits.items()},
        "sha256": {name: fingerprint(part) for name, part in parts.items()},
        "versions": {"meshscout": VERSION} | {name: version(name) for name in ("numpy", "ortools", "pyarrow")},
        "space": {
            "candidates": account.candidates,
            "pruned": pruned,
            "left": account.candidates - sum(pruned.values()),
        },
        "solver": {"status": result.solver.status, "solutions": result.solver.skeletons},
        "flops_convention": problem.workload.flops_convention,
    }


def fingerprint(part: Any) -> str:
    """SHA-256 of a dataclass's values as canonical JSON: changes when, and only when, a value changes."""
    return digest(_plain(asdict(part)))


def digest(value: object) -> str:
    """SHA-256 of a value as canonical JSON."""
    return hashlib.sha256(_json(value).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def write_parquet(
    path: str | os.PathLike[str], result: SearchResult, inputs: Mapping[str, object] | None = None,
    *, every: bool = False,
) -> None:  # fmt: skip
    """Write the frontier, or with `every` all feasible layouts that the search kept, ranked.

    The file appears whole or not at all, and the same search writes the same bytes. Raises InputError if the folder
    does not exist or the file cannot be written.
    """
    with whole(path) as (file,):
        to_parquet(file, result, inputs, every=every)


def to_parquet(
    file: BinaryIO, result: SearchResult, inputs: Mapping[str, object] | None = None, *, every: bool = False
) -> None:
    """What `write_parquet` writes, to an open file."""
    layouts = result.feasible if every else result.frontier
    if layouts is None:
        raise ValueError("the search did not keep every feasible layout (keep_all)")
    schema = arrow_schema(provenance(result, inputs) | {"rows": "feasible" if every else "frontier"})
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for start in range(0, len(layouts), CHUNK):
            part = layouts.take(slice(start, start + CHUNK))
            own = result.balanced[start : start + CHUNK] if result.balanced and not every else ()
            cost = _costs(result, slice(start, start + CHUNK)) if own else estimate(result.problem, part)
            columns = columns_of(result.problem, part, cost, start + 1, own)
            arrays = [_array(columns[field.name], field.type) for field in schema]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _costs(result: SearchResult, rows: slice) -> Estimate:
    """Rows of the estimate of a balanced frontier."""
    assert result.estimate is not None
    return result.estimate.take(np.arange(len(result.frontier))[rows])


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    """A column made of its bytes: pa.array would first import pandas, which takes longer than most searches."""
    data: list[Any]
    rows, children = len(column), []
    if pa.types.is_list(kind) or pa.types.is_string(kind):
        parts = column if pa.types.is_list(kind) else [text.encode() for text in column]
        data = [np.cumsum([0, *map(len, parts)], dtype=np.int32)]
        if pa.types.is_list(kind):
            children = [_array(np.array([item for part in parts for item in part], dtype=np.int32), kind.value_type)]
        else:
            data.append(b"".join(parts))
    else:
        data = [np.packbits(column, bitorder="little") if pa.types.is_boolean(kind) else np.ascontiguousarray(column)]
    return pa.Array.from_buffers(kind, rows, [None, *map(pa.py_buffer, data)], children=children)


def read_frontier(path: str | os.PathLike[str], kinds: Sequence[str] = ("frontier",)) -> Stored:
    """The rows and provenance of a file that `write_parquet` wrote, or `sweep` where `kinds` has it.

    Raises InputError for any other file.
    """
    name = os.fsdecode(path)
    try:
        if not os.path.isfile(name):
            raise InputError(f"{name}: {'not a Parquet file' if os.path.exists(name) else 'no such file'}")
        with open(name, "rb") as file:  # pyarrow would take some names for places in a network
            table = pq.ParquetFile(file).read(use_threads=False)
            metadata = {key.decode(): text.decode() for key, text in (table.schema.metadata or {}).items()}
            rows = table.to_pylist()
    except InputError:
        raise
    except (OSError, ArithmeticError, LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{name}: not a Parquet file: {' '.join(str(error).split())}") from None
    found = metadata.get(f"{KEY}.schema_version")
    if found is None:
        raise InputError(f"{name}: not written by meshscout search")
    if found != SCHEMA_VERSION:
        raise InputError(f"{name}: schema version {found}, this version reads {SCHEMA_VERSION}; write it again")
    kind = metadata.get(f"{KEY}.kind", "frontier")
    if kind not in kinds:
        raise InputError(f"{name}: written by meshscout {kind}, not by search")
    known = arrow_schema().names if kind == "frontier" else []
    if lacking := [column for column in known if column not in table.column_names]:
        raise InputError(f"{name}: lacks column {', '.join(lacking)}")
    if empty := [column for column in known if table.column(column).null_count]:
        raise InputError(f"{name}: column {', '.join(empty)} has rows with no value")
    with damage(name):
        told, columns = (dict(json.loads(metadata[f"{KEY}.{part}"])) for part in ("provenance", "columns"))
        return Stored(rows, told, columns, kind, name)


@contextmanager
def damage(name: str) -> Iterator[None]:
    """What a file that search did not write so leads to becomes an InputError that names the file."""
    try:
        yield
    except InputError as error:
        raise error if name in str(error) else InputError(f"{name}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else f"{type(error).__name__} {error}"
        raise InputError(f"{name}: damaged, or not written by meshscout search: {what}") from None


def axes_of(row: Mapping[str, Any], profile: Profile) -> dict[str, int]:
    """A stored row's axes as the numbers of `Layouts`. Raises InputError for a recompute set the profile lacks."""
    axes = {axis.name: row[axis.name] for axis in fields(Layouts)}
    axes["recompute"] = profile.recompute_code(row["recompute"])
    axes |= {axis: names.index(row[axis]) for axis, names in CODED.items()}
    for name, value in axes.items():
        if int(value) != value:
            raise InputError(f"column {name} holds {value!r}, expected an integer")
    return {name: int(value) for name, value in axes.items()}
