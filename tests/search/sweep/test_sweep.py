"""A sweep: every combination is one search, what it costs adds up, and it ends with the same bytes however it ran."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from search.sweep import answers
from search.sweep.grid import fitting_batch
from search.sweep.rows import Row
from tests.commands import Outcome

ROOT = Path(__file__).parents[3]
SMALL = ("--tp", "1,2,4", "--pp", "1,2", "--cp", "1")
SWEEP = ("sweep", "llama-3.1-8b", "dgx-h100,dgx-a100", "--gpus", "8,16,32", "--tokens", "1T", *SMALL)


def rows(path: str = "sweep.parquet") -> list[Row]:
    return list(pq.read_table(path).to_pylist())


def test_each_combination_is_as_exhaustive_as_a_search(run: Callable[..., Outcome]) -> None:
    assert run(*SWEEP).code == 0
    assert run("search", "llama-3.1-8b", "dgx-a100", "--gpus", "16", *SMALL).code == 0
    alone = rows("frontier.parquet")
    own = [row for row in rows() if (row["cluster"], row["gpus"]) == ("dgx-a100", 16)]
    assert [{name: row[name] for name in alone[0]} for row in own] == alone


def test_a_job_that_measured_runs_cover_is_what_search_finds(run: Callable[..., Outcome]) -> None:
    """Such a job must fit with probability 0.9 by default, in a sweep as in a search; so must typed options."""
    for more in ((), ("--headroom", "4 GiB"), ("--memory-margin", "0.8", "--any-domain")):
        job = ("llama-3.1-70b", "dgx-h100", "--gpus", "64", "--tp", "8", "--pp", "1,2,4", *more)
        assert run("sweep", *job, "--tokens", "1T").code == 0
        assert run("search", *job).code == 0
        alone = rows("frontier.parquet")
        assert [{name: row[name] for name in alone[0]} for row in rows()] == alone


def test_a_full_disk_costs_the_file_of_a_sweep_and_not_its_table(
    run: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was searched stays in the journal, and is not searched again."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    job = ("sweep", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tokens", "1T", *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr("search.sweep.command.to_parquet", full)
        code, out, err = run(*job)
    assert code == 2
    assert "cheapest: " in out
    assert "error: sweep.parquet: cannot be written: No space left on device" in err
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.parquet.journal"]
    again = run(*job, "--resume")
    assert (again.code, again.out) == (0, out)
    assert "1 searches are done already" in again.err


def test_all_sizes_of_a_sweep_are_held_to_one_margin(run: Callable[..., Outcome]) -> None:
    """Runs cover Llama 3.1 70B on 64 H100 and not on 16,384, where 0.5 is the default."""
    job = ("llama-3.1-70b", "dgx-h100", "--tokens", "1T", "--tp", "8", "--pp", "4", "--cp", "1", "--vpp", "1", "--json")
    for sizes, margin in (("64", 0.9), ("16384", 0.5), ("64,16384", 0.5)):
        done = run("sweep", *job, "--gpus", sizes)
        assert json.loads(done.out)["memory_margin"] == margin
        assert ("measured runs cover 1 of the 2 sizes" in done.err) is ("," in sizes)
        told = json.loads(pq.read_schema("sweep.parquet").metadata[b"meshscout.provenance"])
        assert told["inputs"]["memory_margin"] == margin
    small = [row for row in rows() if row["gpus"] == 64]
    assert run("search", "llama-3.1-70b", "dgx-h100", "--gpus", "64", "--memory-margin", "0.5", *job[4:-1]).code == 0
    alone = rows("frontier.parquet")
    assert [{name: row[name] for name in alone[0]} for row in small] == alone
    typed = run("sweep", *job, "--gpus", "64,16384", "--memory-margin", "0.9")
    assert json.loads(typed.out)["memory_margin"] == 0.9
    assert "measured runs" not in typed.err


def test_the_figures_agree_with_a_hand_calculation(run: Callable[..., Outcome]) -> None:
    """1e12 tokens in steps of 512 x 8,192 tokens are 238,419 steps; energy is a node's 10.2 kW at PUE 1.2."""
    assert run(*SWEEP, "--price", "dgx-h100=2").code == 0
    row = next(row for row in rows() if (row["cluster"], row["gpus"]) == ("dgx-h100", 32))
    seconds = 238419 * row["step_time"]
    assert row["days_to_train"] == pytest.approx(seconds / 86400)
    assert row["gpu_hours"] == pytest.approx(seconds / 3600 * 32)
    assert row["cost"] == pytest.approx(2 * row["gpu_hours"])
    assert row["energy"] == pytest.approx(seconds * 4 * 10200 * 1.2)
    for name in ("days_to_train", "gpu_hours", "cost", "energy"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]
    assert row["days_to_train_high"] == pytest.approx(238419 * row["step_time_high"] / 86400)


