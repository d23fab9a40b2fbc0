"""Every option of every command with values that cannot be meant: exit code 2, one line, and the option as typed."""

import argparse
import json
from collections.abc import Callable, Iterator

import pytest

from search import cli
from search.help import COMMANDS
from search.options import COLUMNS, _other
from tests.commands import Outcome

JOB = {"--gpus": "8"}
USUAL: dict[str, tuple[list[str], dict[str, str]]] = {
    "search": (["llama-2-7b", "dgx-a100"], JOB),
    "explain": (["llama-2-7b", "dgx-a100"], JOB),
    "why": (["llama-2-7b", "dgx-a100"], JOB),
    "plan": (["llama-2-7b", "dgx-a100"], JOB),
    "sweep": (["llama-2-7b", "dgx-a100"], JOB | {"--tokens": "1T"}),
    "report": (["frontier.parquet"], {}),
    "validate": ([], {}),
    "calibrate": (["runs.csv"], {"--output": "mine.toml"}),
    "list": (["models"], {}),
}
BAD = ("", " ", "text", "nan", "inf", "-1", "0", "1e400", "9" * 20, "1,,2", "=", "0x10", "é")
FILES = ("--output", "--all", "--predictions", "--dask")
"""What takes any name; an empty one is none."""
MEANT = {
    "0": ("--routed-nodes", "--headroom", "--zero", "--sequence-parallel", "--recompute-layers"),
    "9" * 20: ("--tokens", "--critical-batch", "--max-days", "--max-cost"),
}


def _options() -> Iterator[tuple[str, str]]:
    for command in COMMANDS:
        (parsers,) = (it for it in cli._parser(command)._actions if isinstance(it, argparse._SubParsersAction))
        for action in parsers.choices[command]._actions:
            if action.option_strings and action.nargs != 0:
                yield command, action.option_strings[-1]


@pytest.mark.parametrize(("command", "option"), list(_options()))
def test_an_error_names_the_option_as_it_was_typed(run: Callable[..., Outcome], command: str, option: str) -> None:
    words, usual = USUAL[command]
    for value in BAD[:2] if option in FILES else BAD:
        if option in MEANT.get(value, ()):
            continue
        typed = [f"{name}={text}" for name, text in (usual | {option: value}).items()]
        code, out, err = run(command, *words, *typed)
        assert (code, out, err.count("\n")) == (2, "", 1), (value, err)
        assert err.startswith("meshscout: error: "), value
        assert option in err, (value, err)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "explain llama-2-7b dgx-a100 --gpus 8 --tp 2 --pp 3",
            "--tp 2 x --pp 3 x --cp 1 = 6 does not divide the 8 GPUs",
        ),
        ("explain llama-2-7b dgx-a100 --gpus 8 --dp 3", "--tp 1 x --pp 1 x --cp 1 x --dp 3 = 3, not the 8 GPUs"),
        ("explain llama-2-7b dgx-a100 --gpus 8 --against tp=2,pp=16", "--against tp=2,pp=16: tp 2 x pp 16 x cp 1 = 32"),
        ("explain llama-2-7b dgx-a100 --gpus 8 --against dp=3", "--against dp=3: tp 1 x pp 1 x cp 1 x dp 3 = 3"),
        ("explain llama-2-7b dgx-a100 --gpus 8 --against tp=2,tp=4", "--against: tp is given twice"),
        ("explain llama-2-7b dgx-a100 --gpus 8 --against recompute=some", "--against recompute=some: recompute 'some'"),
        ("search llama-2-7b dgx-a100 --gpus 12", "--gpus 12: dgx-a100 has 8 GPUs a node"),
        ("search llama-2-7b dgx-a100 --gpus 8 --tp 3", "--tp 3: not possible"),
        ("search llama-2-7b dgx-a100 --gpus 8 --precision fp8", "--precision fp8: A100-SXM-80G has"),
        ("search llama-2-7b dgx-a100 --gpus 8 --headroom 2TB", "--headroom 1.82 TiB: A100-SXM-80G has"),
        ("search llama-2-7b dgx-a100 --gpus 8 --dp 8 --global-batch 7", "--global-batch 7 does not divide"),
        ("search llama-2-7b dgx-a100 --gpus 8 --expert-load 2", "--expert-load 2: llama-2-7b has no experts"),
        ("plan llama-2-7b dgx-a100 --gpus 8 --routed-nodes 4", "--routed-nodes 4: llama-2-7b has no experts"),
        (
            "sweep llama-2-7b,llama-3.1-8b dgx-a100 --gpus 8 --tokens 1T --routed-nodes 4",
            "--routed-nodes 4: llama-2-7b and llama-3.1-8b have no experts",
        ),
        (
            "sweep llama-2-7b dgx-a100 --gpus 8 --tokens 1T --threads 1 --workers 1",
            "--threads and --workers: choose one",
        ),
    ],
)
def test_inputs_that_do_not_go_together_are_named_as_typed(run: Callable[..., Outcome], typed: str, said: str) -> None:
    code, out, err = run(*typed.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_the_shard_group_may_be_all_ranks(run: Callable[..., Outcome]) -> None:
    job = ["llama-3.1-8b", "dgx-h100", "--gpus", "16", "--tp", "1", "--pp", "1", "--cp", "2", "--zero", "3"]
    found = json.loads(run("search", *job, "--dp-shard", "all", "--json").out)["frontier"]
    assert {(row["dp_shard"], row["dp"]) for row in found} == {(16, 8)}
    found = json.loads(run("explain", *job, "--dp-shard", "8", "--against", "dp-shard=all", "--json").out)
    assert (found["layout"]["dp_shard"], found["against"]["layout"]["dp_shard"]) == (8, 16)
    whole = run("explain", *job, "--dp-shard", "all", "--json").out
    assert json.loads(whole) == json.loads(run("explain", *job, "--json").out)
    assert "'some' is not all, or a positive integer" in run("search", *job, "--dp-shard", "some").err


def test_what_changes_nothing_may_be_typed_for_a_model_without_experts(run: Callable[..., Outcome]) -> None:
    typed = "why llama-2-7b dgx-a100 --gpus 8 --expert-load 1 --routed-nodes 0"
    assert run(*typed.split()).code == 0


def test_a_sweep_takes_what_one_of_its_models_looks_at(run: Callable[..., Outcome]) -> None:
    typed = "sweep llama-2-7b,mixtral-8x7b dgx-a100 --gpus 64 --tokens 1T --expert-load 1.2 --tp 8 --pp 1,2"
    code, out, _ = run(*typed.split())
    assert code == 0
    assert "llama-2-7b" in out
    assert "mixtral-8x7b" in out


@pytest.mark.parametrize("column", COLUMNS.values())
def test_against_takes_axes_by_their_column_and_by_their_option(column: str) -> None:
    option = {name: option for option, name in COLUMNS.items()}[column]
    value: object = {"recompute": "full", "schedule": "1f1b", "rank_order": "tp-cp-dp-pp"}.get(column, 1)
    for axis in (column, column.replace("_", "-"), option, option.replace("-", "_")):
        assert _other(f"{axis}={value}") == {column: value}


def test_a_rank_beside_a_model_is_what_is_wrong(run: Callable[..., Outcome]) -> None:
    code, _, err = run("explain", "llama-2-7b", "dgx-a100", "--gpus", "8", "--rank", "2")
    assert code == 2
    assert "drop --rank" in err
