"""The search against a brute-force loop over the same space, and what must not depend on how it is cut."""

import signal
from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from costmodel.estimate import estimate
from costmodel.layouts import AXES, Column, Layouts
from costmodel.problem import Problem
from costmodel.split import StageTable
from hardware.errors import InputError
from search import engine, expansion
from search.engine import Account, SearchResult, Tally, Work, search
from search.expansion import Block, Expansion, Product, Stage, Table
from search.pareto import Points
from search.possible import ALL_RANKS, recompute_codes
from search.rule import violations
from search.rules import rules, skeleton_rules
from search.scoring import Costs
from search.skeletons import enumerate_skeletons
from search.space import SearchSpace, load_space
from tests.strategies import problem, problems


@st.composite
def reduced(draw: st.DrawFn) -> tuple[Problem, SearchSpace]:
    """A problem, and a part of its space that is small enough for a loop in Python."""
    case = draw(problems())
    space = load_space(case)
    most = {"tp": 3, "pp": 3, "cp": 2, "ep": 2, "etp": 2, "vpp": 2, "micro_batch": 2, "recompute": 2, "zero_stage": 3}
    most["rank_order"] = 2
    axes = dict(space.axes) | {"recompute": recompute_codes(case, free=True)}
    axes["recompute_layers"] = (0, *draw(st.sampled_from([(), (1,), (2,), (1, 4)])))
    for axis, size in most.items():
        some = draw(st.sets(st.sampled_from(axes[axis]), min_size=1, max_size=size))
        axes[axis] = tuple(sorted(some))
    space = replace(space, axes=axes)
    assume(len(space.grid(case.workload.gpus)["tp"]))
    return case, space


def tuples(problem: Problem, space: SearchSpace) -> list[dict[str, int]]:
    """Every candidate, by the definition: a tuple of axis values with tp * pp * cp * dp = GPUs."""
    degrees, found = ("tp", "pp", "cp", "dp"), {}
    others = [axis for axis in AXES if axis not in degrees]
    for degree in product(*(space.axes[axis] for axis in degrees)):
        if prod(degree) != problem.workload.gpus:
            continue
        for values in product(*(space.axes[axis] for axis in others)):
            row = dict(zip((*degrees, *others), (*degree, *values), strict=True))
            if row["dp_shard"] == ALL_RANKS:
                row["dp_shard"] = row["dp"] * row["cp"]
            found[tuple(row[axis] for axis in AXES)] = row
    return list(found.values())


def brute_force(problem: Problem, space: SearchSpace) -> tuple[Account, list[tuple[int, ...]]]:
    """Account and frontier by a loop over the tuples and a sorted scan."""
    *ordered, memory = rules(problem, space)
    every, pruned, legal, points = tuples(problem, space), Counter[str](), [], []
    for row in every:
        broken = violations(ordered, row)
        if broken:
            pruned[broken[0][0]] += 1
        else:
            legal.append(row)
    if legal:
        cost = estimate(problem, Layouts.from_columns({axis: [row[axis] for row in legal] for axis in AXES}))
        scores = zip((-cost.mfu).tolist(), (-cost.memory_headroom).tolist(), legal, strict=True)
        points = sorted(
            (mfu, headroom, tuple(row[axis] for axis in AXES)) for mfu, headroom, row in scores if headroom <= 0
        )
    pruned[memory.name] = len(legal) - len(points)
    frontier: list[tuple[float, float, tuple[int, ...]]] = []
    for point in points:
        if not frontier or point[1] < frontier[-1][1]:
            frontier.append(point)
    account = Account(
        candidates=len(every),
        pruned={rule.name: pruned[rule.name] for rule in (*ordered, memory)},
        bounded=0,
        scored=len(legal),
        feasible=len(points),
    )
    return account, [axes for _, _, axes in frontier]


def searched(problem: Problem, space: SearchSpace, keep_all: bool = False) -> SearchResult:
    """A search; drawn problems whose global batch no DP divides are passed over."""
    try:
        return search(problem, space, threads=1, keep_all=keep_all)
    except InputError:
        reject()


def axes_of(layouts: Layouts) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(layouts, axis).tolist() for axis in AXES), strict=True))


