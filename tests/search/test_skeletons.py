"""CP-SAT and the NumPy mask are two readings of the same rules."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from costmodel.problem import Problem
from hardware.errors import InputError
from search import skeletons
from search.rule import Rule
from search.rules import skeleton_rules
from search.skeletons import SkeletonModel, enumerate_skeletons, first_rejection, solve
from search.space import SKELETON_AXES, load_space
from tests.strategies import problem, problems


def masked(problem: Problem) -> dict[str, list[int]]:
    space = load_space(problem)
    grid, rules = space.grid(problem.workload.gpus), skeleton_rules(problem, space)
    kept = np.all([rule.mask(grid) for rule in rules], axis=0)
    return {axis: grid[axis][kept].tolist() for axis in SKELETON_AXES}


@given(problems())
@settings(max_examples=40, deadline=None)
def test_cp_sat_finds_what_the_mask_keeps(problem: Problem) -> None:
    space = load_space(problem)
    status, table = solve(problem, space, skeleton_rules(problem, space))
    assert {axis: table[axis].tolist() for axis in SKELETON_AXES} == masked(problem)
    assert status == ("OPTIMAL" if len(table["tp"]) else "INFEASIBLE")


@pytest.mark.parametrize(
    "parts",
    [
        {"model": "llama-3.1-405b", "gpus": 16384},
        {"model": "mixtral-8x7b", "gpus": 48, "usable": 30e9},
        {"model": "deepseek-v3", "machine": "gb200-nvl72", "gpus": 144, "seq_len": 4608, "global_batch": 1152},
    ],
    ids=["405b", "mixtral", "v3"],
)
def test_shipped_models_enumerate_to_the_mask(parts: dict[str, Any]) -> None:
    case = problem(**parts)
    space = load_space(case)
    found = enumerate_skeletons(case, space, skeleton_rules(case, space))
    assert {axis: found.table[axis].tolist() for axis in SKELETON_AXES} == masked(case)
    assert len(found) > 0
    assert sum(map(len, found.rejected.values())) + len(found) == len(space.grid(case.workload.gpus)["tp"])


def test_memory_floor_is_a_real_constraint() -> None:
    wide, tight = problem("llama-3.1-70b", gpus=64), problem("llama-3.1-70b", gpus=64, usable=40e9)
    found = [solve(case, load_space(case), skeleton_rules(case, load_space(case)))[1] for case in (wide, tight)]
    assert 0 < len(found[1]["tp"]) < len(found[0]["tp"])


def test_two_readings_that_differ_are_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem(gpus=8)
    space = load_space(case)
    rules = skeleton_rules(case, space)
    monkeypatch.setattr(skeletons, "solve", lambda *_: solve(case, load_space(case, limits={"tp": [2]}), rules))
    with pytest.raises(RuntimeError, match="CP-SAT found"):
        enumerate_skeletons(case, space, rules)


def test_first_rejection_is_the_first_rule_in_order() -> None:
    case = problem("llama-3.1-405b", gpus=16384)
    space = load_space(case)
    rules, grid = skeleton_rules(case, space), space.grid(16384)
    first = first_rejection(grid, rules)
    masks = np.array([rule.mask(grid) for rule in rules])
    assert [int(np.argmin(column)) if not column.all() else len(rules) for column in masks.T] == first.tolist()


def test_global_batch_that_no_dp_divides_names_the_nearest() -> None:
    case = problem(gpus=64, global_batch=1001)
    space = load_space(case, limits={"dp": [8, 16]})
    with pytest.raises(InputError, match=r"^global_batch 1001 .* \(8, 16\); nearest are 1000 and 1008$"):
        enumerate_skeletons(case, space, skeleton_rules(case, space))


def test_a_rule_that_allows_nothing_leaves_nothing() -> None:
    case = problem(gpus=8)
    never = Rule("never", ("tp", "pp"), lambda tp, pp: tp + pp < 0, lambda tp, pp: "never")
    status, table = solve(case, load_space(case), [never])
    assert (status, len(table["tp"])) == ("INFEASIBLE", 0)


@pytest.mark.parametrize("gpus", [1, 7, 8, 97, 360, 16384])
def test_world_size_is_a_product(gpus: int) -> None:
    if gpus > 8 and gpus % 8:
        gpus *= 8
    case = problem(gpus=gpus)
    space = load_space(case)
    model = SkeletonModel(case, space)
    _, found = model.solutions(("tp", "pp", "cp", "dp"))
    axes = [space.axes[axis] for axis in ("tp", "pp", "cp")]
    assert sorted(set(found)) == sorted(
        (tp, pp, cp, gpus // (tp * pp * cp)) for tp, pp, cp in product(*axes) if gpus % (tp * pp * cp) == 0
    )
