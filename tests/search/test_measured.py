"""`validate` and `calibrate` as a user types them."""

import csv
import errno
import json
import re
import sys
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
    assert re.search(r"^megatron +all +\d+ .*%$", out, re.MULTILINE)
    assert "the worst step times" in out
    assert "skipped 1 row: not stated: hidden 1, layers 1, heads 1, vocab 1; it is mbridge-card-n35l-gb200" in err
    assert max(map(len, out.splitlines())) <= 120
    worst = out[out.index("the worst step times") :].splitlines()[1:]
    off = [abs(float(re.search(r"([+-][\d.]+)%", line)[1])) for line in worst]
    assert len(worst) == 10
    assert off == sorted(off, reverse=True)


def table(tmp_path: Path, change) -> str:
    """The sample as another table: `change` is called with each of its rows."""
    rows = list(csv.DictReader(Path(SAMPLE).read_text().splitlines()))
    with (tmp_path / "runs.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | change(row) for row in rows)
    return str(tmp_path / "runs.csv")


def test_reasons_for_skipping_are_counted_and_json_keeps_each(tmp_path, capsys):
    path = table(tmp_path, lambda row: {"gpu": "TPU-v4"} if "llm-foundry" in row["framework"] else {})
    assert main(["validate", path, "--json"]) == 0
    out, err = capsys.readouterr()
    each = [it for it in json.loads(out)["skipped"] if "unknown GPU 'TPU-v4'" in it["why"]]
    assert len(each) > 5
    (line,) = [line for line in err.splitlines() if "TPU" in line]
    assert line.startswith(f"meshscout: skipped {len(each)} rows: unknown GPU 'TPU-v4'")
    assert line.endswith(f"; one is {each[0]['id']}")


def test_a_table_of_which_no_row_can_be_predicted_is_an_error(tmp_path, capsys):
    path = table(tmp_path, lambda row: {"layers": ""})
    assert main(["validate", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "not stated: layers " in err
    assert err.endswith(f"meshscout: error: {path}: no row can be predicted\n")
    assert main(["validate", path, "--json", "--predictions", str(tmp_path / "p.csv")]) == 2
    assert not (tmp_path / "p.csv").exists()
    assert json.loads(capsys.readouterr().out)["step_time"]["n"] == 0
    Path(path).write_text(Path(path).read_text().splitlines()[0] + "\n")
    assert main(["validate", path]) == 2
    assert "no rows under the header" in capsys.readouterr().err


def test_a_profile_is_scored_on_its_own_runs(tmp_path, capsys):
    """The one way to see what a calibrated profile is worth."""
    own = tmp_path / "mine.toml"
    own.write_text('base = "llm-foundry"\n[time]\ngemm = 0.2\n')
    assert main(["validate", SAMPLE, "--profile", str(own), "--json"]) == 0
    out, err = capsys.readouterr()
    mine = json.loads(out)
    assert list(mine["by_framework"]) == ["llm-foundry"]
    assert mine["step_time"]["bias"] > 0.3
    assert "is not that of profile mine; one is " in err
    assert main(["validate", SAMPLE, "--profile", "llm-foundry", "--json"]) == 0
    shipped = json.loads(capsys.readouterr().out)
    assert main(["validate", SAMPLE, "--json"]) == 0
    assert shipped["step_time"] == json.loads(capsys.readouterr().out)["by_framework"]["llm-foundry"]["step_time"]
    assert main(["validate", SAMPLE, "--profile", "llm-foundri"]) == 2
    assert "did you mean 'llm-foundry'" in capsys.readouterr().err


def test_progress_counts_runs_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["validate", SAMPLE]) == 0
    assert re.search(r"\d+ of \d+ runs, ", capsys.readouterr().err)


def test_validate_names_the_frameworks_that_another_profile_stands_for_in_one_line(tmp_path, capsys):
    names = iter(["home-made", "other", "home-made"] * 100)
    path = table(tmp_path, lambda row: {"framework": next(names)} if "llm-foundry" in row["framework"] else {})
    assert main(["validate", path, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"] > 0
    (line,) = [line for line in err.splitlines() if "no profile knows" in line]
    assert "'home-made' (8 runs), 'other' (4 runs): predicted with profile torchtitan, whose rates come from" in line
    assert main(["validate", path, "--profile", "megatron", "--json"]) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)["by_framework"]) == ["megatron"]
    assert "no profile knows" not in err


def test_predictions_are_one_row_a_run(tmp_path):
    path = tmp_path / "p.csv"
    assert main(["validate", SAMPLE, "--predictions", str(path)]) == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0]) == ["id", "step_time", "memory", "oom", "step_time_low", "step_time_high"]
    for row in rows:
        assert float(row["step_time_low"]) < float(row["step_time"]) < float(row["step_time_high"])
        assert float(row["memory"]) > 1e9
        assert row["oom"] in ("0", "1")


def test_predictions_that_cannot_be_written_cost_no_table(tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("search.files.os.replace", full)
    assert main(["validate", SAMPLE, "--predictions", str(tmp_path / "p.csv")]) == 2
    out, err = capsys.readouterr()
    assert "the worst step times" in out
    assert err.endswith("p.csv: cannot be written: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


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
