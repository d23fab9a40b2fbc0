"""The sweep's Parquet file: the frontier's columns, null where nothing fits, between the combination and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from costmodel.economy import Training
from search.frontier import KEY, arrow_schema, field_of, metadata_of
from search.sweep.rows import Row, settings_of, value_of

ENDS = {"": "", "_low": ", lower end of the interval", "_high": ", upper end of the interval"}


def sweep_schema(rows: Sequence[Row], provenance: Mapping[str, object]) -> pa.Schema:
    """The schema of these rows, unit and meaning in each field's metadata; what only a layout has may be null."""
    columns = [
        field_of("model", pa.string(), "text", "model as named"),
        field_of("cluster", pa.string(), "text", "cluster as named"),
    ]
    for name in settings_of(rows):
        kind = pa.float64() if _numeric(rows, name) else pa.string()
        columns.append(field_of(name, kind, "SI", "figure of the cluster that was set"))
    columns += [
        field_of("gpus", pa.int64(), "1", "GPUs of the job"),
        field_of("global_batch", pa.int64(), "sequences", "sequences a step"),
        field_of("reason", pa.string(), "text", "why there is no layout; null where there is one", null=True),
    ]
    columns += [part.with_nullable(True) for part in arrow_schema({})]
    for part in fields(Training):
        for end, text in ENDS.items():
            meaning = f"{part.metadata['meaning']}{text}"
            columns.append(field_of(f"{part.name}{end}", pa.float64(), part.metadata["unit"], meaning, null=True))
    scaling = "tokens per second and GPU over those of the best layout on the machine's smallest size"
    columns.append(field_of("scaling_efficiency", pa.float64(), "1", scaling, null=True))
    best = "whether no layout of the model is better in both cost and time"
    columns.append(field_of("pareto", pa.bool_(), "true or false", best))
    return pa.schema(columns, metadata=metadata_of(columns, provenance) | {f"{KEY}.kind": "sweep"})


def to_parquet(file: BinaryIO, rows: Sequence[Row], provenance: Mapping[str, object]) -> None:
    """Write the rows to an open file; the same rows give the same bytes."""
    schema = sweep_schema(rows, provenance)
    numeric = [name for name in settings_of(rows) if _numeric(rows, name)]
    plain = [row | {name: value_of(row[name]) for name in numeric} for row in rows]
    pq.write_table(pa.Table.from_pylist(plain, schema=schema), file, compression="zstd")


def _numeric(rows: Sequence[Row], name: str) -> bool:
    return all(isinstance(value_of(row[name]), float) for row in rows)
