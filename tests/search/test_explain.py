"""`explain`: six steps that add up, broken rules named, and the same figures as the search."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search import cli

JOB = ("explain", "llama-3.1-70b", "dgx-h100", "--gpus", "64")
KEYS = (
    "problem", "model", "layout", "feasible", "violations", "place", "layers_per_stage",
    "layers_per_virtual_stage", "recompute_per_stage", "pipeline_layout", "balance_gain", "balanced", "rank_orders",
    "step_time", "mfu", "tokens_per_second_per_gpu", "communication_overhead", "memory", "memory_headroom",
    "step_time_low", "step_time_high", "memory_low", "memory_high", "calibrated", "uncalibrated_because",
    "memory_terms", "time_terms", "provenance", "warnings", "steps",
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
    assert all(
        tuple(row) == ("name", "formula", "model_formula", "hand", "corrected", "model", "unit", "why") for row in rows
    )
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
    assert max(map(len, lines[4:])) <= 120
    first = next(number for number, line in enumerate(lines) if line.startswith("2. TP"))
    rows = [line for line in lines[first:] if "weights at" in line]
    assert len({line.index("2 N /") for line in rows}) == 1


def test_no_speed_is_printed_for_a_layout_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--tp", "1"]) == 3
    out, err = capsys.readouterr()
    assert "MFU" not in out
    assert "tokens/s" not in out
    assert "Where the time goes" not in out
    assert "no speed is given" in out
    steps = out[out.index("1. fit check") :]
    assert not re.search(r"of the step|\d %", steps)
    assert re.search(r"weights +140 GB +131 GiB", steps)
    assert re.search(r"optimizer step +-  ", steps)
    assert (out.count("not feasible"), err.count("not feasible")) == (1, 0)


def test_a_rule_that_the_profile_breaks_leaves_the_speed(capsys: pytest.CaptureFixture[str]) -> None:
    """ZeRO-3 with a pipeline fits: what it would reach, could the profile launch it, is worth knowing."""
    assert cli.main([*JOB, "--tp", "8", "--pp", "4", "--zero", "3", "--recompute", "full"]) == 3
    assert "were it allowed: MFU" in capsys.readouterr().out


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
    assert "sequences of 4,096 tokens, as a config.json does not tell" in capsys.readouterr().err
    config.write_text(text.replace("128256", "64000"))
    capsys.readouterr()
    assert cli.main(["explain", "my.parquet", "--rank", "1"]) == 2
    assert "has changed" in capsys.readouterr().err


def test_a_rank_beyond_the_frontier_is_refused(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8"]) == 0
    capsys.readouterr()
    assert cli.main(["explain", "frontier.parquet", "--rank", "100000"]) == 2
    assert "rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        (*JOB, "--tp", "4", "--pp", "4"),
        (*JOB, "--tp", "4", "--pp", "4", "--zero", "2"),
        (*JOB, "--tp", "4", "--pp", "4", "--zero", "2", "--profile", "llama3-meta"),
        (*JOB, "--zero", "3", "--profile", "torchtitan"),
        (*JOB, "--zero", "3", "--precision", "fp8"),
        ("explain", "mixtral-8x7b", "dgx-h100", "--gpus", "64", "--ep", "4", "--tp", "2", "--precision", "fp8"),
        ("explain", "deepseek-v3", "hgx-h800", "--gpus", "2048", "--pp", "16", "--ep", "64", "--profile", "deepseek",
         "--precision", "fp8"),
    ],
)  # fmt: skip
def test_the_formulas_of_the_states_give_their_figures(explain: Explain, argv: tuple[str, ...]) -> None:
    """The printed formula, evaluated on the printed numbers, is the printed figure."""
    _, found = explain(*argv)
    rows = {row["name"]: row for step in found["steps"] for row in step["rows"]}
    names = {"n": "held n", "e": "held e", "w": "matrices w", "S": "shard group S", "R": "expert shard group R"}
    values = {letter: rows[name]["model"] for letter, name in names.items() if name in rows}
    for state in ("weights", "gradients", "optimizer"):
        formula = re.sub(r"[a-z0-9]+ ?[a-z]+: ", "", rows[state]["model_formula"])
        product = re.sub(r"(?<=[\d.]) (?=[\w(])", " * ", formula)
        assert eval(product, {}, values) == pytest.approx(rows[state]["model"], rel=1e-12), rows[state]["model_formula"]


def test_gradients_that_are_not_divided_are_not_said_to_be(explain: Explain) -> None:
    layout = (*JOB, "--tp", "4", "--pp", "4", "--zero", "2")
    for profile, said in (("megatron", "divided over 4 ranks"), ("llama3-meta", "whole until the step ends")):
        _, found = explain(*layout, "--profile", profile)
        [row] = [row for step in found["steps"] for row in step["rows"] if row["name"] == "gradients a GPU"]
        assert said in row["why"]


def test_the_formula_of_the_model_stands_beside_a_hand_formula_that_is_another(
    explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    """12 bytes of optimizer by hand are 8 with bf16 moments; experts divide by EP, not by TP."""
    job = ("explain", "mixtral-8x7b", "dgx-h100", "--gpus", "64", "--ep", "4", "--tp", "2", "--moments-dtype", "bf16")
    _, found = explain(*job)
    rows = {row["name"]: row for step in found["steps"] for row in step["rows"]}
    assert (rows["optimizer states"]["formula"], rows["optimizer states"]["model_formula"]) == ("12 N", "8 N")
    total, routed = rows["parameters N"]["model"], rows["routed parameters"]["model"]
    assert "routed / (EP ETP PP)" in rows["optimizer unsharded"]["model_formula"]
    assert rows["optimizer unsharded"]["model"] == pytest.approx(8 * ((total - routed) / 2 + routed / 4))
    cli.main([*job])
    assert "12 N; model: 8 N" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "stage"),
    [
        ((*JOB, "--tp", "8", "--pp", "4"), "stage 1 of 4"),
        ((*JOB, "--tp", "8"), "the only stage"),
        (("explain", "deepseek-v3", "hgx-h800", "--gpus", "256", "--pp", "16", "--ep", "16", "--profile", "deepseek",
          "--precision", "fp8"), "stages 2 and 15 of 16"),
    ],
)  # fmt: skip
def test_the_stage_that_the_memory_is_of_is_named(explain: Explain, argv: tuple[str, ...], stage: str) -> None:
    _, found = explain(*argv)
    assert f"on {stage}:" in found["steps"][5]["verdict"]


def test_rows_of_nothing_are_left_out_of_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*JOB, "--tp", "8", "--pp", "4"]) == 0
    out = capsys.readouterr().out
    assert "context parallel" not in out
    assert not re.search(r" 0 (B|s) +[a-z]", out.replace("logits", ""))


def test_each_term_shows_what_it_rests_on_and_its_time_at_the_speed_of_light(
    explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (*JOB, "--tp", "8", "--pp", "4")
    _, found = explain(*argv)
    assert set(found["provenance"]) == {
        f"{kind}_{term}" for kind in ("memory", "time") for term in found[f"{kind}_terms"]
    }
    gemm = found["provenance"]["time_gemm"]
    assert 0 < gemm["speed_of_light"] < found["time_terms"]["gemm"]
    assert set(gemm["rates"][0]) == {"name", "value", "unit", "tag", "source", "moves"}
    assert cli.main([*argv]) == 0
    out = capsys.readouterr()
    assert re.search(r"\n   gemm +[\d.]+ s +[\d.]+% +[\d.]+ s  fitted: \d+ runs of \d+ sources, .*\(gemm\)\n", out.out)
    assert re.search(r"\n   bubble +[\d.]+ \w+ +[\d.]+% +-  ", out.out)
    assert re.search(r"\n   overhead .* GiB +assumed  ", out.out)
    assert max(map(len, out.out.splitlines())) <= 120
    assert (out.err, found["warnings"]) == ("", [])


@pytest.mark.parametrize(
    ("cluster", "profile", "says"),
    [
        ("dgx-h200", "llama3-meta", r"llama3-meta on H200: no run, \d+ of \d+ assumed; .*of gemm "),
        ("dgx-h100", "deepspeed", "deepspeed on H100-SXM: no run, inherited from H100-SXM of profile torchtitan"),
        ("mi300x-8", "torchtitan", "torchtitan on MI300X: no run, inherited from H100-SXM"),
        ("dgx-h200", "megatron", "megatron on H200: no run, inherited from H100-SXM"),
    ],
)
def test_rates_without_a_run_are_warned_of_in_one_line(
    cluster: str, profile: str, says: str, explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("explain", "llama-3.1-8b", cluster, "--gpus", "8", "--profile", profile)
    _, found = explain(*argv)
    assert [bool(re.match(f"rates of profile {says}", warning)) for warning in found["warnings"]] == [True]
    cli.main([*argv])
    err = [line for line in capsys.readouterr().err.splitlines() if "rates of profile" in line]
    assert err == [f"meshscout: {found['warnings'][0]}"]


def test_the_memory_of_the_model_is_in_one_unit(capsys: pytest.CaptureFixture[str]) -> None:
    """GB stands in the chapter's columns only, which say so."""
    assert cli.main([*JOB, "--tp", "1"]) == 3
    out = capsys.readouterr().out
    verdicts = [line for line in out.splitlines() if line.startswith(("not feasible", "6."))]
    assert all("GiB" in line and " GB" not in line for line in verdicts)
    assert "1 GB = 1e9 B" in out


