"""Intervals from left-out runs: what they hold on runs that are known, how they shrink, widen, and are stored."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.calibration.holdout import fits_of, left_out, ranges_of, sure_lines
from costmodel.calibration.runs import RUNS, read_runs
from costmodel.calibration.shipped import by_profile, read_left_out, write_left_out
from costmodel.calibration.spread import LeftOut, holds, interval, intervals
from costmodel.profile import load_profile, pooled_interval
from costmodel.rates import Interval

SAMPLE = read_runs(Path(__file__).parents[1] / "golden" / "runs_sample.csv")[0]
RUN = next(run for run in SAMPLE if run.problem.profile.shipped == "llm-foundry" and run.step_time)
PLAIN = Interval(time_low=0.8, time_high=1.25, memory_low=0.9, memory_high=1.1, memory_runs=0.0, outside=1.5)


def rows(offs, *, inside=True, blocks=20, name="llm-foundry"):
    """Left-out runs of one profile with these ln(measured / predicted) of the step time."""
    profile = replace(RUN.problem.profile, shipped=name)
    run = replace(RUN, problem=replace(RUN.problem, profile=profile), memory=None)
    return [
        LeftOut(
            run=replace(run, id=f"{name} {inside} {i}", step_time=float(np.exp(off))),
            block=f"{inside} {i % blocks}", step_time=1.0, memory=1.0, calibrated=inside,
        )
        for i, off in enumerate(offs)
    ]  # fmt: skip


NORMAL = np.random.default_rng(1).normal(0.0, 0.1, 4000)


def test_the_ends_are_the_quantiles_of_many_residuals():
    found = interval(rows(NORMAL), PLAIN)
    assert found.time_low == pytest.approx(np.exp(-0.128), rel=0.02)
    assert found.time_high == pytest.approx(np.exp(0.128), rel=0.02)
    assert (found.memory_low, found.memory_high) == (PLAIN.memory_low, PLAIN.memory_high)


def test_few_residuals_stay_near_the_mean_over_profiles():
    few, some = (interval(rows(np.linspace(-0.02, 0.02, n)), PLAIN).time_high for n in (2, 200))
    assert 1.02 < some < few < PLAIN.time_high
    assert interval([], PLAIN).time_high == PLAIN.time_high


def test_the_prediction_lies_in_the_interval_even_of_biased_runs():
    found = interval(rows(np.linspace(0.2, 0.3, 100)), PLAIN)
    assert found.time_low < 1 < found.time_high


def test_outside_the_interval_is_wider_by_what_was_measured():
    both = rows(NORMAL) + rows(3.0 * NORMAL, inside=False)
    pooled, found = intervals(both, PLAIN)
    assert found["llm-foundry"].outside == pooled.outside == pytest.approx(3.0, rel=0.1)
    assert intervals(rows(NORMAL) + rows(0.2 * NORMAL, inside=False), PLAIN)[0].outside == 1.0
    assert intervals(rows(NORMAL), PLAIN)[0].outside == PLAIN.outside


def test_intervals_hold_eight_of_ten_runs_of_blocks_that_they_were_not_taken_from():
    both = rows(NORMAL) + rows(3.0 * NORMAL[:2000], inside=False)
    held = holds(both, PLAIN)
    for inside in (True, False):
        share = np.mean([held[it.run.id]["time"] for it in both if it.calibrated == inside])
        assert share == pytest.approx(0.8, abs=0.03)


def test_a_block_that_is_unlike_all_others_is_not_held():
    """Were its own residuals used, the interval would reach them."""
    odd = replace(rows([0.6])[0], block="odd", run=replace(RUN, id="odd", step_time=float(np.exp(0.6))))
    held = holds([*rows(0.1 * NORMAL[:40]), *(replace(odd, run=replace(odd.run, id=f"{i}")) for i in range(40))], PLAIN)
    assert not any(held[f"{i}"]["time"] for i in range(40))


def test_what_is_not_trusted_does_not_count():
    doubtful = [replace(it, run=replace(it.run, trust="medium")) for it in rows(NORMAL)]
    assert interval(doubtful, PLAIN).time_high == PLAIN.time_high


def test_left_out_runs_are_read_as_they_were_written(tmp_path):
    own = by_profile(SAMPLE)["llm-foundry"]
    found = [
        LeftOut(run=run, block="0", step_time=0.1 * i + 1.0, memory=1e9, calibrated=i % 2 == 0)
        for i, run in enumerate(own)
    ]
    paths = tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"
    for path in paths:
        write_left_out(found, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    again = {it.run.id: it for it in read_left_out(SAMPLE, paths[0])}
    assert [again[it.run.id].step_time for it in found] == pytest.approx([it.step_time for it in found])
    assert [again[it.run.id].calibrated for it in found] == [it.calibrated for it in found]


def test_a_left_out_run_is_calibrated_only_by_the_runs_that_stay():
    """A source with a GPU of its own leaves none that covers it; its lines are read back."""
    own = by_profile(SAMPLE)["megatron"]
    profile = load_profile("megatron", fitted=False)
    found = left_out(own, profile, fits_of(own, load_profile("megatron"), profile))
    assert sorted(it.run.id for it in found) == sorted(run.id for run in own)
    alone = [gpu for gpu, it in ranges_of(own).items() if len({r.source for r in own if gpu_of(r) == gpu}) == 1]
    assert alone
    assert not any(it.calibrated for it in found if gpu_of(it.run) in alone)
    lines = sure_lines(own, found, PLAIN, "runs.csv")
    assert sum(line.startswith("[range.") for line in lines) == len(ranges_of(own))


def gpu_of(run):
    return run.problem.cluster.gpu.name


def test_intervals_of_the_shipped_profiles_hold_what_they_promise():
    """Step time and memory of each run lie in the interval found without its source in 75 to 85 % of cases."""
    held = holds(read_left_out(read_runs(RUNS)[0]), pooled_interval())
    for kind in ("time", "memory"):
        inside = [it[kind] for it in held.values() if kind in it]
        assert len(inside) > 400
        assert 0.75 <= np.mean(inside) <= 0.85, kind