def test_scaling_is_against_the_smallest_size_that_fits(run: Callable[..., Outcome]) -> None:
    assert run(*SWEEP).code == 0
    for cluster in ("dgx-h100", "dgx-a100"):
        own = [row for row in rows() if row["cluster"] == cluster]
        first = next(row for row in own if row["gpus"] == 8)
        assert first["scaling_efficiency"] == 1.0
        for row in own:
            share = row["tokens_per_second_per_gpu"] / first["tokens_per_second_per_gpu"]
            assert row["scaling_efficiency"] == pytest.approx(share)


def test_pareto_rows_are_beaten_by_none(run: Callable[..., Outcome]) -> None:
    assert run(*SWEEP).code == 0
    every = rows()
    kept = [row for row in every if row["pareto"]]
    assert kept
    for row in every:
        beaten = [
            other
            for other in kept
            if other["cost"] <= row["cost"]
            and other["days_to_train"] <= row["days_to_train"]
            and (other["cost"], other["days_to_train"]) != (row["cost"], row["days_to_train"])
        ]
        if row["pareto"]:
            assert not beaten
        else:
            assert beaten or any(
                (it["cost"], it["days_to_train"]) == (row["cost"], row["days_to_train"]) for it in kept
            )


def test_a_size_where_nothing_fits_is_a_row_with_its_reason(run: Callable[..., Outcome]) -> None:
    done = run("sweep", "llama-3.1-70b", "dgx-h100", "--gpus", "8,12,64", "--tokens", "1T", "--tp", "8")
    assert done.code == 0
    reasons = {row["gpus"]: row["reason"] for row in rows()}
    assert "memory_floor" in reasons[8]
    assert "8 GPUs a node" in reasons[12]
    assert reasons[64] is None
    assert {row["mfu"] for row in rows() if row["gpus"] == 8} == {None}
    assert "12  - " in done.out


def test_a_machine_without_a_price_is_named(run: Callable[..., Outcome]) -> None:
    job = ("llama-3.1-70b", "dgx-h100,gb300-nvl72", "--gpus", "64", "--tokens", "1T", "--tp", "8", "--cp", "1")
    done = run("sweep", *job, "--resume")
    assert "no price is known of gb300-nvl72: no cost there; --price" in done.out
    assert "sweep.parquet.journal: there is none to resume" in done.err
    assert "no price is known" not in run("sweep", *job, "--price", "gb300-nvl72=5").out


def test_a_reason_in_the_table_keeps_its_columns(run: Callable[..., Outcome]) -> None:
    job = ("llama-3.1-70b", "gb300-nvl72,dgx-h100", "--gpus", "64", "--tokens", "1T", "--tp", "8", "--cp", "1")
    lines = run("sweep", *job, "--max-cost", "1M").out.splitlines()
    head = next(line for line in lines if line.startswith("cluster"))
    ends = {line.index(" 64 ") + 3 for line in lines if line.startswith(("gb300", "dgx"))}
    assert ends == {head.index("GPUs") + 4}


def test_nothing_fits_anywhere(run: Callable[..., Outcome]) -> None:
    done = run("sweep", "llama-3.1-405b", "dgx-h100", "--gpus", "8,16", "--tokens", "1T")
    assert done.code == 3
    assert [row["gpus"] for row in rows()] == [8, 16]


def test_limits_leave_out_and_say_so(run: Callable[..., Outcome]) -> None:
    assert run(*SWEEP).code == 0
    days = {row["gpus"]: row["days_to_train"] for row in reversed(rows()) if row["cluster"] == "dgx-h100"}
    limit = (days[16] + days[32]) / 2
    done = run(*SWEEP, "--max-days", f"{limit:.3f}", "-o", "limited.parquet", "--json")
    assert done.code == 0, done.err
    kept = [row for row in rows("limited.parquet") if row["reason"] is None]
    assert all(row["days_to_train"] <= limit for row in kept)
    reason = next(row["reason"] for row in rows("limited.parquet") if row["gpus"] == 8)
    assert reason.startswith("max_days: ")
    found = {it["machine"][1]: it for it in json.loads(done.out)["fewest"]}["dgx-h100"]
    assert 16 < found["gpus"] <= 32
    assert found["gpus_low"] <= found["gpus"]


