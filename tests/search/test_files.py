"""Files that are written appear whole or not at all, replace nothing that they should not, and say what is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hardware.errors import InputError
from search import cli
from search.files import output_path, whole, write_text

ROOT = Path(__file__).parents[2]
SEARCH = ["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tp", "8"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def frontier(folder: Path) -> Path:
    assert cli.main(SEARCH) == 0
    return folder / "frontier.parquet"


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a command with wrong input prints."""
    capsys.readouterr()
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


# -- where a file may be written


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "not a file"),
        ("missing/", "folder"),
        ("there.parquet/", "folder"),
        ("missing/f.parquet", "does not exist"),
        ("there.parquet/f.parquet", "cannot be written"),
        ("n" * 300, "too long"),
        ("loop", "cannot be written"),
        ("dangling", "does not exist"),
        ("pipe", "not a file"),
        ("folder", "not a file"),
        ("/dev/null", "not a file"),
        ("fixed.parquet", "read-only"),
        ("link-to-fixed", "read-only"),
    ],
)
def test_what_cannot_be_written_is_refused_and_kept(folder: Path, name: str, said: str) -> None:
    (folder / "there.parquet").touch()
    (folder / "fixed.parquet").write_text("mine")
    (folder / "fixed.parquet").chmod(0o444)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("no/where")
    (folder / "link-to-fixed").symlink_to("fixed.parquet")
    before = sorted(folder.iterdir())
    for use in (lambda text: output_path(text, "Parquet"), lambda text: write_text(text, "new")):
        with pytest.raises(InputError, match=said) as caught:
            use(name)
        assert name in str(caught.value)
    assert sorted(folder.iterdir()) == before
    assert (folder / "fixed.parquet").read_text() == "mine"
    assert (folder / "fixed.parquet").stat().st_mode & 0o777 == 0o444


def test_a_link_is_followed_and_a_mode_kept(folder: Path) -> None:
    (folder / "real.csv").touch(mode=0o600)
    (folder / "link.csv").symlink_to("real.csv")
    write_text("link.csv", "new")
    assert (folder / "link.csv").is_symlink()
    assert (folder / "real.csv").read_text() == "new"
    assert (folder / "real.csv").stat().st_mode & 0o777 == 0o600


def test_leftovers_of_a_killed_run_are_no_obstacle(folder: Path) -> None:
    for name in (f".f.csv.{os.getpid()}.part", f".f.csv.{os.getpid()}"):
        (folder / name).mkdir()
    write_text("f.csv", "new")
    assert (folder / "f.csv").read_text() == "new"


def test_a_failure_of_one_file_leaves_both_old_ones(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).write_text("old")

    def fill() -> None:
        with whole("a", "b") as (first, second):
            first.write(b"new")
            second.write(b"new")
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="a and b: cannot be written: No space left on device"):
        fill()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "old", "b": "old"}


def test_a_full_disk_keeps_the_old_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("frontier.parquet", "all.parquet"):
        (folder / name).write_text("old")
    program = "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    program += (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (45000, 45000)); from search.cli import main; sys.exit(main())"
    )
    argv = [sys.executable, "-c", program, *SEARCH[:-2], "--all", "all.parquet"]
    done = subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "frontier.parquet": "old",
        "all.parquet": "old",
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_writing_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    program = (
        "import os, sys, search.frontier as f\n"
        f"f.to_parquet = lambda file, *_, **__: (file.write(b'x'), os.kill(os.getpid(), {int(number)}))\n"
        "from search.cli import main\nsys.exit(main())"
    )
    argv = [sys.executable, "-c", program, *SEARCH]
    done = subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("option", ["-o", "--all"])
@pytest.mark.parametrize("kind", ["model", "cluster", "profile", "space"])
def test_an_input_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str], option: str, kind: str) -> None:
    base = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "profile": "megatron", "space": "default"}
    names = {name: str(folder / "mine.toml") if name == kind else value for name, value in base.items()}
    (folder / "mine.toml").write_text(f'base = "{base[kind]}"\n')
    (folder / "other").symlink_to("mine.toml")
    argv = ["search", names["model"], names["cluster"], "--gpus", "8", "--profile", names["profile"]]
    assert "input" in refused(capsys, *argv, "--space", names["space"], option, "other")
    assert (folder / "mine.toml").read_text().startswith("base")


def test_a_model_in_its_folder_and_measured_runs_are_not_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "out").symlink_to("config.json")
    assert "input" in refused(capsys, "search", ".", "dgx-h100", "--gpus", "8", "-o", "out")
    (folder / "runs.csv").write_text("id,model\n")
    assert "input" in refused(capsys, "validate", "runs.csv", "--predictions", "./runs.csv")
    (folder / "out.toml").symlink_to("runs.csv")
    assert "input" in refused(capsys, "calibrate", "runs.csv", "-o", "out.toml")


