"""What the terminal shows."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from costmodel.estimate import estimate
from costmodel.layouts import Layouts
from costmodel.model import load_model
from costmodel.problem import Problem, Workload
from costmodel.profile import load_profile
from hardware.catalog import load_cluster, load_gpu
from search import cli, table


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
    zeros = {axis: np.zeros(2) for axis in ("zero_stage", "sequence_parallel", "schedule")}
    head, *lines = draw(Layouts.from_columns(rows | ones | zeros))
    assert [line.index("1f1b") for line in lines] == [head.index("schedule")] * 2


def test_shares_of_the_step_add_up(draw: Draw) -> None:
    shares = [int(cell[:-1]) for cell in draw(Layouts.of(tp=2, dp=4))[1].split()[-4:]]
    assert sum(shares) == pytest.approx(100, abs=2)


def test_a_stdout_without_blocks_still_gets_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_blocks", lambda: "#.")
    assert cli.main(["search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--top", "1"]) == 0
    assert "##" in capsys.readouterr().out


def test_nothing_fits_names_the_least_that_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "frontier.parquet")
    assert cli.main(["search", "llama-3.1-405b", "dgx-h100", "--gpus", "8", "-o", output]) == 3
    err = capsys.readouterr().err
    assert "needs at least" in err
    assert "GB usable" in err
