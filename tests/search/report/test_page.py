"""The page: whole, small, loads nothing, and what a file holds stays text."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardware import catalog
from search.frontier import read_frontier
from search.report.data import frontier_page
from search.report.page import page, render
from tests.commands import Outcome

SEARCH = ("search", "llama-3.1-8b", "dgx-h100", "--gpus", "8")
SWEEP = ("sweep", "llama-3.1-8b", "dgx-h100", "--gpus", "8,16", "--tokens", "1T", "--tp", "1,2", "--pp", "1")


def data(text: str) -> dict[str, object]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert found
    return dict(json.loads(found[1]))


def test_a_search_becomes_a_page_with_every_layout(run: Callable[..., Outcome], tmp_path: Path) -> None:
    assert run(*SEARCH).code == 0
    assert run("report", "frontier.parquet", "-o", "page.html").code == 0
    found, stored = data((tmp_path / "page.html").read_text()), read_frontier("frontier.parquet")
    assert found["count"] == len(stored.rows)
    rows, constant = found["rows"], found["constant"]
    assert isinstance(rows, dict)
    assert isinstance(constant, dict)
    assert rows["mfu"] == [float(f"{row['mfu']:.5g}") for row in stored.rows]
    assert {*rows, *constant} == set(stored.columns)
    assert (
        sum(line["count"] for line in found["account"]["lines"]) + stored.provenance["space"]["left"]
        == (  # type: ignore[index]
            stored.provenance["space"]["candidates"]
        )
    )


def test_the_page_loads_nothing(run: Callable[..., Outcome], tmp_path: Path) -> None:
    run(*SEARCH)
    text = page("frontier.parquet")
    bare = re.sub(r'<script id="data".*?</script>', "", text, flags=re.S)
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)[^"']*|@import|url\(|fetch\(|XMLHttpRequest""", bare)


def test_two_thousand_points_stay_below_a_megabyte(run: Callable[..., Outcome]) -> None:
    """Every row differs from every other in every number, the worst that a file can hold."""
    run(*SEARCH)
    stored = read_frontier("frontier.parquet")
    rows = [
        {
            name: it * (1 + 1e-4 * n) if isinstance(it, float) else it
            for name, it in stored.rows[n % len(stored.rows)].items()
        }
        for n in range(2000)
    ]
    made = frontier_page(replace(stored, rows=rows))
    assert made.data["count"] == 2000
    assert len(render(made).encode()) < 1_000_000


def test_names_are_text_whatever_they_look_like(run: Callable[..., Outcome]) -> None:
    run(*SEARCH)
    stored = read_frontier("frontier.parquet")
    stored.provenance["names"]["model"] = "</script><script>alert(1)</script>"
    stored.rows[0]["recompute"] = "</script><b>"
    text = render(frontier_page(stored))
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
    assert data(text)["rows"]["recompute"][0] == "</script><b>"  # type: ignore[index]


def test_a_sweep_becomes_a_page_with_its_reasons(run: Callable[..., Outcome]) -> None:
    assert run(*SWEEP, "-o", "s.parquet").code == 0
    found = data(page("s.parquet"))
    assert found["kind"] == "sweep"
    assert len(found["best"]) == 2  # type: ignore[arg-type]


def test_figures_stand_beside_their_sources_and_say_what_replaced_them(run: Callable[..., Outcome]) -> None:
    link, memory = ("--set", "cluster.levels.1.bandwidth=25GB/s"), ("--set", "cluster.gpu.memory=96GB")
    assert run(*SWEEP, "--price", "dgx-h100=2.10", *link, *memory, "-o", "s.parquet").code == 0
    found = {group["name"]: group for group in data(page("s.parquet"))["sources"]}  # type: ignore[attr-defined]
    paid = dict(zip(found["Price and power"]["heads"], found["Price and power"]["rows"][0], strict=True))
    assert (paid["price per GPU-hour"], paid["node power"], paid["PUE"]) == ("$2.10", "10.2 kW", "1.2")
    cluster = {row[0]: row[1:] for row in found["Cluster dgx-h100"]["rows"]}
    assert cluster["price"][0] == "$2.10"
    assert cluster["price"][2].startswith("--price; the file has $2.99: ")
    assert cluster["levels.leaf.bandwidth"][0] == "25GB/s"
    assert cluster["levels.leaf.bandwidth"][2].startswith("--set; the file has 50 GB/s: ")
    assert cluster["levels.spine.bandwidth"][0] == "50 GB/s"
    gpu = {row[0]: row[1:] for row in found["GPU H100-SXM of dgx-h100"]["rows"]}
    assert gpu["memory"][:2] == ["96GB", "set"]
    assert gpu["usable_memory"][1] == "set"
    assert gpu["memory_bandwidth"][0] == "3.35 TB/s"
    assert all(row[1] for name, row in gpu.items() if not name.startswith("gemm"))


