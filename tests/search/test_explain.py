"""`explain`: six steps that add up, broken rules named, and the same figures as the search."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search import cli

JOB = ("explain", "llama-3.1-70b", "dgx-h100", "--gpus", "64")
KEYS = (
    "model", "feasible", "violations", "place", "layers_per_stage", "step_time", "mfu", "tokens_per_second_per_gpu",
    "communication_overhead", "memory", "memory_headroom", "memory_terms", "time_terms", "steps",
)  # fmt: skip
STEPS = ["fit check", "TP", "PP", "DP", "communication", "memory verification"]

Explain = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Runs `explain ... --json` in an empty folder: exit code and the object."""
    monkeypatch.chdir(tmp_path)

    def call(*argv: str) -> tuple[int, dict[str, Any]]:
        code = cli.main([*argv, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def test_the_json_is_the_documented_one(explain: Explain) -> None:
    code, found = explain(*JOB, "--tp", "4", "--pp", "4", "--recompute", "full")
    assert code == 0
    assert tuple(found) == KEYS
    assert found["model"]["parameters"] == 70_553_706_496
    assert (found["feasible"], found["violations"], found["place"]) == (True, [], None)
    assert [step["name"] for step in found["steps"]] == STEPS
    assert all(step["verdict"] for step in found["steps"])
    rows = [row for step in found["steps"] for row in step["rows"]]
    assert all(tuple(row) == ("name", "formula", "hand", "corrected", "model", "unit", "why") for row in rows)
    assert {row["unit"] for row in rows} == {"1", "B", "s", "B/s", "FLOP", "FLOP/s"}


def test_the_terms_add_up(explain: Explain) -> None:
    _, found = explain(*JOB, "--tp", "4", "--pp", "4", "--recompute", "full")
    assert sum(found["memory_terms"].values()) == pytest.approx(found["memory"], rel=1e-12)
    assert sum(found["time_terms"].values()) == pytest.approx(found["step_time"], rel=1e-12)
    assert sum(found["layers_per_stage"]) == 80


def test_recomputation_trades_memory_for_time(explain: Explain) -> None:
    _, none = explain(*JOB, "--tp", "8", "--pp", "4", "--recompute", "none")
    _, full = explain(*JOB, "--tp", "8", "--pp", "4", "--recompute", "full")
    assert full["memory"] < none["memory"]
    assert full["step_time"] > none["step_time"]


def test_what_is_left_out_is_the_profiles_choice(explain: Explain) -> None:
    short = explain(*JOB, "--tp", "8", "--pp", "4")
    long = explain(
        *JOB, "--tp", "8", "--pp", "4", "--dp", "2", "--cp", "1", "--vpp", "1", "--schedule", "1f1b", "--zero", "1",
        "--dp-shard", "2", "--sequence-parallel", "true", "--micro-batch", "1", "--recompute", "none",
    )  # fmt: skip
    assert short == long


def test_a_layout_that_does_not_fit_is_explained_with_exit_3(explain: Explain) -> None:
    code, found = explain(*JOB, "--tp", "1")
    assert (code, found["feasible"]) == (3, False)
    assert "memory" in {broken["rule"] for broken in found["violations"]}
    assert found["memory_headroom"] < 0
    assert [step["name"] for step in found["steps"]] == STEPS


def test_a_broken_rule_is_named_with_its_numbers(explain: Explain) -> None:
    code, found = explain(*JOB, "--tp", "16", "--pp", "4")
    reasons = {broken["rule"]: broken["because"] for broken in found["violations"]}
    assert code == 3
    assert "16" in reasons["tp_domain"]
    code, found = explain(*JOB, "--tp", "16", "--pp", "4", "--any-domain")
    assert "tp_domain" not in {broken["rule"] for broken in found["violations"]}


def test_the_bound_on_memory_is_no_violation_of_a_layout_whose_need_is_known(explain: Explain) -> None:
    """ZeRO-3 with PP fits, but the profile does not launch it; the bound counts on what the profile launches."""
    job = ("explain", "llama-3.1-405b", "dgx-h100", "--gpus", "256", "--tp", "8", "--pp", "2", "--zero", "3")
    code, found = explain(*job, "--recompute", "full")
    assert (code, [broken["rule"] for broken in found["violations"]]) == (3, ["zero_with_pp"])
    assert found["memory_headroom"] > 0


def test_every_row_has_a_figure_and_a_correction_has_a_reason(explain: Explain) -> None:
    for argv in (("--tp", "8"), ("--tp", "2", "--pp", "8", "--vpp", "2"), ("--zero", "3"), ("--cp", "2", "--pp", "32")):
        _, found = explain(*JOB, *argv)
        for row in (row for step in found["steps"] for row in step["rows"]):
            assert any(row[kind] is not None for kind in ("hand", "corrected", "model")), row["name"]
            assert row["why"] or row["corrected"] is None, row["name"]


def test_a_layout_whose_experts_do_not_divide_is_explained(explain: Explain) -> None:
    """8 expert ranks on 36 data-parallel ones: no TP or PP beside this one has a legal layout, and none is claimed."""
    argv = (
        "explain",
        "mixtral-8x22b",
        "hgx-h800",
        "--gpus",
        "72",
        "--pp",
        "2",
        "--tp",
        "4",
        "--ep",
        "8",
        "--zero",
        "0",
    )
    code, found = explain(*argv)
    rows = {row["name"]: row for step in found["steps"] for row in step["rows"]}
    assert code == 3
    assert rows["min TP"]["model"] is None


def test_the_text_is_at_most_120_columns_wide_and_its_columns_line_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--tp", "8", "--pp", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[3:])) <= 120
    first = next(number for number, line in enumerate(lines) if line.startswith("2. TP"))
    rows = [line for line in lines[first:] if "weights at" in line]
    assert len({line.index("2 N /") for line in rows}) == 1


def test_no_speed_is_printed_for_a_layout_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--tp", "1"]) == 3
    out, err = capsys.readouterr()
    assert "MFU" not in out
    assert "memory" in err


@pytest.mark.parametrize("rank", ["1", "2"])
def test_a_row_of_a_frontier_is_explained_as_it_was_scored(
    explain: Explain, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    job = ("llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--any-domain")
    assert cli.main(["search", *job, "--json", "-o", "my.parquet"]) == 0
    frontier = json.loads(capsys.readouterr().out)["frontier"]
    code, found = explain("explain", "my.parquet", "--rank", rank)
    row = frontier[int(rank) - 1]
    assert code == 0
    assert found["place"] == {"rank": int(rank), "of": len(frontier)}
    for name in ("step_time", "mfu", "memory", "memory_headroom", "layers_per_stage"):
        assert found[name] == row[name]


def test_a_frontier_whose_model_has_changed_is_refused(
    explain: Explain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    text = json.dumps(SMALL)
    config.write_text(text)
    assert cli.main(["search", str(config), "dgx-h100", "--gpus", "8", "-o", "my.parquet"]) == 0
    config.write_text(text.replace("128256", "64000"))
    capsys.readouterr()
    assert cli.main(["explain", "my.parquet", "--rank", "1"]) == 2
    assert "has changed" in capsys.readouterr().err


def test_a_rank_beyond_the_frontier_is_refused(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8"]) == 0
    capsys.readouterr()
    assert cli.main(["explain", "frontier.parquet", "--rank", "100000"]) == 2
    assert "rows" in capsys.readouterr().err


SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
