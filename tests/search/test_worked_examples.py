"""The four layouts of the worked-examples chapter: every figure that it gets right stands under `hand`, every one that
it gets wrong has the right one beside it.

One row a figure: step's row, then what the chapter's formula gives and what is right (None: nothing is wrong with it).
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from search import cli

LAYOUTS = {
    "8b": "llama-3.1-8b dgx-h100 --gpus 8 --zero 3 --micro-batch 4 --recompute full --seq-len 4096",
    "70b": "llama-2-70b dgx-h100 --gpus 64 --tp 8 --micro-batch 2 --recompute full --seq-len 2048",
    "405b": "llama-3.1-405b dgx-h100 --gpus 256 --tp 8 --pp 2 --zero 3 --recompute full --seq-len 4096 "
    "--global-batch 512",
    "671b": "deepseek-v3 hgx-h800 --gpus 2048 --pp 16 --ep 64 --profile deepseek --precision fp8",
}

FIGURES: list[tuple[str, str, float | None, float | None]] = [
    ("8b", "parameters N", 8e9, None),
    ("8b", "states", 128e9, None),
    ("8b", "states over all GPUs", 16e9, None),
    ("8b", "ZeRO-3 traffic", 35.56e-3, 113.5e-3),
    ("8b", "ZeRO-3 volumes", 2, 3),
    ("8b", "NVLink bandwidth", 900e9, 450e9),
    ("8b", "parameters a GPU", 2e9, None),
    ("8b", "gradients a GPU", 2e9, None),
    ("8b", "optimizer states", 96e9, None),
    ("8b", "optimizer a GPU", 12e9, None),
    ("8b", "activations", 4e9, 4.29e9),
    ("8b", "logits", None, 4.2e9),
    ("8b", "logits, eager loss", None, 29.4e9),
    ("8b", "memory", 23e9, 27.93e9),
    ("8b", "memory, fp32 gradients", 25e9, 29.93e9),
    ("8b", "peak", 7912e12, None),
    ("8b", "backward a micro-batch", 0.1, 1.06),
    ("8b", "compute a step", 6 * 8e9 * 1024 * 4096, None),
    ("8b", "largest micro-batch", 16, None),
    ("8b", "MFU, at least", 0.45, 0.33),
    ("8b", "MFU, at most", 0.55, 0.45),
    ("70b", "all weights", 140e9, None),
    ("70b", "weights over memory", 1.75, 0.0701),
    ("70b", "TP argument", 2.5, None),
    ("70b", "min TP", 4, 3),
    ("70b", "weights at min TP", 35e9, None),
    ("70b", "weights at this TP", 17.5e9, None),
    ("70b", "DP", 8, None),
    ("70b", "TP message", 64e6, 67.1e6),
    ("70b", "all-reduces a layer", 2, 4),
    ("70b", "TP all-reduce a layer", 0.2844e-3, 1.27e-3),
    ("70b", "TP total", 22.76e-3, 101.6e-3),
    ("70b", "node bandwidth", 400e9, 50e9),
    ("70b", "DP all-reduce", 87.5e-3, 612.5e-3),
    ("70b", "backward a micro-batch", 0.5, 0.29),
    ("70b", "efficiency", 0.957, 0.74),
    ("70b", "communication overhead", 0.0435, 0.2595),
    ("70b", "optimizer unsharded", 105e9, None),
    ("70b", "optimizer a GPU", 13.125e9, None),
    ("70b", "activations", 3e9, 0.67e9),
    ("70b", "memory", 54.1e9, 71.6e9),
    ("70b", "memory, fp32 gradients", 71.6e9, None),
    ("70b", "MFU, at least", 0.40, None),
    ("70b", "MFU, at most", 0.50, None),
    ("405b", "all weights", 810e9, None),
    ("405b", "weights at this TP", 101.25e9, None),
    ("405b", "PP argument", 1.82, 1.808),
    ("405b", "min PP", 2, None),
    ("405b", "weights of a stage", 50.625e9, None),
    ("405b", "DP", 16, None),
    ("405b", "TP total, all layers", 71.7e-3, 320e-3),
    ("405b", "TP total", 35.8e-3, 160e-3),
    ("405b", "P2P a micro-batch", 2.56e-3, 2.684e-3),
    ("405b", "bubble over ideal", 1 / 32, None),
    ("405b", "bubble share", 1 / 32, 1 / 33),
    ("405b", "DP all-reduce", 253e-3, 1.898),
    ("405b", "ZeRO-3 traffic", 253e-3, 2.848),
    ("405b", "exposed a micro-batch", 38.4e-3, 163e-3),
    ("405b", "efficiency", 0.969, 0.837),
    ("405b", "communication overhead", 0.031, 0.188),
    ("405b", "parameters a GPU", 6.33e9, 3.164e9),
    ("405b", "gradients a GPU", 3.164e9, None),
    ("405b", "optimizer unsharded", 303.75e9, None),
    ("405b", "optimizer a GPU", 18.984e9, None),
    ("405b", "gathered", 0.797e9, None),
    ("405b", "activations", 3e9, 2.11e9),
    ("405b", "memory", 35.24e9, 32.1e9),
    ("405b", "memory, fp32 gradients", 38.4e9, 35.3e9),
    ("405b", "states without ZeRO-3", 101.25e9, 38e9),
    ("405b", "MFU, at least", 0.35, None),
    ("405b", "MFU, at most", 0.45, None),
    ("671b", "parameters N", 671e9, None),
    ("671b", "active parameters", 37e9, None),
    ("671b", "experts a GPU", 4, None),
    ("671b", "DP", 128, None),
    ("671b", "expert data parallel", 128, 2),
    ("671b", "parameters an expert", 264.2e6, 44.04e6),
    ("671b", "routed parameters", 3.92e12, 653.9e9),
    ("671b", "parameters not routed", 11e9, 17.12e9),
    ("671b", "experts a token", 2, 8),
    ("671b", "min TP", 32, 1),
    ("671b", "shared weights a GPU", 22e9, 2.14e9),
    ("671b", "expert parameters a GPU", 1.057e9, 0.639e9),
    ("671b", "expert weights a GPU", 2.12e9, 1.277e9),
    ("671b", "states a GPU", 25e9, 12.9e9),
    ("671b", "memory", 25e9, None),
    ("671b", "MFU", 0.33, 0.3894),
    ("671b", "MFU, non-causal", 0.33, 0.4373),
]

Walk = Callable[[str], dict[str, dict[str, Any]]]


@pytest.fixture
def walk(capsys: pytest.CaptureFixture[str]) -> Walk:
    """The rows of one of the four explanations by name."""

    def rows(case: str) -> dict[str, dict[str, Any]]:
        cli.main(["explain", *LAYOUTS[case].split(), "--json"])
        steps = json.loads(capsys.readouterr().out)["steps"]
        return {row["name"]: row for step in steps for row in step["rows"]}

    return rows


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_chapter_stands_beside_the_model(walk: Walk, case: str) -> None:
    rows = walk(case)
    for name, hand, corrected in (figure[1:] for figure in FIGURES if figure[0] == case):
        found = rows[name]
        assert found["hand"] == (hand and pytest.approx(hand, rel=0.005)), name
        assert found["corrected"] == (corrected and pytest.approx(corrected, rel=0.005)), name


@pytest.mark.parametrize("case", LAYOUTS)
def test_no_figure_of_a_walk_goes_untested(walk: Walk, case: str) -> None:
    """Rows that merely repeat another, or apply a formula where the chapter does not, are named here."""
    tested = {name for of, name, _, _ in FIGURES if of == case}
    repeated = {
        "all weights",
        "weights",
        "gradients",
        "optimizer",
        "buffers",
        "states",
        "optimizer states",
        "states over all GPUs",
    }
    repeated |= {"parameters N", "usable memory", "weights over memory", "peak", "compute a step", "efficiency", "DP"}
    repeated |= {"TP argument", "min TP", "PP argument", "min PP", "weights at min TP", "weights at this TP"}
    repeated |= {
        "weights of a stage",
        "NVLink bandwidth",
        "node bandwidth",
        "DP all-reduce",
        "gathered",
        "communication overhead",
    }
    repeated |= {"logits", "logits, eager loss", "memory, fp32 gradients", "optimizer unsharded", "ZeRO-3 volumes"}
    repeated |= {"parameters a GPU", "gradients a GPU", "exposed a micro-batch", "backward a micro-batch", "TP message"}
    repeated |= {
        "all-reduces a layer",
        "TP all-reduce a layer",
        "bubble over ideal",
        "bubble share",
        "P2P a micro-batch",
    }
    hand = {name for name, row in walk(case).items() if row["hand"] is not None}
    assert hand - tested <= repeated


def test_parameters_are_counted_and_not_said(walk: Walk) -> None:
    found = walk("671b")
    assert found["parameters N"]["model"] == 671_026_419_200
    assert found["active parameters"]["model"] == pytest.approx(37.55e9, rel=1e-3)


def test_the_figures_leave_the_chapters_layouts_with_the_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """What the chapter prints without a formula belongs to its own layouts only."""
    layout = LAYOUTS["70b"].replace("--gpus 64", "--gpus 128").replace(" --seq-len 2048", "")
    cli.main(["explain", *layout.split(), "--json"])
    steps = json.loads(capsys.readouterr().out)["steps"]
    rows = {row["name"]: row for step in steps for row in step["rows"]}
    assert rows["activations"]["hand"] == pytest.approx(2 * 2 * 4096 * 8192 * 80)
    assert rows["backward a micro-batch"]["hand"] == pytest.approx(4 * 70e9 * 2 * 4096 / (8 * 0.5 * 989e12))
    assert rows["TP total"]["hand"] == pytest.approx(80 * 4 * 128e6 / 900e9)


def explained(capsys: pytest.CaptureFixture[str], layout: str) -> dict[str, dict[str, Any]]:
    cli.main(["explain", *layout.split(), "--json"])
    steps = json.loads(capsys.readouterr().out)["steps"]
    return {row["name"]: row for step in steps for row in step["rows"]}


@pytest.mark.parametrize("case", ["70b", "405b"])
def test_corrected_figures_come_from_corrected_ones(walk: Walk, case: str) -> None:
    right = {name: row["corrected"] for name, row in walk(case).items()}
    backward, exposed = right["backward a micro-batch"], right["exposed a micro-batch"]
    assert right["efficiency"] == pytest.approx(backward / (backward + exposed))
    if case == "405b":
        assert right["TP total, all layers"] == pytest.approx(126 * right["TP all-reduce a layer"])
        assert 1 - right["communication overhead"] == pytest.approx(right["efficiency"] * (1 - right["bubble share"]))


def test_the_corrected_sum_adds_the_corrected_rows_or_says_which_it_keeps(walk: Walk) -> None:
    small, large = walk("8b"), walk("405b")
    names = ("weights", "gradients", "optimizer", "gathered", "activations", "logits", "buffers")
    parts = [small[name]["corrected"] or small[name]["hand"] for name in names]
    assert small["memory"]["corrected"] == pytest.approx(sum(parts))
    assert "activations of about 3 GB" in large["memory"]["why"]
    assert large["memory, fp32 gradients"]["corrected"] == pytest.approx(
        large["memory"]["corrected"] + large["gradients"]["hand"]
    )


def test_the_reasons_are_those_of_the_layout_and_the_model(walk: Walk, capsys: pytest.CaptureFixture[str]) -> None:
    deepseek = walk("671b")
    assert "of smaller experts" in deepseek["expert weights a GPU"]["why"]
    assert "DualPipe" in deepseek["states a GPU"]["why"]
    assert "sequence parallelism" not in deepseek["P2P a micro-batch"]["why"]
    assert "sequence parallelism" in walk("405b")["P2P a micro-batch"]["why"]
    mixtral = explained(capsys, "mixtral-8x7b dgx-h100 --gpus 64 --pp 2 --ep 8")
    assert "of larger experts" in mixtral["expert weights a GPU"]["why"]
    assert "DualPipe" not in mixtral["states a GPU"]["why"]
    assert mixtral["shared weights a GPU"]["why"] == "PP divides them"
    assert "sequence parallelism" not in mixtral["P2P a micro-batch"]["why"]
