"""`validate` and `calibrate` as a user types them."""

import csv
import json
from pathlib import Path

import pytest

from search.cli import main

SAMPLE = str(Path(__file__).parents[1] / "golden" / "runs_sample.csv")


def test_validate_prints_the_documented_object(capsys):
    assert main(["validate", SAMPLE, "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    keys = {"rows", "skipped", "step_time", "memory", "oom", "ranking", "macro", "by_framework", "by_source"}
    assert keys <= set(score)
    assert set(score["step_time"]) == {"n", "mape", "median_ape", "p90_ape", "bias"}
    assert score["memory"]["n"] > 0
    assert score["oom"]["true_positive"] + score["oom"]["false_negative"] > 0


def test_validate_shows_tables_and_the_worst_rows(capsys):
    assert main(["validate", SAMPLE]) == 0
    out, err = capsys.readouterr()
    assert "llm-foundry" in out
    assert "the worst step times" in out
    assert "not stated" in err


def test_validate_names_a_framework_that_another_profile_stands_for_once(tmp_path, capsys):
    path, text = tmp_path / "runs.csv", Path(SAMPLE).read_text()
    path.write_text(text.replace('"llm-foundry (Composer, PyTorch FSDP)"', "home-made"))
    assert main(["validate", str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"] > 0
    assert err.count("framework 'home-made' is not known: its runs are predicted with profile torchtitan") == 1
    assert err.count("is not known") == 1


def test_predictions_are_one_row_a_run(tmp_path):
    path = tmp_path / "p.csv"
    assert main(["validate", SAMPLE, "--predictions", str(path)]) == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0]) == ["id", "step_time", "memory", "oom", "step_time_low", "step_time_high"]
    for row in rows:
        assert float(row["step_time_low"]) < float(row["step_time"]) < float(row["step_time_high"])
        assert float(row["memory"]) > 1e9
        assert row["oom"] in ("0", "1")


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "no such file"), ("id,model\na,b\n", "'hidden', 'layers', "), ("", "not a CSV")],
)
def test_a_wrong_table_is_one_line(tmp_path, capsys, text, says):
    path = tmp_path / "runs.csv"
    if text is not None:
        path.write_text(text)
    assert main(["validate", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert str(path) in err
    assert says in err


def test_output_into_a_missing_folder_is_one_line(tmp_path, capsys):
    assert main(["validate", SAMPLE, "--predictions", str(tmp_path / "no" / "p.csv")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_calibrate_needs_runs_of_the_profile(tmp_path, capsys):
    assert main(["calibrate", SAMPLE, "--profile", "llama3-meta", "-o", str(tmp_path / "p.toml")]) == 2
    assert "llama3-meta" in capsys.readouterr().err
    assert not (tmp_path / "p.toml").exists()