def test_the_mtp_module_is_said_to_be_counted(explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    job = ("explain", "deepseek-v3", "hgx-h800", "--gpus", "2048", "--pp", "16", "--ep", "64", "--profile", "deepseek")
    _, found = explain(*job)
    assert found["model"]["mtp_parameters"] == 11_610_068_224
    cli.main([*job])
    assert "15 x 4, 1, the last + 1 MTP module" in capsys.readouterr().out


def test_problem_and_layout_are_what_was_understood(explain: Explain) -> None:
    _, found = explain(*JOB, "--tp", "8", "--pp", "4", "--recompute", "full")
    assert (found["layout"]["dp"], found["layout"]["recompute"], found["layout"]["schedule"]) == (2, "full", "1f1b")
    assert (found["problem"]["gpus"], found["problem"]["global_batch"]) == (64, 512)


def test_a_file_is_explained_by_its_first_row_and_says_what_its_rows_are(
    explain: Explain, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--all", "all.parquet"]) == 0
    capsys.readouterr()
    assert explain("explain", "frontier.parquet") == explain("explain", "frontier.parquet", "--rank", "1")
    assert cli.main(["explain", "frontier.parquet"]) == 0
    assert "on the frontier" in capsys.readouterr().out
    assert cli.main(["explain", "all.parquet", "--rank", "2"]) == 0
    out = capsys.readouterr().out
    assert "of all feasible layouts" in out
    assert "on the frontier" not in out


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