def test_the_streams_of_the_command_are_not_replaced(folder: Path) -> None:
    for name in ("/dev/stdout", "out.txt.parquet"):
        with open(folder / "out.txt.parquet", "w") as file:
            argv = [sys.executable, "-m", "search", *SEARCH, "-o", name]
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(argv, env=environment, stdout=file, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "stream" in done.stderr


def test_a_path_that_is_no_utf8_is_a_path_like_any_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"\xff.toml")
    with suppress(OSError):
        (folder / name).write_text('base = "llama-3.1-8b"\n')
    assert cli.main(["search", name, *SEARCH[2:], "-o", name[0] + ".parquet"]) == 0
    assert cli.main(["explain", name[0] + ".parquet", "--json"]) == 0
    assert refused(capsys, "search", name[0] + ".tom", *SEARCH[2:])
    assert refused(capsys, "explain", name[0] + "none.parquet")


# -- what is read back


def damaged(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the file again with other provenance."""
    table = pq.read_table(file)
    held = json.loads(table.schema.metadata[b"meshscout.provenance"])
    new = json.dumps(change(held)).encode()
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | {b"meshscout.provenance": new}), file)


WRONG = [[], 7, None, "text", {}, {"inputs": {}}, [[1, 2]], ["ab"]]


@pytest.mark.parametrize("new", WRONG)
def test_foreign_provenance_is_one_line(frontier: Path, capsys: pytest.CaptureFixture[str], new: object) -> None:
    damaged(frontier, lambda _: new)
    assert "frontier.parquet" in refused(capsys, "explain", "frontier.parquet")


@pytest.mark.parametrize("new", [None, 7, -1, 1.5, "x", [], {}, True, 10**30])
@pytest.mark.parametrize("part", ["inputs", "workload", "sha256", "rows"])
def test_a_wrong_part_of_the_provenance_is_one_line(
    frontier: Path, capsys: pytest.CaptureFixture[str], part: str, new: object
) -> None:
    held = json.loads(pq.read_schema(frontier).metadata[b"meshscout.provenance"])
    original = frontier.read_bytes()
    damaged(frontier, lambda _: held | {part: new})
    assert "frontier.parquet" in refused(capsys, "explain", "frontier.parquet")
    for key in held[part] if isinstance(held[part], dict) else ():
        frontier.write_bytes(original)
        damaged(frontier, lambda _, key=key: held | {part: held[part] | {key: new}})
        capsys.readouterr()
        code = cli.main(["explain", "frontier.parquet"])
        err = capsys.readouterr().err
        assert code in (0, 2, 3), key
        assert code != 2 or ("frontier.parquet" in err and err.count("\n") == 1), (key, err)


@pytest.mark.parametrize("key", [b"meshscout.provenance", b"meshscout.schema_version"])
@pytest.mark.parametrize("new", [b"\xff", b"{", b"", None])
def test_wrong_metadata_is_one_line(
    frontier: Path, capsys: pytest.CaptureFixture[str], key: bytes, new: bytes | None
) -> None:
    table = pq.read_table(frontier)
    metadata = {name: text for name, text in table.schema.metadata.items() if name != key or new is not None}
    pq.write_table(table.replace_schema_metadata(metadata if new is None else metadata | {key: new}), frontier)
    assert "frontier.parquet" in refused(capsys, "explain", "frontier.parquet")


@pytest.mark.parametrize(
    "column", ["tp", "dp_shard", "recompute", "schedule", "rank_order", "zero_stage", "micro_batch"]
)
@pytest.mark.parametrize("new", [None, "none such", -1, 2.5, 2**62, [1]])
def test_a_wrong_column_is_one_line(
    frontier: Path, capsys: pytest.CaptureFixture[str], column: str, new: object
) -> None:
    table = pq.read_table(frontier)
    index = table.schema.get_field_index(column)
    pq.write_table(table.set_column(index, column, pa.array([new] * len(table))), frontier)
    assert "frontier.parquet" in refused(capsys, "explain", "frontier.parquet")
    pq.write_table(table.drop_columns([column]), frontier)
    assert "frontier.parquet" in refused(capsys, "explain", "frontier.parquet")


@pytest.mark.parametrize("place", ["gs://bucket/f.parquet", "s3://bucket/f.parquet", "hdfs://host/f.parquet", "."])
def test_places_that_are_no_files_are_refused_at_once(capsys: pytest.CaptureFixture[str], place: str) -> None:
    start = time.monotonic()
    assert place in refused(capsys, "explain", place, "--rank", "1")
    assert time.monotonic() - start < 5


def test_half_a_file_is_one_line(frontier: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = frontier.read_bytes()
    for broken in (b"", content[:-9], content[: len(content) // 2], content[:4] + b"\0" * 400 + content[404:]):
        frontier.write_bytes(broken)
        assert "frontier.parquet" in refused(capsys, "explain", "frontier.parquet")
