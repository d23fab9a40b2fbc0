"""`calibrate` as a user types it: a dozen runs of a new cluster, and what they are worth for its next runs."""

import csv
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.calibration.predict import predict, with_rates
from costmodel.calibration.runs import run_of
from costmodel.profile import load_profile
from search.cli import main

SAMPLE = str(Path(__file__).parents[1] / "golden" / "runs_sample.csv")
ROW = {
    "model": "llama-3.1-8b", "hidden": "4096", "layers": "32", "heads": "32", "kv_heads": "8", "ffn_hidden": "14336",
    "vocab": "128256", "gpu": "H100-SXM", "gpus": "64", "framework": "megatron-lm", "gbs": "256", "seq": "8192",
    "zero": "distopt", "recompute": "none", "source": "our cluster",
}  # fmt: skip
SLOW = {"gemm": 0.5, "network": 0.35}
"""The new cluster: the share of the GEMM tables that it sustains, and of the network's bandwidth."""
LAYOUTS = [(tp, pp, mbs) for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2)]


def write(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def measured() -> list[dict[str, str]]:
    """24 runs of the new cluster, 3 % noise: step times and memory that it would measure."""
    rows = [
        ROW | {"id": f"tp{tp}-pp{pp}-mbs{mbs}", "tp": str(tp), "pp": str(pp), "mbs": str(mbs)}
        for tp, pp, mbs in LAYOUTS
    ]
    runs = [run_of(row) for row in rows]
    time = replace(runs[0].problem.profile.time, **SLOW)
    found = predict([replace(run, problem=with_rates(run.problem, time)) for run in runs])
    noise = np.random.default_rng(5).normal(1.0, 0.03, len(rows))
    return [
        row | {"step_time_s": f"{it.step_time * each:.6g}", "peak_mem_gib": f"{1.1 * it.memory / 2**30:.6g}"}
        for row, it, each in zip(rows, found, noise, strict=True)
    ]


def score(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, float]]:
    capsys.readouterr()
    assert main(["validate", *arguments, "--json"]) == 0
    found: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)
    return found