@given(reduced())
@settings(max_examples=20, deadline=None)
def test_equals_the_brute_force_search(case: tuple[Problem, SearchSpace]) -> None:
    problem, space = case
    result = searched(problem, space)
    account, frontier = brute_force(problem, space)
    assert result.account == account
    assert list(result.account.pruned) == list(account.pruned)
    assert axes_of(result.frontier) == frontier


@given(reduced(), st.data())
@settings(max_examples=20, deadline=None)
def test_no_feasible_layout_breaks_a_rule(case: tuple[Problem, SearchSpace], data: st.DataObject) -> None:
    problem, space = case
    kept = searched(problem, space, keep_all=True).feasible
    assert kept is not None
    for index in data.draw(st.lists(st.integers(0, len(kept) - 1), max_size=8)) if len(kept) else []:
        row: dict[str, float] = dict(kept.row(index))
        assert row["tp"] * row["pp"] * row["cp"] * row["dp"] == problem.workload.gpus
        row["memory_headroom"] = float(estimate(problem, kept.take([index])).memory_headroom[0])
        assert violations(rules(problem, space), row) == []  # type: ignore[arg-type]


class Recorder(Work):
    """Keeps every layout that is scored."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type]
        self.scored: list[tuple[int, ...]] = []

    def _score(self, tally: Tally, block: Block, product: Product, costs: Costs, most_free: Column) -> None:
        places = np.indices(product.shape).reshape(3, -1)
        self.scored += axes_of(block.layouts(product, *places))
        super()._score(tally, block, product, costs, most_free)


def check_bounds(problem: Problem, space: SearchSpace) -> Account:
    """The account of a search with bounds, after a look at each layout that they excluded, by brute force."""
    skeletons = enumerate_skeletons(problem, space, skeleton_rules(problem, space))
    work = Recorder(problem, space, skeletons, bounds=True)
    total = work.run(1, None)
    legal = list(Expansion(problem, space).tables(skeletons.table))
    table = Layouts.from_columns({axis: np.concatenate([part[axis] for part in legal]) for axis in AXES})
    assert len(set(work.scored)) == len(work.scored) == total.scored
    assert total.scored + total.bounded == len(table)
    cost = estimate(problem, table)
    fits, scored = cost.memory_headroom >= 0, set(work.scored)
    for row in [index for index, axes in enumerate(axes_of(table)) if axes not in scored]:
        better = fits & (cost.mfu >= cost.mfu[row]) & (cost.memory_headroom > cost.memory_headroom[row])
        assert better.any() or not fits[row]
    return work.account(total)


@given(reduced())
@settings(max_examples=15, deadline=None)
def test_what_a_bound_excludes_is_beaten_or_does_not_fit(case: tuple[Problem, SearchSpace]) -> None:
    problem, space = case
    plain = searched(problem, space)
    assume(plain.account.scored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "TILE", 1)
        check_bounds(problem, space)
        bounded = search(problem, space, bounds=True)
    assert axes_of(bounded.frontier) == axes_of(plain.frontier)


def test_bounds_exclude_most_of_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("llama-3.1-70b", gpus=64)
    space = load_space(case, limits={"cp": [1, 2], "vpp": [1, 2, 5], "micro_batch": [1, 2, 4]})
    monkeypatch.setattr(engine, "TILE", 100)
    found = check_bounds(case, space)
    assert found.bounded > found.scored > found.feasible > 50
    assert search(case, space, bounds=True, threads=3).account == found


def test_the_order_of_the_ranks_is_chosen_for_each_layout() -> None:
    """TP 2 x CP 4 x PP 9 fill a rack of 72 GPUs: hops stay inside of it where PP lies before DP."""
    case = problem("llama-3.1-70b", "gb200-nvl72", 576)
    limits = {"tp": [2], "cp": [4], "pp": [1, 9, 72], "micro_batch": [1], "vpp": [1], "recompute": ["none"]}
    space = load_space(case, limits=limits)
    both, usual = search(case, space), search(case, replace(space, axes={**space.axes, "rank_order": (0,)}))
    assert both.frontier.row(0) == usual.frontier.row(0) | {"rank_order": 1}
    assert both.estimate.step_time[0] < usual.estimate.step_time[0]
    one = (both.frontier.pp == 1) | (both.frontier.dp == 1)
    assert not both.frontier.rank_order[one].any()


def test_a_block_may_be_excluded_as_a_whole() -> None:
    """The floor is that of ZeRO 3; the states of ZeRO 0, which alone is asked for, do not fit."""
    case = problem("llama-3.1-8b", gpus=8)
    space = load_space(case, limits={"tp": [1], "pp": [1], "zero_stage": [0]})
    found = search(case, space, bounds=True).account
    assert found.bounded > found.scored == 0


def same(one: SearchResult, two: SearchResult) -> bool:
    assert one.feasible is not None
    assert two.feasible is not None
    assert one.account == two.account
    return axes_of(one.frontier) == axes_of(two.frontier) and axes_of(one.feasible) == axes_of(two.feasible)


def test_threads_chunks_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("llama-3.1-70b", gpus=64)
    space = load_space(case, limits={"micro_batch": [1], "cp": [1, 2], "vpp": [1, 2, 5]})
    one = search(case, space, threads=1, keep_all=True)
    assert one.account.feasible > 100
    assert same(one, search(case, space, threads=3, keep_all=True))
    monkeypatch.setattr(expansion, "CHUNK", 37)
    monkeypatch.setattr(engine, "TILE", 50)
    monkeypatch.setattr(engine, "BLOCK", 3)
    assert same(one, search(case, space, threads=2, keep_all=True))
    for threads in (1, 3):
        sieved = search(case, space, threads=threads)
        assert sieved.account == one.account
        assert axes_of(sieved.frontier) == axes_of(one.frontier)


def test_no_table_on_the_way_exceeds_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    class Spy(Expansion):
        def _apply(self, stage: Stage, table: Table, rejected: list[int]) -> Table:
            sizes.append(len(table["tp"]))
            return super()._apply(stage, table, rejected)

    monkeypatch.setattr(engine, "Expansion", Spy)
    monkeypatch.setattr(expansion, "CHUNK", 500)
    case = problem(gpus=8)
    result = search(case, load_space(case), threads=1)
    assert 100 < max(sizes) <= 500
    assert result.account.scored > 500


def test_frontier_comes_with_its_estimate_and_all_layouts_ranked() -> None:
    case = problem(gpus=8)
    result = search(case, load_space(case), threads=1, keep_all=True)
    assert result.estimate is not None
    assert result.feasible is not None
    assert len(result.feasible) == result.account.feasible
    every = estimate(case, result.feasible)
    ranked = Points(every.mfu, every.memory_headroom, result.feasible).ranked()
    assert axes_of(ranked.layouts) == axes_of(result.feasible)
    assert result.estimate.mfu[0] == every.mfu[0]
    assert np.all(np.diff(result.estimate.memory_headroom) > 0)


def test_nothing_fits_is_a_result_with_an_account() -> None:
    case = problem("llama-3.1-405b", gpus=8, usable=2e9)
    result = search(case, load_space(case))
    assert (result.account.feasible, len(result.frontier), result.estimate) == (0, 0, None)
    assert result.solver.status == "INFEASIBLE"
    assert result.account.pruned["memory_floor"] > 0
    assert result.account.candidates == sum(result.account.pruned.values())


def test_progress_counts_up_to_all_skeletons() -> None:
    case, seen = problem("mixtral-8x7b", gpus=32), []
    limits = {"micro_batch": [1], "recompute": ["full"], "vpp": [1]}
    result = search(case, load_space(case, limits=limits), progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (result.solver.skeletons, result.solver.skeletons)


def test_ctrl_c_still_reaches_python_after_the_solver() -> None:
    case = problem(gpus=8)
    search(case, load_space(case, limits={"tp": [8]}))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_ends_the_search_and_its_threads() -> None:
    case, calls = problem("llama-3.1-70b", gpus=64), []

    def interrupt(done: int, total: int) -> None:
        calls.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(case, load_space(case), threads=2, progress=interrupt)
    assert len(calls) == 1


def test_a_fault_in_a_worker_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(problem: Problem, stages: StageTable, block: Block) -> object:
        raise ZeroDivisionError("in a thread")

    monkeypatch.setattr(engine, "Scorer", broken)
    case = problem(gpus=8)
    with pytest.raises(ZeroDivisionError, match="in a thread"):
        search(case, load_space(case), threads=2)
