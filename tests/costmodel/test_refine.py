"""Fits to a user's own runs: what a real machine that no fit has seen gains, and how runs are held out."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.calibration.fit import Predictor
from costmodel.calibration.predict import predict, with_rates
from costmodel.calibration.refine import clearest, folds, loss, mean_error, refine
from costmodel.calibration.runs import RUNS, Run, read_runs
from costmodel.profile import load_profile
from costmodel.rates import TimeRates

FRESH = load_profile("internevo", fitted=False).time


@pytest.fixture(scope="module")
def internevo() -> list[Run]:
    """50 published runs of one machine, under the rates that its profile has before any fit: none has seen them."""
    runs = [it.run for it in predict([run for run in read_runs(RUNS)[0] if run.problem.profile.name == "internevo"])]
    return [replace(run, problem=with_rates(run.problem, FRESH)) for run in runs if run.trust == "ok" and run.step_time]


def test_a_dozen_runs_of_a_source_that_was_left_out_improve_its_others(internevo: list[Run]) -> None:
    dozen = internevo[::4][:12]
    others = Predictor([run for run in internevo if run not in dozen], TimeRates)
    assert len(others.runs) == 38
    (found,) = refine(dozen)
    assert found.kept
    assert found.fit is not None
    assert len(found.fit.moved) <= 4
    assert mean_error(others(found.fit.rates)) < 0.6 * mean_error(others(FRESH))
    assert mean_error(found.held_out) == pytest.approx(mean_error(others(found.fit.rates)), rel=0.6)


def test_a_source_is_held_out_whole_where_there_are_enough(internevo: list[Run]) -> None:
    """Runs of one table are alike: a fit that has seen some predicts the rest too well."""
    named = [replace(run, source=source) for run, source in zip(internevo[:8], "abcabcab", strict=True)]
    parts, held = folds(named)
    assert parts == "3 sources in turn"
    assert [{named[place].source for place in places} for places in held] == [{"a"}, {"b"}, {"c"}]
    parts, held = folds(internevo[:8])
    assert parts == "5 parts in turn"
    assert sorted(place for places in held for place in places) == list(range(8))


def test_the_clearest_rates_are_those_that_say_something_of_their_own() -> None:
    effects = {"a": np.array([1.0, 1.0, 0.0]), "twin": np.array([0.9, 0.9, 0.0]), "b": np.array([0.0, 0.1, 0.5])}
    assert clearest(effects, 2) == ["a", "b"]
    assert clearest(effects, 3) == ["a", "b"]
    assert clearest(effects, 1) == ["a"]


def test_one_wrong_row_does_not_decide_whether_a_fit_is_kept() -> None:
    good, bad = np.full(12, 0.02), np.full(12, 0.2)
    good[3] = bad[3] = np.log(10.0)
    assert loss(good) < 0.75 * loss(bad)
    assert mean_error(good) > 0.75 * mean_error(bad)