def test_what_ifs_are_an_axis(run: Callable[..., Outcome]) -> None:
    """Less bandwidth never trains faster, and the machine without a what-if is the one of its file."""
    setting = "cluster.levels.1.bandwidth=10GB/s,25GB/s,50GB/s"
    alone = ("sweep", "llama-3.1-8b", "dgx-h100", "--gpus", "16", "--tokens", "1T", *SMALL)
    assert run(*alone, "--set", setting).code == 0
    assert run(*alone, "-o", "usual.parquet").code == 0
    best = {row["cluster_levels_1_bandwidth"]: row["days_to_train"] for row in reversed(rows())}
    assert list(best) == [50e9, 25e9, 10e9]
    assert best[10e9] > best[25e9] >= best[50e9]
    assert best[50e9] == rows("usual.parquet")[0]["days_to_train"]


def test_the_batch_in_a_range_and_below_the_critical_one(run: Callable[..., Outcome]) -> None:
    alone = ("sweep", "llama-3.1-8b", "dgx-h100", "--gpus", "16", "--tokens", "1T", *SMALL)
    assert run(*alone, "--global-batch", "64:256").code == 0
    assert sorted({row["global_batch"] for row in rows()}) == [64, 128, 256]
    assert run(*alone, "--global-batch", "64:256", "--critical-batch", "1.1M").code == 0
    assert sorted({row["global_batch"] for row in rows()}) == [64, 128]
    assert run(*alone, "--critical-batch", "0.6M").code == 0
    assert sorted({row["global_batch"] for row in rows()}) == [64]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--price", "dgx=2"), "--price dgx"),
        (("--set", "levels.1.bandwidth=2"), "--set"),
        (("--set", "cluster.levels.1.bandwidth=25"), "levels.leaf.bandwidth = 25: 25 B/s is too little"),
        (("--set", "cluster.levels.9.size=8"), "levels.9"),
        (("--set", "cluster.pue=1.1", "--set", "cluster.pue=1.2"), "given twice"),
        (("--max-gpus", "4"), "--max-gpus 4"),
        (("--price", "dgx-h100=2EUR"), "$ per GPU-hour"),
        (("--price", "dgx-h100=2", "--set", "cluster.price=3"), "once"),
        (("--global-batch", "512", "--critical-batch", "1M"), "122 sequences"),
        (("--critical-batch", "8000"), "--critical-batch 8000 tokens: fewer than a sequence of 8192"),
        (("--max-days", "0"), "--max-days"),
        (("--workers", "2", "--dask", "tcp://localhost:1"), "choose one"),
        (("-o", "no/sweep.parquet"), "no/sweep.parquet"),
        (("--profile", "megatrom"), "megatrom"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    run: Callable[..., Outcome], tmp_path: Path, more: tuple[str, ...], named: str
) -> None:
    done = run(*SWEEP, *more)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert named in done.err
    assert list(tmp_path.iterdir()) == []


# -- however it runs, the same bytes


def command(*argv: str) -> list[str]:
    return [sys.executable, "-m", "search", *argv]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def wait_for(ready: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "never came"
        time.sleep(0.02)


@pytest.fixture
def usual(run: Callable[..., Outcome]) -> bytes:
    assert run(*SWEEP, "-o", "usual.parquet").code == 0
    return Path("usual.parquet").read_bytes()


@pytest.mark.parametrize("how", [("--threads", "1"), ("--threads", "3"), ("--workers", "2")])
def test_threads_and_processes(run: Callable[..., Outcome], usual: bytes, how: tuple[str, ...]) -> None:
    assert run(*SWEEP, *how).code == 0
    assert Path("sweep.parquet").read_bytes() == usual


def test_resumed_after_a_kill(run: Callable[..., Outcome], usual: bytes, tmp_path: Path) -> None:
    journal = tmp_path / "sweep.parquet.journal"
    process = subprocess.Popen(command(*SWEEP, "--threads", "1"), env=environment(), stderr=subprocess.DEVNULL)
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 2)
    process.kill()
    process.wait()
    assert not Path("sweep.parquet").exists()
    with journal.open("ab") as file:
        file.write(b'{"key": "cut sh')
    done = run(*SWEEP)
    assert done.code == 2
    assert "--resume" in done.err
    assert run(*SWEEP, "--resume").code == 0
    assert Path("sweep.parquet").read_bytes() == usual
    assert not journal.exists()


