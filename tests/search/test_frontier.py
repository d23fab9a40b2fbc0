"""The Parquet file: what other tools read, the same bytes each time, whole or not at all."""

import hashlib
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from costmodel.estimate import estimate
from costmodel.layouts import AXES, SCHEDULES, Layouts
from hardware.errors import InputError
from search import frontier
from search.engine import SearchResult, search
from search.frontier import arrow_schema, axes_of, fingerprint, provenance, read_frontier, rows_of, write_parquet
from search.space import load_space
from tests.strategies import problem

LEADING = [
    "rank",
    "tp",
    "pp",
    "vpp",
    "dp",
    "dp_shard",
    "cp",
    "ep",
    "etp",
    "zero_stage",
    "micro_batch",
    "recompute",
    "recompute_layers",
    "sequence_parallel",
    "schedule",
    "rank_order",
    "precision",
    "layers_per_stage",
    "recompute_layers_per_stage",
    "recompute_per_stage",
    "pipeline_layout",
    "balance_gain",
    "step_time",
    "mfu",
    "tokens_per_second_per_gpu",
    "communication_overhead",
    "memory",
    "memory_headroom",
    "step_time_low",
    "step_time_high",
    "memory_low",
    "memory_high",
    "calibrated",
]
NO_TERMS = ("memory_headroom", "memory_low", "memory_high")


