"""`--headroom`: memory that a layout must leave free, in the search, in explain and in why."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.errors import InputError
from search import cli
from search.engine import search
from search.rule import violations
from search.rules import rules
from search.space import load_space
from tests.strategies import problem

JOB = ("llama-3.1-8b", "dgx-h100", "--gpus", "8")
GIB = 2.0**30


def test_the_search_keeps_the_layouts_that_leave_it_free() -> None:
    """Floors, mask and memory rule hold the same budget, else the account has no sum."""
    case, asked = problem(gpus=8), problem(gpus=8, headroom=40 * GIB)
    free, kept = (search(it, load_space(it), keep_all=True, threads=1) for it in (case, asked))
    assert kept.estimate is not None
    assert kept.estimate.memory_headroom.min() >= 40 * GIB
    assert 0 < kept.account.feasible < free.account.feasible
    assert kept.account.candidates == free.account.candidates


def test_the_rule_names_what_must_stay_free() -> None:
    case = problem(gpus=8, headroom=4 * GIB)
    row = {"memory_headroom": int(3 * GIB)}
    [(name, because)] = violations(rules(case, load_space(case)), row)
    assert (name, because) == ("memory", "needs 76.1 GiB of 79.1 GiB usable, 4 GiB to stay free")
    assert violations(rules(case, load_space(case)), {"memory_headroom": int(4 * GIB)}) == []


def test_a_frontier_remembers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["search", *JOB, "--headroom", "40 GiB"]) == 0
    capsys.readouterr()
    assert cli.main(["explain", "frontier.parquet", "--rank", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory_headroom"] >= 40 * GIB


def test_explain_holds_a_layout_against_it(capsys: pytest.CaptureFixture[str]) -> None:
    fits = (*JOB, "--zero", "1", "--recompute", "full")
    assert cli.main(["explain", *fits]) == 0
    capsys.readouterr()
    assert cli.main(["explain", *fits, "--headroom", "60 GiB"]) == 3
    out, err = capsys.readouterr()
    assert "of 79.1 GiB, 60 GiB to stay free on the only stage" in out
    assert "it fits" not in out
    assert "--headroom 64424509440 " in err


def test_why_says_that_less_headroom_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", *JOB, "--headroom", "70GiB", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert "of 79.1 GiB, 70 GiB to stay free: " in found["core"][0]["because"]
    assert {"headroom": [70 * GIB, pytest.approx(56.8 * GIB)]} in [fix["change"] for fix in found["fixes"]]
    assert cli.main(["why", *JOB, "--headroom", "70GiB"]) == 3
    assert "headroom 70 GiB -> 56.8 GiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("4", "'4' is 4 bytes; write a unit, for example \"4 GiB\""),
        ("4 GB/s", "is a unit of another kind"),
        ("-1GiB", "headroom"),
        ("90GiB", "headroom 90 GiB: H100-SXM has 79.1 GiB usable"),
    ],
)
def test_a_wrong_size_is_one_line(size: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", *JOB, f"--headroom={size}"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_a_negative_headroom_is_refused() -> None:
    with pytest.raises(InputError, match="headroom must be 0 bytes or more"):
        replace(problem().workload, headroom=-1.0)
