"""What a file tells of balanced stages is what `explain` reads, and its figures are the row's."""

import json
import re
from collections.abc import Callable
from dataclasses import astuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings

from costmodel.estimate import estimate
from costmodel.layouts import Layouts
from costmodel.problem import Problem
from search.frontier import read_frontier
from search.stage_rows import TOLD, stored, told
from search.stages import assign
from tests.commands import Outcome
from tests.search.test_stages import pipelines

JOB = "qwen3-8b dgx-h100 --gpus 32 --pp 8 --tp 1 --micro-batch 1 --recompute full"


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_stages_are_read_back_as_they_were_told(case: tuple[Problem, Layouts]) -> None:
    job, layout = case
    found = assign(job, layout)
    assume(found is not None)
    assert found is not None
    row = dict(zip(TOLD, (list(one) if isinstance(one, tuple) else one for one in told(job, found)), strict=True))
    read = stored(job, layout, row | {"rank": 1, "balance_gain": 0.1})
    assert read is not None
    assert (read.chunks, read.mtp, read.recompute) == (found.chunks, found.mtp, found.recompute)
    before, after = (astuple(estimate(job, layout, one.table)) for one in (found, read))
    assert before == after


@pytest.fixture
def file(run: Callable[..., Outcome]) -> str:
    assert run("search", *JOB.split(), "--balance", "-o", "b.parquet").code == 0
    return "b.parquet"


def test_rows_with_balanced_stages_are_explained_as_they_were_scored(file: str, run: Callable[..., Outcome]) -> None:
    rows = read_frontier(file).rows
    own = [row for row in rows if row["balance_gain"] > 0]
    assert own
    for row in (own[0], next(row for row in rows if not row["balance_gain"])):
        found = json.loads(run("explain", file, "--rank", str(row["rank"]), "--json").out)
        for name in ("step_time", "mfu", "memory", "memory_headroom", "layers_per_stage", "pipeline_layout",
                     "balance_gain", "step_time_low", "memory_high"):  # fmt: skip
            assert found[name] == row[name], name
        for kind in ("time", "memory"):
            assert {f"{kind}_{term}": value for term, value in found[f"{kind}_terms"].items()}.items() <= row.items()
        assert sum(found["memory_terms"].values()) == pytest.approx(row["memory"])
        steps = {one["name"]: one["model"] for step in found["steps"] for one in step["rows"]}
        assert steps["layers, most"] == max(row["layers_per_stage"])
        assert steps["bubble"] == row["time_bubble"]
        assert steps["memory"] == row["memory"]


def test_two_rows_that_differ_in_their_stages_are_said_to(file: str, run: Callable[..., Outcome]) -> None:
    rows = read_frontier(file).rows
    balanced = next(row["rank"] for row in rows if row["balance_gain"] > 0)
    usual = next(row["rank"] for row in rows if not row["balance_gain"])
    _, out, err = run("explain", file, "--rank", f"{balanced}", "--against", f"{usual}", "--json")
    assert "stages" not in err
    against = json.loads(out)["against"]
    for name in ("step_time", "memory", "layers_per_stage", "pipeline_layout"):
        assert against[name] == rows[usual - 1][name]
    told = run("explain", file, "--rank", f"{usual}", "--against", f"{balanced}").out
    assert re.search(r"stages +balanced by CP-SAT; were as the closed form has them", told)
    assert re.search(r"computed again +stages 1-7: 5 none; stage 8: 1 none; was ", told)


def test_neighbours_of_a_balanced_row_are_balanced_too(file: str, run: Callable[..., Outcome]) -> None:
    told = run("explain", file, "--rank", "1", "--neighbours").out
    assert "stages balanced by CP-SAT, as above" in told
    assert re.search(r"micro_batch 1 -> 2 +step ", told)
    assert "recompute full -> none" not in told  # CP-SAT chose of these sets already


def test_stages_that_do_not_hold_the_model_are_refused(file: str, run: Callable[..., Outcome]) -> None:
    table = pq.read_table(file)
    column = pa.array([text.replace("t*", "t*1") for text in table["pipeline_layout"].to_pylist()])
    at = table.schema.get_field_index("pipeline_layout")
    pq.write_table(table.set_column(at, table.schema.field(at), column), file)
    code, out, err = run("explain", file, "--rank", "1")
    assert (code, out) == (2, "")
    assert "b.parquet: row 1: its stages" in err
    assert "do not hold qwen3-8b" in err
