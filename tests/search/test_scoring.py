"""Scoring by factors against the plain estimate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.estimate import estimate, mfu, seconds_of, throughput
from costmodel.layouts import Layouts
from costmodel.problem import Problem
from hardware.errors import InputError
from search.expansion import Block, Expansion
from search.possible import recompute_codes
from search.rule import Rule
from search.rules import skeleton_rules
from search.rules_memory import memory_rule
from search.scoring import Scorer, headroom, most_that_fits
from search.skeletons import enumerate_skeletons
from search.space import load_space
from tests.strategies import problem, problems


def block_of(case: Problem, limits: dict[str, list[int]] | None = None, most: int = 40) -> Block | None:
    """What the rules leave of the first skeletons of a problem's space."""
    space = load_space(case, limits=limits)
    codes = recompute_codes(case, free=True)
    some = {"recompute": (*codes[:3], *codes[-1:]), "recompute_layers": (0, 1, 3)}
    space = replace(space, axes={**space.axes, **some})
    skeletons = enumerate_skeletons(case, space, skeleton_rules(case, space)).table
    expansion = Expansion(case, space)
    return expansion.block({axis: column[:most] for axis, column in skeletons.items()}, [0] * len(expansion.rules))


def check(case: Problem, block: Block) -> int:
    """Every layout's step time and headroom equal those of the plain path, bit for bit; how many there are. So do those
    of some of the rows."""
    scorer = Scorer(case, case.split(np.unique(block.rows["pp"]).tolist()), block)
    return sum(check_products(case, some) for some in (scorer, scorer.take(np.arange(len(block) % 3, len(block), 3))))


def check_products(case: Problem, scorer: Scorer) -> int:
    seen, block = 0, scorer.block
    for product in block.products() if len(block) else ():
        costs = scorer.costs(product)
        seconds, free = seconds_of(case, costs.busy()), headroom(case, costs.need())
        plain = estimate(case, block.layouts(product, *(place.ravel() for place in np.indices(seconds.shape))))
        assert seconds.ravel().tolist() == plain.step_time.tolist()
        assert free.ravel().tolist() == plain.memory_headroom.tolist()
        seen += len(product)
    return seen


@given(problems())
@settings(max_examples=40, deadline=None)
def test_equals_the_plain_estimate_bit_for_bit(case: Problem) -> None:
    try:
        block = block_of(case)
    except InputError:
        assume(False)
    assume(block is not None)
    assert block is not None
    assert check(case, block) > 0


@pytest.mark.parametrize(
    ("model", "machine", "gpus", "profile", "precision"),
    [
        ("llama-3.1-405b", "dgx-h100", 1024, "megatron", "bf16"),
        ("deepseek-v3", "hgx-h800", 256, "deepseek", "fp8"),
        ("mixtral-8x7b", "dgx-h100", 64, "torchtitan", "bf16"),
    ],
)
def test_equals_it_for_large_models(model: str, machine: str, gpus: int, profile: str, precision: str) -> None:
    case = problem(model, machine, gpus, profile, precision=precision)
    block = block_of(case, {"micro_batch": [1, 2]}, most=8)
    assert block is not None
    assert check(case, block) > 100
    assert set(block.rows["rank_order"]) == {code for code, _ in enumerate(case.profile.rank_orders)}


@given(problems(), st.lists(st.floats(0.0, 2.0), min_size=1))
def test_what_fits_is_told_by_one_comparison(case: Problem, shares: list[float]) -> None:
    most = most_that_fits(case)
    assume(most >= 0.0)
    beside = [most, np.nextafter(most, np.inf), np.nextafter(most, 0.0)]
    need = np.array(beside + [most * share for share in shares])
    fits = memory_rule(case).mask({"memory_headroom": headroom(case, need)})
    assert fits.tolist() == (need <= most).tolist()
    assert fits[:2].tolist() == [True, False]


def test_nothing_fits_where_no_memory_is_left() -> None:
    assert most_that_fits(problem(gpus=8, usable=1e9)) == -1.0


@given(problems(), st.lists(st.floats(0.0, 1e6), min_size=2), st.lists(st.floats(0.0, 1e13), min_size=2))
def test_rounding_keeps_the_order_of_what_takes_longer_or_needs_more(
    case: Problem, busy: list[float], need: list[float]
) -> None:
    near = [np.nextafter(value, np.inf) for value in (busy[0], need[0])]
    seconds = seconds_of(case, np.sort([*busy, near[0]]))
    assert np.all(np.diff(seconds) >= 0.0)
    assert np.all(np.diff(mfu(case, throughput(case, seconds[seconds > 0.0]))) <= 0.0)
    assert np.all(np.diff(headroom(case, np.sort([*need, near[1]]))) <= 0.0)


def test_a_cost_sees_only_the_axes_that_it_declares() -> None:
    table = Layouts.of(tp=2, micro_batch=4)
    with pytest.raises(TypeError):
        table.once(("tp",), lambda few: few.tp * few.micro_batch)


def test_a_rule_that_links_the_factors_is_refused() -> None:
    case = problem(gpus=8)
    rule = Rule("both", ("micro_batch", "zero_stage"), lambda micro_batch, zero_stage: micro_batch > zero_stage, str)
    with pytest.raises(ValueError, match="both links micro_batch, zero_stage"):
        Expansion(case, load_space(case), [rule])