def test_a_dozen_runs_of_a_new_cluster_improve_its_next_runs(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What calibrate is for. The other dozen is scored, once with a row of the first that is ten times off."""
    own, later = measured[::2], measured[1::2]
    wrong = own[3] | {"step_time_s": str(10 * float(own[3]["step_time_s"]))}
    rest, mine = write(tmp_path / "rest.csv", later), str(tmp_path / "mine.toml")
    before = score(capsys, rest)
    assert before["step_time"]["mape"] > 0.2
    for name, rows in (("clean", own), ("wrong", [*own[:3], wrong, *own[4:]])):
        assert main(["calibrate", write(tmp_path / f"{name}.csv", rows), "-o", mine]) == 0
        err = capsys.readouterr().err
        after = score(capsys, rest, "--profile", mine)
        assert after["step_time"]["mape"] < 0.06
        assert after["memory"]["mape"] < 0.5 * before["memory"]["mape"]
        assert ("stays +" in err or "stays -" in err) == (name == "wrong")
        assert (wrong["id"] in err) == (name == "wrong")
    gpu = run_of(own[0]).problem.cluster.gpu
    fitted = load_profile(mine).on(gpu)
    assert fitted.time.gemm == pytest.approx(SLOW["gemm"], rel=0.15)
    assert "12 runs of 1 source, mean error" in fitted.provenance["time.gemm"].source


def test_calibrate_says_what_each_rate_rests_on_and_what_runs_held_out_lose(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write(tmp_path / "own.csv", measured[::2])
    assert main(["calibrate", rows, "-o", str(tmp_path / "mine.toml")]) == 0
    out, err = capsys.readouterr()
    assert "H100-SXM, step time: 12 runs of 1 source\n" in out
    shipped = load_profile("megatron").on(run_of(measured[0]).problem.cluster.gpu).time.gemm
    (line,) = [line for line in out.splitlines() if line.startswith("  gemm ")]
    assert line.split()[1:] == [f"{shipped:.3g}", line.split()[2], "12", "runs", "of", "1", "source"]
    pair = r"\d+\.\d% -> \d+\.\d%"
    for rows in ("fitted", r"held out \(5 parts in turn\)"):
        errors = re.findall(rf"mean error as shipped -> fitted, rows {rows}: {pair} \(median {pair}\)", out)
        assert len(errors) == 2, rows
    (untold, *_) = re.findall(r"no run tells of: (.*?)\n  [a-z]", out, re.DOTALL)
    assert {"gemm_fp4", "grouped_gemm"} <= set(re.findall(r"\w+", untold))
    (left, *_) = re.findall(r"too few tell enough of: (.*?)\n  [a-z]", out, re.DOTALL)
    assert "attention_forward" in left
    assert "gemm," not in f"{untold},{left},".split()
    assert "warning" not in err


def test_few_runs_fit_few_rates_and_are_called_few(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    few = [row | {"peak_mem_gib": ""} for row in measured[:4]]
    assert main(["calibrate", write(tmp_path / "few.csv", few), "-o", str(mine)]) == 0
    assert "warning: H100-SXM, step time: 4 runs fit 1 of " in capsys.readouterr().err
    assert mine.read_text().count('tag = "fitted"') <= 1


def test_a_machine_beyond_what_rates_may_be_is_called_so(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fifth of its step times: GEMMs cannot run that fast, so the fit ends at their most and stays far off."""
    rows = [row | {"step_time_s": f"{0.2 * float(row['step_time_s']):.6g}", "peak_mem_gib": ""} for row in measured]
    mine = tmp_path / "mine.toml"
    assert main(["calibrate", write(tmp_path / "own.csv", rows[::2]), "-o", str(mine)]) == 0
    out, err = capsys.readouterr()
    (gemm,) = [line for line in out.splitlines() if line.startswith("  gemm ")]
    assert gemm.endswith("12 runs of 1 source, at its most")
    (large,) = [line for line in err.splitlines() if "error stays large" in line]
    assert "0 of 12 held-out runs lie within the interval of profile megatron (" in large
    assert "# the error stays large: 0 of 12 held-out runs" in mine.read_text()
    gpu = run_of(rows[0]).problem.cluster.gpu
    source = load_profile(str(mine)).on(gpu).provenance["time.gemm"].source
    assert "at its most, mean error " in source
    assert source.endswith(" (large)")


@pytest.mark.parametrize(
    ("count", "change", "says"),
    [
        (2, {}, "nothing to fit: H100-SXM, step time: 2 runs of 1 source, at least 3 are needed"),
        (9, {"oom": "1"}, "left out 9 rows out of memory: they count beside 3 runs with peak_mem_gib"),
        (9, {"trust": "low"}, "none of 9 rows can be fitted with profile megatron: left out 9 rows of trust low"),
        (9, {"step_time_s": ""}, "left out 9 rows with none of step_time_s, tokens_per_s_per_gpu, peak_mem_gib"),
        (9, {"gbs": "7"}, "skipped 9 rows: dp "),
        (9, {"id": ""}, "skipped 9 rows: not stated: id 9; one is line 2"),
        (9, {"id": "a"}, "id 'a' names 9 rows: each row is a run of its own"),
        (9, {"step_time_s": "4000"}, "times what is predicted (median): is step_time_s in seconds"),
        (0, {}, "no rows under the header"),
    ],
)
def test_where_nothing_can_be_fitted_one_line_says_why(
    count: int,
    change: dict[str, str],
    says: str,
    measured: list[dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [row | {"oom": "", "trust": "ok", "peak_mem_gib": ""} | change for row in measured]
    own = tmp_path / "own.csv"
    write(own, rows)
    own.write_text("\n".join(own.read_text().splitlines()[: 1 + count]) + "\n")
    assert main(["calibrate", str(own), "-o", str(tmp_path / "no.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"meshscout: error: {own}: ")
    assert says in line
    assert not (tmp_path / "no.toml").exists()


def test_memory_in_another_unit_is_left_out_of_the_profile(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"peak_mem_gib": f"{1024 * float(row['peak_mem_gib']):.6g}"} for row in measured[::2]]
    mine = tmp_path / "mine.toml"
    assert main(["calibrate", write(tmp_path / "own.csv", rows), "-o", str(mine)]) == 0
    out, err = capsys.readouterr()
    for told in (out, err):
        assert re.search(r"H100-SXM, memory: 12 runs of 1 source, 1,\d\d\d times what is predicted", told)
    gpu = run_of(rows[0]).problem.cluster.gpu
    own, shipped = load_profile(str(mine)).on(gpu), load_profile("megatron").on(gpu)
    assert own.memory == shipped.memory
    assert own.time != shipped.time
    assert own.interval.memory_high == shipped.interval.memory_high


def test_runs_that_the_shipped_rates_describe_change_nothing(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fit to noise would make the next run worse."""
    found = predict([run_of(row) for row in measured[:12]])
    noise = np.random.default_rng(2).normal(1.0, 0.04, 12)
    rows = [
        row | {"step_time_s": f"{it.step_time * each:.6g}", "peak_mem_gib": ""}
        for row, it, each in zip(measured[:12], found, noise, strict=True)
    ]
    mine = tmp_path / "mine.toml"
    assert main(["calibrate", write(tmp_path / "own.csv", rows), "-o", str(mine)]) == 0
    out = capsys.readouterr().out
    assert "not kept: " in out
    assert "no fit is kept: the file has the shipped rates" in out
    gpu = run_of(measured[0]).problem.cluster.gpu
    assert load_profile(str(mine)).on(gpu).time == load_profile("megatron").on(gpu).time


def test_a_framework_that_no_profile_knows_is_fitted_as_the_profile_that_is_named(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write(tmp_path / "own.csv", [row | {"framework": "home-made", "peak_mem_gib": ""} for row in measured[::4]])
    mine = str(tmp_path / "mine.toml")
    assert main(["calibrate", rows, "-o", mine, "--profile", "megatron"]) == 0
    before = score(capsys, rows, "--profile", "megatron")["step_time"]["mape"]
    assert score(capsys, rows, "--profile", mine)["step_time"]["mape"] < 0.5 * before


def test_ctrl_c_leaves_no_file(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write(tmp_path / "own.csv", measured[:12])
    (tmp_path / "out").mkdir()

    def interrupted(solve: Callable[..., object]) -> Callable[..., object]:
        def first(*arguments: object, **settings: object) -> object:
            os.kill(os.getpid(), signal.SIGINT)
            return solve(*arguments, **settings)

        return first

    from costmodel.calibration import fit

    solve = interrupted(fit.solver())
    monkeypatch.setattr(fit, "solver", lambda: solve)
    assert main(["calibrate", rows, "-o", str(tmp_path / "out" / "mine.toml")]) == 130
    assert capsys.readouterr() == ("", "")
    assert list((tmp_path / "out").iterdir()) == []


def test_without_scipy_one_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    for name in [name for name in sys.modules if name.startswith(("costmodel.calibration", "search.calibrated"))]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["calibrate", SAMPLE, "-o", str(tmp_path / "p.toml")]) == 2
    assert capsys.readouterr().err == f"meshscout: error: fits need SciPy: {sys.executable} -m pip install scipy\n"


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("llama3-meta", "none of "),
        ("megatorn", "did you mean 'megatron'"),
        ("own.toml", "a fit starts from a shipped profile: "),
    ],
)
def test_calibrate_needs_a_shipped_profile_and_its_runs(
    profile: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text('base = "megatron"\n')
    name = str(tmp_path / profile) if profile.endswith(".toml") else profile
    assert main(["calibrate", SAMPLE, "--profile", name, "-o", str(tmp_path / "p.toml")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "p.toml").exists()


def test_the_file_of_a_shipped_profile_is_made_from_rates_before_any_fit(
    measured: list[dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    rows = write(tmp_path / "own.csv", [row | {"peak_mem_gib": ""} for row in measured[:6]])
    assert main(["calibrate", rows, "-o", str(mine), "--unfitted"]) == 0
    assert "hopper: step time of 6 runs, mean error " in capsys.readouterr().out
    assert "[gpu.hopper.time]" in mine.read_text()
