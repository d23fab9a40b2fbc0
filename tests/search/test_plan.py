"""`plan`: the chapter's decision process leads to one layout that fits, each step with its numbers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from search import cli

JOBS = {
    "8b": ("llama-3.1-8b", "dgx-h100", "8"),
    "13b": ("llama-2-13b", "dgx-h100", "32"),
    "70b": ("llama-2-70b", "dgx-h100", "64"),
    "405b": ("llama-3.1-405b", "dgx-h100", "256"),
    "mixtral": ("mixtral-8x7b", "dgx-h100", "128"),
}

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `plan ... --json`: exit code and the object."""

    def call(model: str, cluster: str, gpus: str, *more: str) -> tuple[int, dict[str, Any]]:
        code = cli.main(["plan", model, cluster, "--gpus", gpus, *more, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


def degrees(layout: dict[str, Any]) -> tuple[int, ...]:
    return tuple(layout[axis] for axis in ("tp", "pp", "dp", "zero_stage"))


@pytest.mark.parametrize(
    ("job", "found"),
    [("8b", (1, 1, 8, 3)), ("13b", (1, 1, 32, 3)), ("70b", (8, 1, 8, 1))],
)
def test_dense_models_get_the_chapters_layout(plan: Run, job: str, found: tuple[int, ...]) -> None:
    """FSDP over all GPUs where the weights fit one, TP over a node and ZeRO-1 where they do not."""
    code, made = plan(*JOBS[job])
    assert code == 0
    assert degrees(made["layout"]) == found


def test_a_pipeline_that_does_not_fit_is_raised_until_it_does(plan: Run) -> None:
    """The chapter stops at PP 2 and turns to ZeRO-3, which the profile does not run with pipelines."""
    code, made = plan(*JOBS["405b"])
    assert code == 0
    assert made["layout"]["tp"] == 8
    assert made["layout"]["pp"] > 2
    assert made["layout"]["zero_stage"] == 1
    (step,) = (step for step in made["steps"] if step["name"] == "PP")
    assert "raised from 2" in step["because"]


@pytest.mark.parametrize("job", JOBS)
def test_the_plan_is_feasible_and_no_better_than_the_best(plan: Run, job: str) -> None:
    code, made = plan(*JOBS[job])
    layout, best, cost = made["layout"], made["best"], made["cost"]
    assert code == 0
    assert layout["memory_headroom"] >= 0
    assert layout["tp"] * layout["pp"] * layout["dp"] == int(JOBS[job][2])
    assert layout["mfu"] <= best["mfu"]
    assert cost["mfu"] == layout["mfu"] - best["mfu"]
    assert cost["step_time"] == layout["step_time"] / best["step_time"] - 1
    assert cost["memory"] == pytest.approx(layout["memory"] - best["memory"])
    assert all(any(digit in step["because"] for digit in "0123456789") for step in made["steps"])


def test_experts_are_divided_four_to_a_gpu(plan: Run) -> None:
    code, made = plan("deepseek-v3", "hgx-h800", "2048", "--profile", "deepseek", "--precision", "fp8")
    assert code == 0
    assert (made["layout"]["tp"], made["layout"]["ep"]) == (1, 64)


def test_fewer_gpus_than_four_experts_each_need_take_what_there_is(plan: Run) -> None:
    """128 experts on 8 GPUs: EP 8 with 16 experts a GPU, not EP 1."""
    code, made = plan("qwen3-30b-a3b", "dgx-h100", "8")
    assert code == 0
    assert made["layout"]["ep"] == 8


def test_the_layout_is_the_one_that_explain_scores(plan: Run, capsys: pytest.CaptureFixture[str]) -> None:
    _, made = plan(*JOBS["70b"])
    layout = made["layout"]
    options = [f"--{axis.replace('_', '-')}={layout[axis]}" for axis in ("tp", "pp", "micro_batch", "recompute")]
    model, cluster, gpus = JOBS["70b"]
    assert (
        cli.main(["explain", model, cluster, "--gpus", gpus, *options, f"--zero={layout['zero_stage']}", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["step_time"], found["memory"]) == (layout["step_time"], layout["memory"])


def test_nothing_fits_is_exit_3_with_the_reason(plan: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = plan("llama-3.1-405b", "dgx-h100", "8")
    assert (code, made["layout"], made["best"], made["cost"]) == (3, None, None, None)
    assert cli.main(["plan", "llama-3.1-405b", "dgx-h100", "--gpus", "8"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "the least that any of them needs is" in err
    assert "of 79.1 GiB" in err


def test_the_best_is_shown_where_the_rule_of_thumb_ends_without_a_layout(plan: Run) -> None:
    """Sequences of a million tokens need context parallelism, which the chapter does not know."""
    code, made = plan("llama-3.1-8b", "dgx-h100", "32", "--seq-len", "1048576", "--global-batch", "8")
    assert (code, made["layout"], made["cost"]) == (0, None, None)
    assert made["best"]["memory_headroom"] >= 0
    assert made["steps"][-1]["choice"] == "none"


def test_the_text_has_every_step_and_both_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "llama-3.1-8b", "dgx-h100", "--gpus", "8"]) == 0
    out = capsys.readouterr().out
    for name in ("fit check", "TP", "PP", "DP", "ZeRO", "recompute", "micro-batch"):
        assert f". {name} " in out
    assert "#1 is the plan, #2 is the search's best" in out
    assert "the rule of thumb costs" in out


def test_a_framework_without_tensor_parallelism_gets_a_plan_without_it(plan: Run) -> None:
    code, made = plan("llama-3.1-70b", "dgx-h100", "64", "--profile", "llm-foundry")
    assert code == 0
    assert (made["layout"]["tp"], made["layout"]["pp"], made["layout"]["zero_stage"]) == (1, 1, 3)