@cache
def result(threads: int = 1) -> SearchResult:
    case = problem("llama-3.1-8b", gpus=16)
    space = load_space(case, limits={"micro_batch": [1, 2], "cp": [1, 2], "vpp": [1, 3]})
    return search(case, space, threads=threads, keep_all=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "frontier.parquet"
    write_parquet(file, result(), {"model": "llama-3.1-8b"})
    return file


def test_the_columns_are_those_of_the_interface(path: Path) -> None:
    schema = pq.read_schema(path)
    assert schema.names[: len(LEADING)] == LEADING
    rest = schema.names[len(LEADING) :]
    assert {"memory_weights", "memory_optimizer", "time_gemm", "time_bubble", "time_optimizer"} <= set(rest)
    assert not any(field.nullable for field in schema)
    assert all(field.metadata[b"unit"] and field.metadata[b"meaning"] for field in schema)
    assert schema.field("memory").metadata[b"unit"] == b"B"
    assert schema.field("step_time").metadata[b"unit"] == b"s"
    assert schema.equals(arrow_schema())


def test_the_terms_add_up_to_the_totals(path: Path) -> None:
    for row in read_frontier(path).rows:
        memory = sum(value for name, value in row.items() if name.startswith("memory_") and name not in NO_TERMS)
        assert memory == pytest.approx(row["memory"], rel=1e-12)
        assert sum(value for name, value in row.items() if name.startswith("time_")) == pytest.approx(row["step_time"])
        assert sum(row["layers_per_stage"]) == 32
        assert len(row["layers_per_stage"]) == row["pp"]


def test_each_row_says_how_sure_it_is(path: Path) -> None:
    for row in read_frontier(path).rows:
        assert row["step_time_low"] < row["step_time"] < row["step_time_high"]
        assert row["memory_low"] < row["memory"] < row["memory_high"]
        assert row["calibrated"] in (True, False)
    schema = pq.read_schema(path)
    assert [schema.field(name).metadata[b"unit"] for name in ("step_time_low", "memory_high")] == [b"s", b"B"]
    assert str(schema.field("calibrated").type) == "bool"


def test_pandas_duckdb_and_polars_read_it(path: Path) -> None:
    ranks = list(range(1, len(result().frontier) + 1))
    frame = pd.read_parquet(path)
    assert frame["rank"].tolist() == ranks
    assert frame["mfu"].is_monotonic_decreasing
    assert frame["memory_headroom"].is_monotonic_increasing
    assert pl.read_parquet(path)["rank"].to_list() == ranks
    assert duckdb.sql(f"select rank from '{path}' order by mfu desc").fetchall() == [(rank,) for rank in ranks]
    keys = dict(duckdb.sql(f"select key, value from parquet_kv_metadata('{path}')").fetchall())
    assert keys[b"meshscout.schema_version"] == b"2"
    assert json.loads(keys[b"meshscout.provenance"])["inputs"] == {"model": "llama-3.1-8b"}


def test_units_and_meanings_reach_those_who_see_no_column_metadata(path: Path) -> None:
    keys = dict(duckdb.sql(f"select key, value from parquet_kv_metadata('{path}')").fetchall())
    by_duckdb = json.loads(keys[b"meshscout.columns"])
    assert by_duckdb == json.loads(pl.read_parquet_metadata(path)["meshscout.columns"])
    assert list(by_duckdb) == pd.read_parquet(path).columns.tolist()
    assert (by_duckdb["memory"]["unit"], by_duckdb["step_time"]["unit"]) == ("B", "s")
    assert by_duckdb["recompute"]["unit"] == by_duckdb["schedule"]["unit"] == by_duckdb["precision"]["unit"] == "text"
    assert by_duckdb["sequence_parallel"]["unit"] == "true or false"
    assert "headroom" in by_duckdb["rank"]["meaning"]


def test_the_same_search_writes_the_same_bytes(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.parquet"
    write_parquet(again, result(threads=2), {"model": "llama-3.1-8b"})
    assert again.read_bytes() == path.read_bytes()


def test_reading_gives_back_what_was_written(path: Path) -> None:
    found, wrote = read_frontier(path), result()
    assert wrote.estimate is not None
    assert found.rows == rows_of(wrote.problem, wrote.frontier, wrote.estimate)
    assert found.provenance == json.loads(
        json.dumps(provenance(wrote, {"model": "llama-3.1-8b"}) | {"rows": "frontier"})
    )
    row = found.rows[-1]
    assert axes_of(row, wrote.problem.profile) == wrote.frontier.row(len(found.rows) - 1)
    cost = estimate(wrote.problem, Layouts.of(**axes_of(row, wrote.problem.profile)))
    assert float(cost.mfu[0]) == row["mfu"]
    assert row["schedule"] in SCHEDULES


def test_every_feasible_layout_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "CHUNK", 100)
    write_parquet(tmp_path / "all.parquet", result(), every=True)
    frame = pd.read_parquet(tmp_path / "all.parquet")
    assert len(frame) == result().account.feasible > 100
    assert frame["rank"].tolist() == list(range(1, len(frame) + 1))
    assert frame["mfu"].is_monotonic_decreasing
    assert frame.duplicated(subset=list(AXES)).sum() == 0


def test_an_empty_frontier_is_an_empty_table(tmp_path: Path) -> None:
    case = problem("llama-3.1-405b", gpus=8, usable=2e9)
    write_parquet(tmp_path / "none.parquet", search(case, load_space(case)))
    assert read_frontier(tmp_path / "none.parquet").rows == []


def test_provenance_accounts_for_the_search_and_knows_no_time() -> None:
    found: dict[str, Any] = provenance(result())
    space, account = found["space"], result().account
    assert space["candidates"] == sum(space["pruned"].values()) + space["left"] == account.candidates
    assert space["left"] == account.scored + account.bounded
    assert found["solver"] == {"status": "OPTIMAL", "solutions": result().solver.skeletons}
    assert found["flops_convention"] == "causal"
    assert set(found["sha256"]) == {"model", "cluster", "profile", "workload", "space"}
    assert set(found["versions"]) == {"meshscout", "numpy", "ortools", "pyarrow"}


def test_a_fingerprint_changes_with_any_value() -> None:
    case = problem()
    prints = {fingerprint(case.model), fingerprint(case.workload), fingerprint(case.cluster)}
    prints |= {fingerprint(replace(case.model, layers=31)), fingerprint(replace(case.workload, expert_load=1.1))}
    assert len(prints) == 5
    assert fingerprint(problem().cluster) == fingerprint(case.cluster)
    assert len(fingerprint(case.model)) == len(hashlib.sha256().hexdigest())


def test_a_missing_folder_is_wrong_input_and_is_not_created(tmp_path: Path) -> None:
    target = tmp_path / "no" / "frontier.parquet"
    with pytest.raises(InputError, match=r"frontier\.parquet: cannot be written: the folder .* does not exist"):
        write_parquet(target, result())
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    def broken(*_: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(frontier, "estimate", broken)
    with pytest.raises(KeyboardInterrupt):
        write_parquet(path, result())
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    text, other = tmp_path / "text.parquet", tmp_path / "other.parquet"
    text.write_text("rank,tp\n1,8\n")
    pd.DataFrame({"rank": [1]}).to_parquet(other)
    for file, message in (
        (tmp_path / "none.parquet", "no such file"),
        (text, "not a Parquet file"),
        (other, "not written by meshscout search"),
        (tmp_path, "not a Parquet file"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_frontier(file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_later_schema_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontier, "SCHEMA_VERSION", "0")
    with pytest.raises(InputError, match="schema version 2, this version reads 0; write it again"):
        read_frontier(path)
