"""What a search took where nothing was typed is printed, in the JSON and in the file; what was typed is no default."""

import json
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from search import cli
from search.typed import command_line
from tests.commands import Outcome

SEARCH = ("search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tp", "8")


def shown(out: str) -> str:
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("defaults: "))
    assert all(len(line) <= 120 for line in lines[first : first + 2])
    assert lines[first + 2].startswith("best layout"), "two lines at most"
    return " ".join(line.strip() for line in lines[first : first + 2])


def test_defaults_are_printed_and_what_was_typed_is_none(run: Callable[..., Outcome]) -> None:
    found = shown(run(*SEARCH, "--seq-len", "8192", "--grad-dtype", "fp32").out)
    used = {name: it["value"] for name, it in json.loads(run(*SEARCH, "--json").out)["inputs"].items()}
    assert found.startswith("defaults: global-batch 512, precision bf16, moments-dtype fp32, flops-convention causal, ")
    assert found.endswith(
        f"memory-margin {used['memory_margin']}, profile megatron on {used['rates_of']}, space default, "
        "zero 0-3, with pp 0-1"
    )


def test_a_search_that_finds_nothing_says_its_defaults_too(run: Callable[..., Outcome]) -> None:
    code, _, err = run("search", "llama-3.1-405b", "dgx-h100", "--gpus", "8", "--precision", "fp8")
    assert code == 3
    assert "\ndefaults: seq-len 8192, global-batch 512, grad-dtype fp32" in err


@pytest.mark.parametrize("option", ["seq-len", "global-batch", "precision", "zero"])
def test_json_and_file_say_value_and_whether_it_is_a_default(run: Callable[..., Outcome], option: str) -> None:
    usual = {"seq-len": "8192", "global-batch": "512", "precision": "bf16", "zero": "0,1,2,3"}[option]
    name = "zero_stages" if option == "zero" else option.replace("-", "_")
    for argv, default in ((SEARCH, True), ((*SEARCH, f"--{option}", usual), False)):
        inputs = json.loads(run(*argv, "--json").out)["inputs"]
        assert inputs[name]["default"] is default
        assert json.dumps(inputs[name]["value"]).replace(" ", "").strip('[]"') == usual
        metadata = pq.read_schema("frontier.parquet").metadata[b"meshscout.provenance"]
        assert json.loads(metadata)["inputs"]["settings"] == inputs


def test_experts_have_defaults_of_their_own(run: Callable[..., Outcome]) -> None:
    assert shown(run("search", "qwen3-30b-a3b", "dgx-h100", "--gpus", "16").out).endswith("zero 0-3, with pp 0-1")
    moe = run("search", "qwen3-30b-a3b", "dgx-h100", "--gpus", "16", "--tp", "8", "--json").out
    assert {"expert_load", "routed_nodes"} <= set(json.loads(moe)["inputs"])
    assert "expert_load" not in json.loads(run(*SEARCH, "--json").out)["inputs"]


def test_a_search_without_a_run_behind_its_rates_says_so_in_one_line(run: Callable[..., Outcome]) -> None:
    argv = ("search", "llama-3.1-8b", "mi300x-8", "--gpus", "8", "--profile", "torchtitan")
    code, _, err = run(*argv)
    [line] = [line for line in err.splitlines() if "rates" in line]
    assert (code, line.split(",")[0]) == (0, "meshscout: rates of profile torchtitan on MI300X: no run")
    assert json.loads(run(*argv, "--json").out)["warnings"] == [line.removeprefix("meshscout: ")]
    assert json.loads(run(*SEARCH, "--json").out)["warnings"] == []


def test_a_command_that_is_suggested_holds_what_was_typed_alone() -> None:
    parsed = vars(cli._parser("why").parse_args(["why", *SEARCH[1:], "--precision", "fp8"]))
    assert command_line("why", parsed) == "meshscout why llama-3.1-8b dgx-h100 --gpus 8 --precision fp8 --tp 8"
