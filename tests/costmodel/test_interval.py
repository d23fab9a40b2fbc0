"""The interval around an estimate: its order, where it is wider and why, and the memory that a margin leaves."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.estimate import estimate
from costmodel.interval import CALIBRATED, bounds, calibrated, default_margin, uncovered
from costmodel.layouts import Layouts
from costmodel.model import load_model
from costmodel.profile import load_profile
from costmodel.range import DEGREES, Range, range_lines, range_of, read_ranges
from hardware.errors import InputError
from hardware.reader import Table
from tests.strategies import candidates, problem, problems

MOE = replace(load_model("mixtral-8x7b"), layers=8)
SEEN = Range(
    runs=12,
    precisions=("bf16", "fp8"),
    kinds=("dense",),
    ends={
        "gpus": (8, 64), "parameters": (7e9, 8e9), "seq_len": (4096, 8192),
        "tp": (1, 4), "pp": (1, 2), "cp": (1, 1), "ep": (1, 1),
    },
)  # fmt: skip


def seen(case, covers=SEEN):
    """The problem with a profile whose runs cover this."""
    return replace(case, profile=replace(case.profile, covers=covers))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_estimate_lies_in_its_interval_and_row_by_row(data):
    case = seen(data.draw(problems()))
    layouts = data.draw(candidates(case))
    cost = estimate(case, layouts)
    ends = bounds(case, layouts, cost)
    assert np.all((ends.step_time_low < cost.step_time) & (cost.step_time < ends.step_time_high))
    assert np.all((ends.memory_low < cost.memory_total) & (cost.memory_total < ends.memory_high))
    for row in range(len(layouts)):
        one = layouts.take([row])
        alone = bounds(case, one, cost.take([row]))
        assert all(getattr(alone, part.name)[0] == getattr(ends, part.name)[row] for part in fields(alone))


def test_it_is_wider_outside_of_what_runs_cover():
    case = seen(problem(gpus=8))
    pair = [Layouts.of(tp=tp, dp=8 // tp).row(0) for tp in (4, 8)]
    layouts = Layouts.from_columns({axis: [row[axis] for row in pair] for axis in pair[0]})
    cost = estimate(case, layouts)
    ends = bounds(case, layouts, cost)
    assert ends.calibrated.tolist() == [True, False]
    low, high = ends.step_time_low / cost.step_time, ends.step_time_high / cost.step_time
    assert low[1] < low[0] < 1 < high[0] < high[1]
    near = case.profile.interval
    assert high[0] == pytest.approx(near.time_high)
    assert high[1] == pytest.approx(near.time_high**near.outside)
    assert uncovered(case, layouts.take([1])) == ("tp 8: measured runs have 1 to 4",)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"gpus": 128}, ()),
        ({"gpus": 256}, ("gpus 256: measured runs have 8 to 64",)),
        ({"gpus": 8, "seq_len": 16384}, ()),
        ({"gpus": 8, "seq_len": 32768}, ("seq_len 32,768: measured runs have 4,096 to 8,192",)),
        ({"gpus": 8, "precision": "fp16"}, ("precision fp16: measured runs have bf16, fp8",)),
        ({"gpus": 64, "model": "llama-3.1-70b"}, ("parameters 70,553,706,496: measured runs have 7,000,000,000 to",)),
        ({"gpus": 8, "model": MOE, "seq_len": 8192}, ("a model that is moe: measured runs have dense",)),
    ],
)
def test_a_job_outside_says_why_in_numbers(job, why):
    """GPUs, parameters and length may be up to twice beyond the runs."""
    found = seen(problem(**job)).uncovered
    assert len(found) == len(why)
    assert all(text.startswith(start) for text, start in zip(found, why, strict=True))


def test_a_profile_without_runs_on_the_gpu_is_not_calibrated():
    case = problem(framework="llama3-meta")
    assert case.uncovered == ("no measured run of profile llama3-meta on H100-SXM",)
    assert not calibrated(case, Layouts.of(dp=8)).any()


def test_shipped_profiles_are_calibrated_where_they_have_runs_and_only_there():
    assert problem("llama-3.1-70b", "dgx-h100", 64).uncovered == ()
    assert problem("llama-3.1-8b", "mi300x-8", 8).uncovered == ("no measured run of profile megatron on MI300X",)
    assert problem("llama-3.1-8b", "dgx-h100", 16384).uncovered


def test_the_limit_falls_as_the_margin_rises_and_for_a_job_that_no_runs_cover():
    case = seen(problem(gpus=8))
    far = seen(case, replace(SEEN, kinds=("moe",)))

    def limit(it, margin):
        return replace(it, workload=replace(it.workload, memory_margin=margin)).memory_limit

    margins = np.linspace(0.5, 0.99, 20)
    near, wide = ([limit(it, float(margin)) for margin in margins] for it in (case, far))
    assert near == sorted(near, reverse=True)
    assert near[0] == wide[0] == case.cluster.gpu.usable_memory
    assert all(b < a for a, b in zip(near[1:], wide[1:], strict=True))
    assert limit(case, 0.9) == pytest.approx(near[0] / case.profile.interval.memory_high)


def test_the_margin_is_strict_only_where_the_memory_of_covered_runs_was_measured():
    """A published layout of a profile without own runs stays feasible as published."""
    assert default_margin(problem("llama-3.1-70b", "dgx-h100", 64)) == CALIBRATED
    assert default_margin(problem("llama-3.1-405b", "dgx-h100", 8192, "llama3-meta")) == 0.5
    assert default_margin(problem("deepseek-v3", "hgx-h800", 2048, "deepseek", precision="fp8")) == 0.5
    assert default_margin(problem("llama-2-7b", "dgx-h100", 8, "llm-foundry")) == 0.5


def test_a_range_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("\n".join(range_lines("H100-SXM", SEEN, "runs.csv")))
    table = Table.load(path)
    assert read_ranges(table.table("range")) == {"H100-SXM": SEEN}
    table.finish()
    rows = [{"gpus": n, "parameters": 7e9, "seq_len": 4096} | dict.fromkeys(DEGREES, 1) for n in (16, 8)]
    assert range_of(["bf16", "fp8", "bf16"], ["dense"], rows).ends["gpus"] == (8, 16)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("gpus = [8, 64]", "gpus = [64, 8]", "range.H100-SXM.gpus"),
        ("gpus = [8, 64]", "gpus = [8]", "the least and the most"),
        ('"dense"', '"sparse"', "range.H100-SXM.kinds"),
        ("runs = 12", "runs = 0", "range.H100-SXM.runs"),
        ("tp = [1, 4]", "", "range.H100-SXM.tp"),
        ("tp = [1, 4]", "tp = [1, 4]\ndp = [1, 2]", "range.H100-SXM.dp"),
    ],
)
def test_a_wrong_range_is_one_line(tmp_path, old, new, says):
    path = tmp_path / "p.toml"
    path.write_text("\n".join(['base = "megatron"', *range_lines("H100-SXM", SEEN, "runs.csv")]).replace(old, new))
    with pytest.raises(InputError) as caught:
        load_profile(str(path))
    assert says in str(caught.value)


def test_a_users_profile_is_calibrated_by_its_base_unless_it_has_rates_of_its_own(tmp_path):
    """Runs of the shipped rates say nothing of rates that the file changes."""
    path = tmp_path / "mine.toml"
    path.write_text('base = "megatron"\nzero_stages = [1]\n')
    assert load_profile(str(path)).ranges == load_profile("megatron").ranges
    path.write_text('base = "megatron"\n[time]\ngemm = 0.5\n')
    assert load_profile(str(path)).ranges == {}