def test_interrupted_it_keeps_what_is_done(usual: bytes, run: Callable[..., Outcome], tmp_path: Path) -> None:
    journal = tmp_path / "sweep.parquet.journal"
    process = subprocess.Popen(
        command(*SWEEP, "--threads", "1"), env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert run(*SWEEP, "--resume").code == 0
    assert Path("sweep.parquet").read_bytes() == usual


@pytest.mark.parametrize(
    ("send", "number"), [(os.kill, signal.SIGINT), (os.killpg, signal.SIGINT), (os.kill, signal.SIGKILL)]
)
def test_no_worker_outlives_the_command(
    run: Callable[..., Outcome], send: Callable[[int, int], None], number: int
) -> None:
    """However often Ctrl-C is pressed, from the first import of a worker; stderr ends with the last that holds it."""
    process = subprocess.Popen(
        command(*SWEEP, "--workers", "2"), env=environment(), stderr=subprocess.PIPE, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_for(lambda: len(children.read_text().split()) == 3)  # and the tracker of the semaphores
    while process.poll() is None:
        send(process.pid, number)
        time.sleep(0.02)
    _, err = process.communicate(timeout=30)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert b"Traceback" not in err
        assert b"leaked" not in err


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two worker processes: its address, and the workers."""
    pytest.importorskip("distributed")
    told = tmp_path / "scheduler.json"
    quiet = {"env": environment(), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = [sys.executable, "-m", "dask"]
    with ExitStack() as stack:

        def begin(*argv: str) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen([*start, *argv], **quiet))  # type: ignore[call-overload]
            stack.callback(process.kill)
            return process

        begin("scheduler", "--port", "0", "--scheduler-file", str(told), "--no-dashboard", "--host", "127.0.0.1")
        wait_for(told.exists)
        address = json.loads(told.read_text())["address"]
        yield address, [begin("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny") for _ in range(2)]
        told.unlink()


def test_dask_with_a_worker_killed(
    run: Callable[..., Outcome], usual: bytes, dask: tuple[str, list[subprocess.Popen[bytes]]], tmp_path: Path
) -> None:
    address, workers = dask
    journal = tmp_path / "sweep.parquet.journal"
    process = subprocess.Popen(command(*SWEEP, "--dask", address), env=environment(), stdout=subprocess.DEVNULL)
    wait_for(lambda: journal.exists() and journal.read_bytes().count(b"\n") >= 1)
    workers[0].kill()
    assert process.wait(timeout=120) == 0
    assert Path("sweep.parquet").read_bytes() == usual


# -- the answers


def row(gpus: int, speed: float, days: float) -> Row:
    return {
        "model": "m", "cluster": "c", "gpus": gpus, "global_batch": 1, "reason": None, "mfu": 0.5, "cost": gpus * days,
        "tokens_per_second_per_gpu": speed / gpus, "days_to_train": days, "days_to_train_low": days * 0.9,
        "days_to_train_high": days * 1.1, "energy": 1.0,
    }  # fmt: skip


def test_the_knee_is_the_last_size_that_still_gains() -> None:
    """8 -> 16 gains log2(1.9) = 93 %, 16 -> 32 gains log2(1.5) = 58 %."""
    (knee,) = answers.knees([row(8, 1.0, 10), row(16, 1.9, 5.3), row(32, 2.85, 3.5)])
    assert (knee.row["gpus"], knee.met) == (16, True)
    assert knee.gain == pytest.approx(0.585, abs=0.001)
    (knee,) = answers.knees([row(8, 1.0, 10), row(16, 1.9, 5.3)])
    assert (knee.row["gpus"], knee.met) == (16, False)


def test_a_size_that_divides_badly_is_no_knee() -> None:
    """12 GPUs are slower than 8; from 8 to 16 the speed doubles all the same."""
    (knee,) = answers.knees([row(8, 1.0, 10), row(12, 0.9, 11), row(16, 2.0, 5), row(32, 3.9, 2.6)])
    assert (knee.row["gpus"], knee.met) == (32, False)
    assert knee.gain == pytest.approx(0.963, abs=0.001)


def test_sizes_between_take_a_batch_that_they_divide() -> None:
    assert fitting_batch(9216, 2048) == 2304
    assert fitting_batch(8192, 2048) == 2048
    assert fitting_batch(12, 512) == 576
    for gpus in range(8, 4096, 8):
        batch = fitting_batch(gpus, 512)
        assert 0.6 <= batch / 512 <= 1.5
        assert batch == 512 or batch % (gpus // (gpus & -gpus)) == 0


def test_the_fewest_gpus_come_with_the_interval() -> None:
    (found,) = answers.fewest([row(8, 1.0, 10.5), row(16, 2.0, 9.5), row(32, 4.0, 4.0)], 10.0)
    assert (found.low, found.gpus, found.high) == (8, 16, 32)
    (none,) = answers.fewest([row(8, 1.0, 10.5)], 5.0)
    assert (none.low, none.gpus, none.high) == (None, None, None)
    assert (found.smallest, none.smallest) == (False, False)
    assert answers.fewest([row(8, 1.0, 9.5)], 10.0)[0].smallest


def test_sizes_between_are_whole_nodes() -> None:
    assert answers.between([64, 128], 8, [False, True]) == [72, 80, 88, 96, 104, 112, 120]
    assert answers.between([8, 16], 8, [False, True]) == []
    assert answers.between([64, 128], 8, [True, True]) == []
    assert answers.between([64, 128], 8, [False, False]) == []