def test_the_page_tells_what_the_command_told(run: Callable[..., Outcome]) -> None:
    """Doubts about the rates, the margin of a sweep, that no smaller size was swept, the defaults of a search."""
    job = ("llama-3.1-8b", "mi300x-8", "--profile", "torchtitan", "--gpus", "8", "--tp", "1")
    swept = run("sweep", *job, "--tokens", "1T", "--max-days", "900")
    assert run("search", *job).code == swept.code == 0
    (doubt,) = [line for line in swept.err.splitlines() if "no run" in line]
    for file in ("sweep.parquet", "frontier.parquet"):
        told = dict(data(page(file))["sources"][0]["rows"])  # type: ignore[index]
        assert told["warnings"] == doubt.removeprefix("meshscout: ")
    assert "global-batch 512, " in told["defaults"]
    found = data(page("sweep.parquet"))
    assert dict(found["sources"][0]["rows"])["memory margin"] == "0.5"  # type: ignore[index]
    assert [it["smallest"] for it in found["fewest"]] == [True]  # type: ignore[attr-defined]
    assert "no smaller size was swept" in swept.out


def test_a_size_that_fits_at_one_batch_is_not_told_as_failing(run: Callable[..., Outcome]) -> None:
    batches = ("--global-batch", "8:16", "--tokens", "1T", "--tp", "1", "--pp", "1", "--cp", "1")
    assert run("sweep", "llama-3.1-8b", "dgx-h100", "--gpus", "12,16", *batches, "-o", "s.parquet").code == 0
    assert 16 in [row["gpus"] for row in read_frontier("s.parquet", kinds=("sweep",)).rows if row["reason"]]
    found = data(page("s.parquet"))
    assert {row["gpus"] for row in found["reasons"]} == {12}  # type: ignore[attr-defined]
    assert all(row["global_batch"] for row in found["reasons"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "text"), [("no.parquet", None), ("text.parquet", "text"), ("runs.csv", "id\n1\n")])
def test_any_other_file_is_refused(run: Callable[..., Outcome], tmp_path: Path, name: str, text: str | None) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    done = run("report", name)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert name in done.err
    assert not (tmp_path / "report.html").exists()


def test_the_file_itself_is_never_overwritten(run: Callable[..., Outcome]) -> None:
    run(*SEARCH)
    assert run("report", "frontier.parquet", "-o", "frontier.parquet").code == 2
    assert len(read_frontier("frontier.parquet").rows) > 0


def test_inputs_are_found_beside_the_file(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    Path("mine.toml").write_text('base = "llama-2-7b"\nlayers = 4\n')
    shutil.copy(Path(catalog.__file__).parent / "data" / "clusters" / "dgx-a100.toml", "machine.toml")
    assert run("search", "mine.toml", "machine.toml", "--gpus", "8", "--tp", "1", "--pp", "1").code == 0
    monkeypatch.chdir(tmp_path)
    assert run("explain", "there/frontier.parquet").code == 0
    assert run("report", "there/frontier.parquet").code == 0
    assert "cannot be read" not in Path("report.html").read_text()
    shutil.move("there/frontier.parquet", "moved.parquet")
    code, _, err = run("explain", "moved.parquet")
    assert (code, err.count("\n")) == (2, 1)
    assert "mine.toml: no such file, here or beside it" in err


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("tp", -5, "does not make 8 GPUs"),
        ("tp", None, "column tp has rows with no value"),
        ("zero_stage", 7, "zero_stage 7"),
        ("micro_batch", 7, "micro_batch 7"),
        ("recompute", "what", "recompute 'what'"),
        ("pipeline_layout", "Et|L", "do not hold llama-3.1-8b"),
        ("recompute_layers", "", "lacks column recompute_layers"),
    ],
)
def test_a_row_that_cannot_be_explained_makes_no_page(
    run: Callable[..., Outcome], column: str, value: object, said: str
) -> None:
    assert run("search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tp", "1,2", "--pp", "1").code == 0
    table = pq.read_table("frontier.parquet")
    at, field = table.schema.get_field_index(column), table.schema.field(column)
    values = [value, *table.column(at).to_pylist()[1:]]
    if value == "":
        table = table.drop_columns([column])
    else:
        table = table.set_column(at, field.with_nullable(True), pa.array(values, field.type))
    pq.write_table(table, "bad.parquet")
    for command in ("report", "explain"):
        code, _, err = run(command, "bad.parquet")
        assert (code, err.count("\n")) == (2, 1)
        assert "bad.parquet" in err
        assert said in err or command == "explain"
    assert not Path("report.html").exists()


def test_a_frontier_without_rows_makes_no_page(run: Callable[..., Outcome]) -> None:
    run(*SEARCH)
    pq.write_table(pq.read_table("frontier.parquet").slice(0, 0), "empty.parquet")
    code, _, err = run("report", "empty.parquet")
    assert (code, err) == (2, "meshscout: error: empty.parquet: has no rows\n")
