"""What the terminal shows."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.estimate import estimate
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.model import load_model
from costmodel.problem import Problem, Workload
from costmodel.profile import load_profile
from hardware.catalog import load_cluster, load_gpu
from search import cli, commands, table
from search.account import DEMANDS
from search.rules import rules
from search.space import load_space


@pytest.fixture
def problem() -> Problem:
    return Problem(
        model=load_model("llama-3.1-8b"),
        cluster=load_cluster("dgx-h100"),
        profile=load_profile("megatron").on(load_gpu("H100-SXM")),
        workload=Workload(gpus=8, seq_len=8192, global_batch=512),
    )


Draw = Callable[[Layouts], list[str]]


@pytest.fixture
def draw(problem: Problem) -> Draw:
    """The lines of the frontier's table."""

    def lines(layouts: Layouts) -> list[str]:
        return table.frontier_table(problem, layouts, estimate(problem, layouts), "#.").splitlines()

    return lines


def test_axes_that_nothing_uses_are_left_out(draw: Draw) -> None:
    plain = draw(Layouts.of(dp=8))[0].split()
    assert not {"vpp", "cp", "ep", "etp", "shard", "sp"} & set(plain)
    rich = draw(Layouts.of(tp=2, cp=2, dp=2, dp_shard=2, zero_stage=1))[0].split()
    assert {"cp", "shard", "sp"} <= set(rich)


def test_the_memory_bar_is_full_at_the_usable_memory_and_never_longer(draw: Draw) -> None:
    small, huge = draw(Layouts.of(tp=8))[1], draw(Layouts.of(dp=8, micro_batch=64))[1]
    bars = [re.findall(r"[#.]{3,}", line) for line in (small, huge)]
    assert [len(bar) for (bar,) in bars] == [table.BAR] * 2
    assert 0 < small.count("#") < huge.count("#") == table.BAR


def test_columns_line_up(draw: Draw) -> None:
    rows = {"tp": [1, 8], "dp": [8, 1], "dp_shard": [8, 1], "recompute": [0, 2]}
    ones = {axis: np.ones(2) for axis in ("pp", "vpp", "cp", "ep", "etp", "micro_batch")}
    zeros = {axis: np.zeros(2) for axis in ("zero_stage", "recompute_layers", "sequence_parallel", "rank_order")}
    named = {"schedule": np.array([SCHEDULES.index("1f1b"), SCHEDULES.index("zero-bubble")])}
    head, *lines = draw(Layouts.from_columns(rows | ones | zeros | named))
    places = [line.index(name) for line, name in zip(lines, ("1f1b", "zero-bubble"), strict=True)]
    assert places == [head.index("schedule")] * 2


def test_a_schedule_that_vpp_tells_has_no_column(draw: Draw) -> None:
    assert "schedule" not in draw(Layouts.of(tp=8))[0]
    assert "schedule" in draw(Layouts.of(tp=8, schedule=SCHEDULES.index("zero-bubble")))[0]


def test_the_order_of_the_ranks_has_a_column_where_a_row_has_another(draw: Draw) -> None:
    assert "order" not in draw(Layouts.of(pp=4, dp=2))[0]
    head, row = draw(Layouts.of(pp=4, dp=2, rank_order=1))
    assert row[head.index("order") :].startswith("pp-dp ")


def test_shares_of_the_step_add_up(draw: Draw) -> None:
    shares = [int(cell[:-1]) for cell in draw(Layouts.of(tp=2, dp=4))[1].split()[-4:]]
    assert sum(shares) == pytest.approx(100, abs=2)


def test_a_stdout_without_blocks_still_gets_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "_blocks", lambda: "#.")
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--top", "1"]) == 0
    assert "##" in capsys.readouterr().out


def test_nothing_fits_names_the_least_that_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "frontier.parquet")
    assert cli.main(["search", "llama-3.1-405b", "dgx-h100", "--gpus", "8", "-o", output]) == 3
    err = capsys.readouterr().err
    assert "needs at least" in err
    assert "GiB usable" in err


def test_the_table_shows_each_set_of_degrees_once_with_its_rank_and_its_siblings() -> None:
    """A frontier of near-twins (vpp, recompute) must not fill the table with two layouts."""
    twins = {"tp": [4, 4, 8, 4], "dp": [2, 2, 1, 2], "vpp": [1, 2, 1, 3]}
    same = {axis: np.ones(4) for axis in ("pp", "cp", "ep", "etp", "micro_batch", "dp_shard")}
    codes = ("zero_stage", "sequence_parallel", "schedule", "recompute", "recompute_layers", "rank_order")
    zeros = {axis: np.zeros(4) for axis in codes}
    first, alike = table.best_of_degrees(Layouts.from_columns(twins | same | zeros))
    assert (first.tolist(), alike.tolist()) == ([0, 2], [2, 0])


def test_top_counts_sets_of_degrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith("#"))
    degrees = [tuple(line.split()[1:5]) for line in lines[start + 1 : start + 4]]
    assert len(set(degrees)) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "MFU against the dense bf16 peak of 989 TFLOP/s, causal FLOPs"),
        ({"precision": "fp8"}, "fp8 may pass 100 %"),
        ({"precision": "fp8", "mfu_peak": "precision"}, "the dense fp8 peak of 1.98 PFLOP/s"),
        ({"flops_convention": "full"}, "full FLOPs"),
    ],
)
def test_the_header_names_what_mfu_is_measured_against(problem: Problem, options: dict[str, str], said: str) -> None:
    workload = Workload(gpus=8, seq_len=8192, global_batch=512, **options)  # type: ignore[arg-type]
    assert said in table.measure(replace(problem, workload=workload))


def test_every_rule_says_what_it_demands(problem: Problem) -> None:
    known = {rule.name for rule in rules(problem, load_space(problem))}
    assert known <= set(DEMANDS)


def test_the_widest_table_fits_120_columns(draw: Draw) -> None:
    layouts = Layouts.of(
        tp=8, pp=16, vpp=4, dp=1024, dp_shard=256, cp=4, ep=1, etp=1, zero_stage=1, micro_batch=16, recompute=2,
        schedule=SCHEDULES.index("zero-bubble"), sequence_parallel=0,
    )  # fmt: skip
    assert max(map(len, draw(layouts))) <= 120
