"""`list`: one entry or all, from what is shipped or a user's file, in lines that a terminal can show."""

import json
from pathlib import Path

import pytest

from costmodel.profile import load_profile
from search import cli

KINDS = ("models", "clusters", "gpus", "profiles", "spaces")


@pytest.mark.parametrize("kind", KINDS)
def test_lines_are_at_most_120_columns_wide(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", kind]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 120


@pytest.mark.parametrize("kind", KINDS)
def test_one_entry_is_that_of_the_whole_list(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list", kind, "--json"])
    entries = json.loads(capsys.readouterr().out)
    assert cli.main(["list", kind, entries[-1]["name"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == entries[-1:]


@pytest.mark.parametrize(
    ("kind", "text", "figure"),
    [
        ("models", 'base = "llama-3.1-8b"\nlayers = 40\n', "40"),
        ("clusters", 'base = "dgx-h100"\ngpu = "H200"\n[levels.leaf]\nbandwidth = "33 GB/s"\n', "33 GB/s"),
        (
            "gpus",
            'memory = "90 GB"\nmemory_bandwidth = "3 TB/s"\npower = "321 W"\npeak = {bf16 = "900 TFLOP/s"}\n',
            "321 W",
        ),
        ("profiles", 'base = "megatron"\n[time]\ngemm = 0.7654\n', "0.7654"),
        ("spaces", "[axes]\ntp = [1, 2, 16]\n", "1, 2, 16"),
    ],
)
def test_a_users_file_is_shown(
    kind: str, text: str, figure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert cli.main(["list", kind, str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mine: ")
    assert figure in out


def test_a_profile_shows_the_rates_fitted_for_each_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "profiles", "megatron", "--json"]) == 0
    [entry] = json.loads(capsys.readouterr().out)
    shown = {figure["label"]: figure for figure in entry["figures"]}
    for gpu, rates in load_profile("megatron").by_gpu.items():
        gemm = shown[f"gpu.{gpu}.time.gemm"]
        assert float(gemm["text"]) == rates.time.gemm
        assert gemm["tag"] == "fitted"
        assert " runs of " in gemm["source"]


def test_a_users_profile_does_not_show_rates_fitted_for_a_shipped_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "megatron.toml"
    path.write_text('base = "megatron"\n')
    assert cli.main(["list", "profiles", str(path)]) == 0
    assert "fitted" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_one_line(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("no-such-thing", "no-such.toml"):
        assert cli.main(["list", kind, name]) == 2
        err = capsys.readouterr().err
        assert name in err
        assert err.count("\n") == 1
