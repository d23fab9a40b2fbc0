"""Runs out of memory say how much of a GPU's memory a framework leaves to a job."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.calibration.fit import fit
from costmodel.calibration.predict import predict, with_rates
from costmodel.calibration.runs import RUNS, Run, read_runs
from costmodel.calibration.verdicts import Verdicts, judged

GIB = 2.0**30


@pytest.fixture(scope="module")
def sweep() -> list[Run]:
    """nanotron's published layouts of one model: 60 that ran and 60 that went out of memory, of all sizes."""
    runs = [run for run in read_runs(RUNS)[0] if run.problem.profile.name == "nanotron"]
    known = [run for run in judged(runs) if run.problem.model.name == "nanotron-8b"]
    assert {run.oom for run in known} == {True, False}
    return [*[run for run in known if run.oom][:60], *[run for run in known if not run.oom][:60]]


def test_verdicts_are_needed_of_both_kinds_and_with_their_recomputation_stated(sweep: list[Run]) -> None:
    assert judged([run for run in sweep if run.oom]) == []
    assert judged([replace(run, recompute_stated=False) for run in sweep]) == []
    assert len(judged(sweep)) == len(sweep)


def test_a_verdict_counts_by_how_far_it_is_wrong(sweep: list[Run]) -> None:
    limits, rates = Verdicts(sweep), sweep[0].problem.profile.memory
    all_fail, none = limits(replace(rates, overhead=80 * GIB)), limits(replace(rates, overhead=0.0, mlp_saved=2.0))
    assert (all_fail[limits.oom] == 0).all()
    assert (all_fail[~limits.oom] > 0).all()
    assert np.abs(limits(rates)).sum() < 0.1 * np.abs(all_fail).sum()
    assert (none[~limits.oom] == 0).all()
    assert none[limits.oom].min() < 0


def test_runs_out_of_memory_find_what_a_machine_holds_back(sweep: list[Run]) -> None:
    """A machine that keeps 13 GiB to itself, told by which layouts run there, and by what some of them reserve."""
    start = sweep[0].problem.profile.memory
    truth = replace(start, overhead=13 * GIB)
    there = [replace(run, problem=with_rates(run.problem, truth)) for run in sweep]
    ran = [replace(run, oom=it.oom, memory=it.memory) for run, it in zip(sweep, predict(there), strict=True)]
    found = fit([run for run in ran if not run.oom], start, verdicts=judged(ran))
    assert "overhead" in found.moved
    assert found.rates.overhead == pytest.approx(truth.overhead, rel=0.15)
    assert found.wrong[1] < 0.3 * found.wrong[0]
    assert np.abs(found.after).mean() < 0.02
