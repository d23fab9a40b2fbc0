"""Balanced stages: told as Megatron reads them, stored beside the frontier, never worse than the closed form."""

import json
import re
import signal
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.estimate import estimate
from costmodel.layouts import Layouts
from costmodel.model import load_model
from costmodel.virtual import chunks
from search import narrative
from search.assignment import Balanced, closed_form, layout_string, recomputed
from search.balance import Tally, balance, balance_frontier
from search.engine import search
from search.explain import explain
from search.frontier import read_frontier, write_parquet
from search.narrative import explanation, folded, same
from search.possible import possible_values
from search.rule import violations
from search.rules import rules
from search.space import load_space
from search.stages import assign
from tests.search.test_stages import REAL
from tests.strategies import problem


def stages_of(text: str) -> list[str]:
    """A layout string as Megatron-Core expands it (pipeline_parallel_layer_layout.py): groups, then letters, then |."""
    text = text.replace(",", "")
    text = re.sub(r"\(([^)]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    text = re.sub(r"([Etm L])\*(\d+)", lambda found: found[1] * int(found[2]), text)
    return text.split("|")


@pytest.mark.parametrize("name", REAL)
def test_the_layout_string_has_every_layer_on_pp_x_vpp_stages(name: str) -> None:
    job, layout = REAL[name]
    found = balance(job, layout)
    assert found is not None
    stages = stages_of(layout_string(found.assignment, job.model.mtp_layers))
    assert len(stages) == layout.pp[0] * layout.vpp[0]
    letters = "".join(stages)
    assert letters == "E" + "t" * job.model.layers + "m" * job.model.mtp_layers + "L"
    assert [stage.count("t") for stage in stages] == list(found.assignment.chunks)


def test_strings_repeat_what_repeats() -> None:
    """As Megatron-Bridge writes Llama-3 70B on PP8 VPP5 (issue 5391) and DeepSeek-V3 on PP16 VPP2."""
    job, layout = REAL["405B"]
    usual = closed_form(job, layout)
    sizes = (2,) * 35 + (3, 2, 2, 2, 1)
    assert layout_string(replace(usual, chunks=sizes, mtp=39), 0) == "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"
    deepseek = replace(usual, chunks=(3, *[2] * 29, 0, 0), mtp=30)
    assert layout_string(deepseek, 1) == "Et*3|(t*2|)*29,m|L"


def test_chunks_are_alike_and_leave_room_for_the_head() -> None:
    assert chunks((11, 12, 12, 11), 3, ends=True) == (3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3)
    assert chunks((3, 2), 2, ends=False) == (1, 1, 2, 1)
    assert chunks((6, 6, 6, 4), 5, ends=True)[-4:] == (2, 2, 2, 0)
    assert chunks((9, 8, 8, 6), 2, ends=True) == (5, 4, 4, 4, 4, 4, 4, 2)
    assert chunks((4, 4, 3, 2), 2, ends=True, apart=True) == (2, 2, 2, 2, 2, 2, 1, 0)


@given(st.data())
def test_phases_take_as_long_as_the_fullest_stage(data: st.DataObject) -> None:
    """All ranks run virtual stage v at about the same time, as long as the slowest of them takes."""
    pp, vpp, ends = data.draw(st.integers(3, 8)), data.draw(st.integers(1, 6)), data.draw(st.booleans())
    least = [max(1, vpp - ends * (rank in (0, pp - 1))) for rank in range(pp)]
    counts = [data.draw(st.integers(few, few + 9)) for few in least]
    sizes = chunks(counts, vpp, ends=ends)
    assert [sum(sizes[rank::pp]) for rank in range(pp)] == counts
    assert all(size >= (1 - ends * (chunk in (0, pp * vpp - 1))) for chunk, size in enumerate(sizes) if vpp > 1)
    assert sum(max(sizes[first : first + pp]) for first in range(0, pp * vpp, pp)) == max(*counts, vpp)


def test_a_layout_that_does_not_fit_may_fit_when_its_stages_are_balanced() -> None:
    layout = REAL["405B"][1]
    wide = problem("llama-3.1-405b", gpus=1024, global_batch=512)
    layout = replace(layout, dp=np.array([8]), dp_shard=np.array([8]))
    assert estimate(wide, layout).memory_headroom[0] < 0
    found = balance(wide, layout)
    assert found is not None
    assert found.chosen
    assert found.gain == 0.0
    assert found.cost.memory_headroom[0] >= 0
    assert any("mlp" in text for text in recomputed(wide, found.assignment))


@pytest.fixture(scope="module")
def searched():
    case = problem("llama-3.1-70b", gpus=32, global_batch=64)
    space = load_space(case, limits={"pp": [4, 8], "tp": [4], "recompute": ["none", "full"]})
    return search(case, space, threads=1)


def test_the_rebuilt_frontier_is_a_frontier_and_nowhere_behind_the_first(searched) -> None:
    found, _ = balance_frontier(searched)
    assert len(found.balanced) == len(found.frontier)
    assert any(found.balanced)
    assert (np.diff(found.estimate.mfu) < 0).all()
    assert (np.diff(found.estimate.memory_headroom) > 0).all()
    for mfu, headroom in zip(searched.estimate.mfu, searched.estimate.memory_headroom, strict=True):
        assert ((found.estimate.mfu >= mfu) & (found.estimate.memory_headroom >= headroom)).any()
    assert found.estimate.mfu[0] > searched.estimate.mfu[0]


def test_the_fastest_layouts_are_balanced_too_where_all_were_kept(searched) -> None:
    kept = search(searched.problem, searched.space, threads=1, keep_all=True)
    done: list[tuple[int, int]] = []
    found, _ = balance_frontier(kept, 40, lambda at, of: done.append((at, of)))
    assert done[-1][0] == done[-1][1] > len(kept.frontier)
    assert found.estimate.mfu[0] >= balance_frontier(searched)[0].estimate.mfu[0]


def test_the_file_holds_the_stages_that_its_figures_are_of(searched, tmp_path) -> None:
    found, _ = balance_frontier(searched)
    write_parquet(tmp_path / "f.parquet", found)
    rows = read_frontier(tmp_path / "f.parquet").rows
    gains = [row["balance_gain"] for row in rows]
    assert max(gains) > 0.0
    for row, how in zip(rows, found.balanced, strict=True):
        stages = stages_of(row["pipeline_layout"])
        assert sum(row["layers_per_stage"]) == "".join(stages).count("t") == 80
        assert len(row["recompute_layers_per_stage"]) == len(row["layers_per_stage"]) == row["pp"]
        if isinstance(how, Balanced):
            assert row["step_time"] == how.cost.step_time[0]
            assert row["balance_gain"] == how.gain
            assert row["layers_per_stage"] == list(how.assignment.layers)


def test_what_is_not_balanced_tells_of_the_closed_form(searched, tmp_path) -> None:
    write_parquet(tmp_path / "f.parquet", searched)
    for row in read_frontier(tmp_path / "f.parquet").rows:
        assert row["balance_gain"] == 0.0
        usual = searched.problem.split([row["pp"]]).split(row["pp"], row["vpp"])
        assert row["layers_per_stage"] == list(usual)
        again = [] if row["recompute"] == "none" else usual
        assert row["recompute_layers_per_stage"] == list(again or [0] * row["pp"])


def test_explain_shows_the_balanced_stages() -> None:
    job, layout = REAL["405B recomputed"]
    found = explain(job, layout, load_space(job))
    text = "\n".join(explanation(found))
    assert "Stages balanced by CP-SAT: slowest stage" in text
    said = "no choice of none, selective, mlp or full for each of them has a faster slowest stage; not that the step"
    assert said in " ".join(text.split())
    assert "Megatron layout   Et*" in text
    balanced = found.balanced
    assert balanced is not None
    assert f"({-balanced.gain:+.1%})" in text


def test_the_recomputation_asked_for_is_kept_on_demand(run) -> None:
    words = ("--gpus", "1024", "--tp", "8", "--pp", "16", "--recompute", "full", "--recompute-layers", "4")
    code, out, _ = run("explain", "llama-3.1-405b", "dgx-h100", *words, "--keep-recompute")
    assert code == 0
    assert "no split of the layers, with recompute full in 4 layers of each stage, has a faster slowest stage" in out
    assert re.search(r"computed again +stages 1, 16: 3 none, 4 full; stages 2-15: 4 none, 4 full", out)


def test_what_is_proven_names_the_splits_that_were_sought(run) -> None:
    words = ("--gpus", "2048", "--precision", "fp8", "--pp", "16", "--ep", "64", "--stages")
    dual = run("explain", "deepseek-v3", "hgx-h800", *words, "--profile", "deepseek").out
    assert "within one of the closed form's on each stage and no choice" in " ".join(dual.split())
    virtual = run("explain", "deepseek-v3", "dgx-h100", *words, "--vpp", "2", "--recompute", "full").out
    assert "no split of the layers into alike virtual stages and no choice" in " ".join(virtual.split())


def test_equal_stages_are_told_once() -> None:
    assert same(["8 none"] * 4) == "8 none on every stage"
    assert same(["1 full", "8 none", "8 none", "7 none", "8 none"]) == (
        "stage 1: 1 full; stages 2-3, 5: 8 none; stage 4: 7 none"
    )


def test_nothing_that_is_pasted_back_is_broken_or_altered(run) -> None:
    """Names of sets keep their underscores, and a layout string its length."""
    words = ("--gpus", "1024", "--tp", "8", "--pp", "16", "--recompute", "core_attn+mlp", "--stages")
    code, out, _ = run("explain", "llama-3.1-405b", "dgx-h100", *words)
    assert code == 0
    assert "recompute core_attn+mlp" in " ".join(out.split())
    text = "E" + "|".join(["t*2,t"] * 60)
    assert folded(f"Megatron layout {text}")[-1].strip() == text


def test_the_balanced_layers_tell_where_multi_token_prediction_is() -> None:
    job, layout = REAL["V3"]
    lines = list(narrative.balanced(explain(job, layout, load_space(job))))
    assert any("layers per stage" in line and "+ 1 MTP module" in line for line in lines)


def test_a_split_that_is_best_already_is_said_to_be() -> None:
    job, layout = REAL["405B"]
    assert "the layers above are as good" in "\n".join(explanation(explain(job, layout, load_space(job))))


def test_search_balances_on_demand(run, tmp_path) -> None:
    path = tmp_path / "f.parquet"
    job = ("llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "32", "--pp", "2,4", "--tp", "1")
    code, out, _ = run("search", *job, "--balance", "--json", "-o", str(path))
    assert code == 0
    rows = json.loads(out)["frontier"]
    assert rows == read_frontier(path).rows
    assert list(chain.from_iterable(row["layers_per_stage"] for row in rows))
    assert load_model("llama-3.1-8b").layers == sum(rows[0]["layers_per_stage"])


def test_no_neighbour_is_faster_than_the_fastest_balanced_layout() -> None:
    """Even where the search found the slowest layout alone."""
    case = problem("llama-3.1-405b", gpus=256, global_batch=256)
    space = load_space(case, limits={"tp": [8], "pp": [8], "recompute": ["full"], "micro_batch": [1, 2]})
    result = search(case, space, threads=1)
    start = replace(result, frontier=result.frontier.take(slice(len(result.frontier) - 1, None)))
    found, tally = balance_frontier(start)
    assert tally.layouts > 1
    best = found.frontier.row(0)
    assert best["micro_batch"] in (1, 2)
    for axis in ("vpp", "micro_batch"):
        values = sorted(space.axes[axis] if axis in space.limits else possible_values(case)[axis])
        place = values.index(best[axis])
        for value in values[max(0, place - 1) : place + 2]:
            other = Layouts.of(**best | {axis: value})
            if value != best[axis] and not violations(rules(case, space), other.row(0)):
                balanced = balance(case, other)
                assert balanced is None or balanced.cost.step_time[0] >= found.estimate.step_time[0]


def test_a_search_that_balances_says_how_many_and_what_was_gained(run) -> None:
    job = ("llama-3.1-405b", "dgx-h100", "--gpus", "256", "--tp", "8", "--pp", "16", "--recompute", "full")
    code, out, err = run("search", *job, "--balance")
    assert code == 0
    said = re.search(r"balanced (\d+) layouts, .*: (\d+) of them gain, ([\d.]+)% of the step at most; proven", err)
    assert said
    assert int(said[1]) >= int(said[2]) > 0
    assert "   no: as it was; balanced, it gains" in out
    none = Tally(layouts=3, gained=0, most=0.0, gap=0.02).said()
    assert none.endswith("none of them gains; slowest stages within 2.0% of a bound")


def test_ctrl_c_ends_a_search_that_balances_and_leaves_no_file(run, monkeypatch, tmp_path) -> None:
    done = []

    def first(job, layout, **how):
        if done:
            signal.raise_signal(signal.SIGINT)
        done.append(layout)
        return assign(job, layout, **how)

    monkeypatch.setattr("search.balance.assign", first)
    job = ("llama-3.1-8b", "dgx-h100", "--gpus", "8", "--global-batch", "32", "--pp", "2,4", "--tp", "1")
    assert run("search", *job, "--balance") == (130, "", "")
    assert len(done) == 1
    assert list(tmp_path.iterdir()) == []
