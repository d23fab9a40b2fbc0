"""The command line as a user meets it: exit codes, one-line errors, and what is printed where."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from costmodel.profile import load_profile
from hardware.catalog import load_cluster
from search import cli
from search.options import EXAMPLES
from search.terminal import progress
from tests.commands import Outcome

ROOT = Path(__file__).parents[2]
SEARCH = ["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8"]
EXPLAIN = ["explain", "llama-3.1-8b", "dgx-h100", "--gpus", "8"]


def write(path: str, text: str) -> str:
    Path(path).write_text(text)
    return path


# -- wrong input: one line, exit 2


@pytest.mark.parametrize("gpus", ["0", "-8", "7.5", "8.0", "eight", "", "1e3", "99999999999999", "٨"])
def test_gpus_is_a_positive_integer(run: Callable[..., Outcome], gpus: str) -> None:
    code, out, err = run("search", "llama-3.1-8b", "dgx-h100", "--gpus", gpus)
    assert (code, out) == (2, "")
    assert err.startswith("meshscout: error: argument --gpus: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "COMMAND"),
        (["serch"], "serch"),
        (["search"], "MODEL"),
        (["search", "llama-3.1-8b", "dgx-h100"], "--gpus"),
        ([*SEARCH, "--tpp", "8"], "--tpp"),
        ([*SEARCH, "--tp"], "--tp"),
        ([*SEARCH, "--tp", "1,,2"], "--tp"),
        ([*SEARCH, "--tp", "1", "--tp", "2"], "--tp: given twice"),
        ([*SEARCH, "--gpus", "16"], "--gpus: given twice"),
        ([*SEARCH, "-o", "a.parquet", "--output=a.parquet"], "given twice"),
        ([*EXPLAIN, "--tp", "1", "--tp", "2"], "--tp: given twice"),
        ([*SEARCH, "--tp", "0"], "'0'"),
        ([*SEARCH, "--tp", "3"], "3"),
        ([*SEARCH, "--zero", "4"], "'4'"),
        ([*SEARCH, "--sequence-parallel", "maybe"], "maybe"),
        ([*SEARCH, "--schedule", "1f2b"], "1f1b"),
        ([*SEARCH, "--recompute", "some"], "full"),
        ([*SEARCH, "--precision", "fp7"], "fp7"),
        ([*SEARCH, "--precision", "nvfp4"], "H100"),
        ([*SEARCH, "--grad-dtype", "int8"], "int8"),
        ([*SEARCH, "--expert-load", "0.5"], "0.5"),
        ([*SEARCH, "--expert-load", "nan"], "nan"),
        ([*SEARCH, "--memory-margin", "1"], "--memory-margin is a probability"),
        ([*SEARCH, "--as", "llama"], "--as llama"),
        ([*SEARCH, "--flops-convention", "9n"], "9n"),
        ([*SEARCH, "--mfu-peak", "fp7"], "fp7"),
        ([*SEARCH, "--profile", "megatorn"], "megatron"),
        ([*SEARCH, "--space", "no-such-space"], "no-such-space"),
        ([*SEARCH, "--global-batch", "7", "--dp", "8"], "7"),
        ([*SEARCH, "-o", "missing/frontier.parquet"], "missing"),
        ([*SEARCH, "-o", "."], "not a file"),
        ([*SEARCH, "-o", "frontier.csv"], "Parquet"),
        (["explain", "frontier.parquet"], "frontier.parquet"),
        ([*SEARCH, "-o", "/dev/null"], "not a file"),
        ([*SEARCH, "--all", "missing/all.parquet"], "missing"),
        ([*SEARCH, "--all", "frontier.parquet"], "frontier.parquet"),
        (["search", "llama-3.1-80b", "dgx-h100", "--gpus", "8"], "llama-3.1-8b"),
        (["search", "llama-3.1-8b", "dgx-h1000", "--gpus", "8"], "dgx-h100"),
        (["search", "llama-3.1-8b", "dgx-h100", "--gpus", "12"], "16"),
        (["search", "llama-3.1-8b", "dgx-h100", "--gpus", "99999999"], "--gpus 99999999: dgx-h100 joins at most"),
        (["search", "nowhere/config.json", "dgx-h100", "--gpus", "8"], "nowhere"),
        (["search", ".", "dgx-h100", "--gpus", "8"], "config.json"),
        (["list"], "kind"),
        (["list", "planets"], "planets"),
        (["explain", "llama-3.1-8b", "--gpus", "8"], "CLUSTER"),
        (["explain", "llama-3.1-8b", "dgx-h100"], "--gpus"),
        ([*EXPLAIN, "--tp", "1,2"], "'1,2'"),
        ([*EXPLAIN, "--tp", "3"], "3"),
        ([*EXPLAIN, "--tp", "2", "--pp", "2", "--dp", "4"], "16"),
        (["explain", "frontier.parquet", "--rank", "1"], "frontier.parquet"),
        (["explain", "frontier.parquet", "--rank", "0"], "'0'"),
        (["explain", "frontier.parquet", "--rank", "1", "--tp", "2", "--as", "llama"], "drop --as, --tp"),
        (["explain", "frontier.parquet", "dgx-h100", "--rank", "1"], "drop CLUSTER"),
        (["validate", "."], ".: is a folder"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(
    run: Callable[..., Outcome], tmp_path: Path, argv: list[str], named: str
) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("meshscout: error: ")
    assert err.count("\n") == 1
    assert named in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model.toml", "layers = "),
        ("model.toml", 'name = "m"\nlayerz = 3'),
        ("config.json", '{"hidden_size": '),
        ("config.json", "[]"),
    ],
)
def test_broken_model_files_are_named(run: Callable[..., Outcome], file: str, text: str) -> None:
    code, out, err = run("search", write(file, text), "dgx-h100", "--gpus", "8")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert file in err


def test_a_broken_frontier_file_is_named(run: Callable[..., Outcome]) -> None:
    code, _, err = run("explain", write("frontier.parquet", "not a parquet"), "--rank", "1")
    assert (code, err.count("\n")) == (2, 1)
    assert "frontier.parquet" in err


# -- search


def test_search_prints_a_table_and_writes_the_frontier(run: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, err = run(*SEARCH, "--top", "3")
    assert code == 0
    assert "MFU" in out
    assert "candidates" in out
    assert "frontier.parquet" in err
    assert [path.name for path in tmp_path.iterdir()] == ["frontier.parquet"]


def test_bounds_change_no_byte(run: Callable[..., Outcome], tmp_path: Path) -> None:
    counts = []
    for name, more in (("bounded", []), ("scored", ["--no-bounds"]), ("threads", ["--threads", "3"])):
        code, out, _ = run(*SEARCH, "-o", f"{name}.parquet", "--json", *more)
        assert code == 0
        counts.append(json.loads(out)["space"])
    assert counts[0]["bounded"] > 0 == counts[1]["bounded"]
    assert counts[0] == counts[2]
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_search_json_has_the_documented_keys_and_adds_up(run: Callable[..., Outcome]) -> None:
    code, out, _ = run(*SEARCH, "--json", "--all", "all.parquet")
    found = json.loads(out)
    assert code == 0
    assert set(found) == {"problem", "inputs", "warnings", "space", "solver", "frontier", "seconds"}
    assert found["problem"]["seq_len"] == 8192
    assert (found["problem"]["model"], found["problem"]["mfu_peak"]) == ("llama-3.1-8b", "bf16")
    space = found["space"]
    assert set(space) == {"candidates", "pruned", "bounded", "scored", "feasible"}
    assert space["candidates"] == sum(space["pruned"].values()) + space["bounded"] + space["feasible"]
    assert {"status", "skeletons"} <= set(found["solver"])
    assert [row["rank"] for row in found["frontier"]] == list(range(1, len(found["frontier"]) + 1))
    first = found["frontier"][0]
    assert first["tp"] * first["pp"] * first["cp"] * first["dp"] == 8
    assert isinstance(first["recompute"], str)
    assert sum(first["layers_per_stage"]) == 32


def test_limits_hold(run: Callable[..., Outcome]) -> None:
    code, out, _ = run(*SEARCH, "--json", "--tp", "2,4", "--recompute", "full", "--micro-batch", "1")
    rows = json.loads(out)["frontier"]
    assert code == 0
    assert {row["tp"] for row in rows} <= {2, 4}
    assert {(row["recompute"], row["micro_batch"]) for row in rows} == {("full", 1)}


def test_nothing_fits_is_exit_3_with_the_reason_on_stderr(run: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, err = run("search", "llama-3.1-405b", "dgx-h100", "--gpus", "8")
    assert (code, out) == (3, "")
    assert "memory" in err
    assert list(tmp_path.iterdir()) == []


def test_nothing_fits_leaves_a_file_and_says_that_it_is_not_of_this_search(run: Callable[..., Outcome]) -> None:
    assert run(*SEARCH, "--tp", "8").code == 0
    before = Path("frontier.parquet").read_bytes()
    assert "frontier.parquet is still that of an earlier search" in run("search", "llama-3.1-405b", *SEARCH[2:]).err
    assert Path("frontier.parquet").read_bytes() == before


def test_nothing_fits_has_its_json_with_an_empty_frontier(run: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, err = run("search", "llama-3.1-405b", "dgx-h100", "--gpus", "8", "--json")
    found = json.loads(out)
    assert (code, found["frontier"], found["space"]["feasible"]) == (3, [], 0)
    assert found["space"]["candidates"] == sum(found["space"]["pruned"].values())
    assert set(found) == {"problem", "inputs", "warnings", "space", "solver", "frontier", "seconds"}
    assert "memory_floor" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "explain llama-3.1-405b dgx-h100 --gpus 8",
        "why llama-3.1-405b dgx-h100 --gpus 8",
        "plan llama-3.1-405b dgx-h100 --gpus 8",
        "sweep llama-3.1-405b dgx-h100 --gpus 8 --tokens 1T",
    ],
)
def test_every_command_prints_its_json_where_nothing_fits(run: Callable[..., Outcome], command: str) -> None:
    code, out, err = run(*command.split(), "--json")
    assert code == 3
    assert isinstance(json.loads(out), dict)
    assert err.startswith("meshscout: ")


def test_progress_is_for_terminals_only(run: Callable[..., Outcome]) -> None:
    assert "\r" not in run(*SEARCH).err


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (("--tp", "16"), "tp 16 is neither"),
        (("--tp", "16"), "--any-domain"),
        (("--vpp", "1", "--schedule", "interleaved"), "raise vpp"),
    ],
)
def test_the_rule_that_a_limit_meets_is_explained_with_its_numbers(
    run: Callable[..., Outcome], limits: tuple[str, ...], said: str
) -> None:
    code, _, err = run("search", "llama-3.1-8b", "dgx-h100", "--gpus", "16", *limits)
    assert code == 3
    assert said in err


def test_a_frontier_of_any_name_is_explained(run: Callable[..., Outcome]) -> None:
    assert run(*SEARCH, "--tp", "8", "-o", "frontier").code == 0
    assert run("explain", "frontier").out == run("explain", "frontier", "--rank", "1").out != ""


def test_a_file_that_was_there_is_said_to_be_replaced(run: Callable[..., Outcome]) -> None:
    assert "wrote frontier.parquet" in run(*SEARCH).err
    assert "replaced frontier.parquet" in run(*SEARCH).err


# -- list


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("models", "deepseek-v3"),
        ("clusters", "gb200-nvl72"),
        ("gpus", "H800"),
        ("profiles", "megatron"),
        ("spaces", "wide"),
    ],
)
def test_list_names_what_is_shipped_and_its_sources(run: Callable[..., Outcome], kind: str, name: str) -> None:
    code, out, _ = run("list", kind)
    assert code == 0
    assert name in out
    entries = json.loads(run("list", kind, "--json").out)
    assert name in {entry["name"] for entry in entries}
    assert all(figure["source"] for entry in entries for figure in entry["figures"])


def test_the_list_says_that_mtp_is_counted_beside_the_parameters(run: Callable[..., Outcome]) -> None:
    assert "671.0 billion parameters, 37.6 active, 11.6 more for multi-token prediction" in run("list", "models").out


# -- help


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_the_help_are_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown = capsys.readouterr().out
    for call in EXAMPLES[command]:
        assert f"meshscout {command} {call}\n" in shown
        cli._parser().parse_args([command, *call.split()])


def test_the_help_names_the_recompute_sets_of_the_default_profile(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["search", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"megatron: {', '.join(choice.name for choice in load_profile('megatron').recompute if choice.declared)} ("
        in shown
    )


@pytest.mark.parametrize("word", ["causal", "full", "6n", "bf16", "Parquet", "TOKENS", "SEQUENCES"])
def test_the_help_explains_what_has_no_plain_name(capsys: pytest.CaptureFixture[str], word: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["search", "--help"])
    shown = capsys.readouterr().out
    assert word in shown
    assert "VALUE" not in shown


# -- the process


def meshscout(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = f"set -o pipefail; {sys.executable} -m search {command}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    done = meshscout("list gpus | true", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("why llama-3.1-405b dgx-h100 --gpus 8", 3, "no feasible layout: memory"),
        ("explain llama-3.1-405b dgx-h100 --gpus 8", 3, "what to change says: meshscout why"),
        ("search llama-3.1-405b dgx-h100 --gpus 8 --json", 3, "no feasible layout for llama-3.1-405b"),
        ("search llama-3.1-8b dgx-h100 --gpus 8 --tp 8", 0, "wrote frontier.parquet"),
    ],
)
def test_a_reader_that_has_left_changes_neither_code_nor_talk(
    tmp_path: Path, command: str, code: int, told: str
) -> None:
    done = meshscout(f"{command} | true", tmp_path)
    assert done.returncode == code
    assert told in done.stderr


@pytest.mark.parametrize(
    "command", ["--help", "--version", "why --help", "list spaces", "search llama-3.1-8b dgx-h100 --gpus 8 --tp 8"]
)
def test_results_that_cannot_be_written_are_an_error(tmp_path: Path, command: str) -> None:
    done = meshscout(f"{command} >/dev/full", tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith("error: standard output: cannot be written: No space left on device\n")
    if "8b" in command:
        assert pq.read_table(tmp_path / "frontier.parquet").num_rows > 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("search llama-3.1-8b dgx-h100 --gpus 8 -o f.html", "f.html: Parquet is written, not html"),
        ("search llama-3.1-8b dgx-h100 --gpus 8 --all a.csv", "a.csv: Parquet is written, not csv"),
        ("sweep llama-3.1-8b dgx-h100 --gpus 8 --tokens 1T -o s.csv", "s.csv: Parquet is written, not csv"),
        ("report frontier.parquet -o other.parquet", "other.parquet: HTML is written, not parquet"),
        ("validate --predictions p.json", "p.json: CSV is written, not json; name a .csv file"),
        ("calibrate runs.csv -o p.csv", "p.csv: TOML is written, not csv; name a .toml file"),
        ("calibrate runs.csv -o mine", "mine: a profile is read from a .toml file"),
    ],
)
def test_a_file_is_not_named_as_what_it_is_not(run: Callable[..., Outcome], command: str, said: str) -> None:
    code, out, err = run(*command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_an_interrupt_is_130_and_quiet(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("search.listing.print_list", interrupt)
    code, out, err = run("list", "gpus")
    assert (code, out, err) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.15, 0.3, 0.6])
def test_a_signal_while_modules_load_is_quiet(tmp_path: Path, number: signal.Signals, seconds: float) -> None:
    program = (
        "import os, threading, runpy, sys; sys.argv[0] = 'meshscout'\n"
        f"threading.Timer({seconds}, os.kill, (os.getpid(), {int(number)})).start()\n"
        "runpy.run_module('search', run_name='__main__')"
    )
    argv = [sys.executable, "-c", program, "search", "deepseek-v3", "hgx-h800", "--gpus", "2048"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode in (128 + number, -number)  # the signal itself ends what has not yet begun
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ImportError("initialization failed"), None])
def test_a_signal_that_a_library_hides_still_ends_the_command(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def hides(*_: object, **__: object) -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        if error:
            raise error

    monkeypatch.setattr("search.listing.print_list", hides)
    assert run("list", "gpus") == (130, "", "")


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("list gpus >&-", 0, ""),
        ("list gpus >&- 2>&- <&-", 0, ""),
        ("--help >&-", 0, ""),
        ("search nothing dgx-h100 --gpus 8 2>&-", 2, ""),
        ("search nothing dgx-h100 --gpus 8 2>/dev/full", 2, ""),
        ("search nothing dgx-h100 --gpus 8 >&-", 2, "meshscout: error: unknown model"),
        ("search llama-3.1-8b dgx-h100 --gpus 8 --tp 8 >&-", 0, "meshscout: wrote frontier.parquet"),
        ("search llama-3.1-8b dgx-h100 --gpus 8 --tp 8 >&- 2>&- <&-", 0, ""),
    ],
)
def test_closed_streams_change_no_exit_code(tmp_path: Path, command: str, code: int, told: str) -> None:
    done = meshscout(command, tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(told)
    assert "Traceback" not in done.stderr
    if "llama" in command:
        assert pq.read_table(tmp_path / "frontier.parquet").num_rows > 0


def test_a_full_disk_costs_the_file_and_not_the_table(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("search.frontier.to_parquet", full)
    done = run("search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tp", "8", "-o", str(tmp_path / "f.parquet"))
    assert done.code == 2
    assert "MFU" in done.out
    assert done.err.endswith("f.parquet: cannot be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_progress_ends_its_line_and_spares_dumb_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with suppress(KeyboardInterrupt), progress() as show:
        assert show is not None
        show(1, 2)
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "\r\033[K1 of 2 skeletons, 0 s left\n"
    monkeypatch.setenv("TERM", "dumb")
    with progress() as show:
        assert show is None


def test_a_fault_of_ours_is_exit_1(tmp_path: Path) -> None:
    program = "import sys, search.listing as m; m.print_list = None; from search.cli import main; sys.exit(main())"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", program, "list", "gpus"]
    assert subprocess.run(argv, env=environment, capture_output=True, check=False).returncode == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("meshscout 0.")


def test_a_memory_margin_keeps_layouts_that_fit_with_that_probability(tmp_path, capsys):
    """0.9 leaves what the profile's interval says that memory may exceed its prediction by; it is the default here."""
    frontier = tmp_path / "f.parquet"
    usable = load_cluster("dgx-h100").gpu.usable_memory
    rows = {}
    for margin in ("0.9", "0.5", "default"):
        typed = [] if margin == "default" else ["--memory-margin", margin]
        assert cli.main([*SEARCH, *typed, "-o", str(frontier), "--json"]) == 0
        rows[margin] = json.loads(capsys.readouterr().out)["frontier"]
    assert all(row["memory_high"] <= usable * (1 + 1e-9) for row in rows["0.9"] if row["calibrated"])
    assert any(row["memory_high"] > usable for row in rows["0.5"])
    assert rows["default"] == rows["0.9"]
    assert cli.main(["explain", str(frontier), "--json"]) == 0
