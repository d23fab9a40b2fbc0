"""Layouts set against each other: differences that add up, in words that name what differs; and the neighbours."""

import json

import pytest

from costmodel.estimate import estimate
from costmodel.layouts import Layouts
from hardware.errors import InputError
from search import differences
from search.compare import changed, compare, neighbours
from search.placement import order, orders, spans
from search.space import load_space
from tests.strategies import problem

JOB = problem("llama-3.1-70b", gpus=64)
SPACE = load_space(JOB)
LAYOUT = Layouts.of(tp=8, pp=4, dp=2, zero_stage=1, sequence_parallel=1, recompute=2)


def test_the_terms_of_two_layouts_add_up_to_the_difference() -> None:
    it = compare(JOB, LAYOUT, changed(JOB, LAYOUT, {"tp": 4, "pp": 8}), SPACE)
    more = float(it.costs[1].step_time[0] - it.costs[0].step_time[0])
    assert sum(one.more for one in it.time) == pytest.approx(more, abs=0.02 * it.costs[0].step_time[0])
    memory = float(it.costs[1].memory_total[0] - it.costs[0].memory_total[0])
    assert sum(one.more for one in it.memory) == pytest.approx(memory, rel=0.02)


def test_words_name_what_differs() -> None:
    other = changed(JOB, LAYOUT, {"pp": 1, "recompute": 5})
    text = "\n".join(differences.against(compare(JOB, LAYOUT, other, SPACE)))
    assert "Against pp 1, dp 8, dp_shard 8, recompute full" in text
    assert "PP 4 -> 1" in text
    assert "recompute selective -> full" in text


MOE = problem("deepseek-v3", gpus=256)
EXPERTS = Layouts.of(pp=4, dp=64, ep=64, zero_stage=1, recompute=2)


def test_experts_are_named_where_they_change_and_nothing_that_does_not() -> None:
    it = compare(MOE, EXPERTS, changed(MOE, EXPERTS, {"ep": 32}), load_space(MOE))
    gemm = next(one for one in it.time if one.name == "gemm")
    assert gemm.because == "EP 64 -> 32, tokens of an expert 8,192 -> 4,096"
    for job, layout in ((MOE, EXPERTS), (JOB, LAYOUT)):
        for _, it in neighbours(job, layout, load_space(job)):
            for one in (*it.time, *it.memory):
                assert "->" in one.because or " now " in one.because or one.because == "a share of the rest", one


def test_another_slowest_stage_is_named() -> None:
    """Recomputation makes layers slower, and the head no slower."""
    job = problem("llama-3.1-8b", gpus=8, global_batch=32)
    layout = Layouts.of(pp=2, dp=4, zero_stage=1, recompute=0)
    it = compare(job, layout, changed(job, layout, {"recompute": 5}), load_space(job))
    assert any("slowest stage now the one with the embedding" in one.because for one in it.time)


def test_the_term_that_is_told_goes_the_way_of_the_step() -> None:
    for job, layout in ((JOB, LAYOUT), (MOE, EXPERTS)):
        for _, it in neighbours(job, layout, load_space(job)):
            if it.driving and any((one.more > 0) == (it.slower > 0) for one in it.time):
                assert (it.driving[0].more > 0) == (it.slower > 0)
                assert all(abs(one.more) > abs(it.driving[0].more) for one in it.driving[1:])


def test_neighbours_that_nobody_would_notice_are_left_out() -> None:
    for job, layout in ((JOB, LAYOUT), (MOE, EXPERTS)):
        for _, it in neighbours(job, layout, load_space(job)):
            memory = it.costs[1].memory_total[0] / it.costs[0].memory_total[0] - 1.0
            assert it.broken or abs(it.slower) >= 5e-4 or abs(memory) >= 5e-4
    assert compare(JOB, LAYOUT, LAYOUT, SPACE).alike


def test_the_same_layout_is_said_to_be_the_same() -> None:
    assert list(differences.against(compare(JOB, LAYOUT, LAYOUT, SPACE)))[1:] == [
        "Against the same layout: nothing differs"
    ]


def test_exposed_data_parallel_traffic_is_told_with_its_links() -> None:
    """The issue's example: one NIC for each member of a group that has one rank a node."""
    job = problem("llama-3.1-8b", gpus=64, global_batch=64)
    inside = Layouts.of(tp=1, dp=64, zero_stage=3, recompute=5)
    lines = differences.against(compare(job, inside, changed(job, inside, {"tp": 8}), load_space(job)))
    text = " ".join(word for line in lines for word in line.split())
    assert "exposed data-parallel traffic" in text
    assert "DP 64 over leaf (8 NICs of each nvlink domain) -> 8 over leaf (one NIC of each nvlink domain)" in text


def test_dp_takes_up_the_rest_and_what_follows_follows() -> None:
    found = changed(JOB, LAYOUT, {"tp": 1, "pp": 2}).row(0)
    assert (found["dp"], found["dp_shard"], found["sequence_parallel"]) == (32, 32, 0)
    assert changed(JOB, LAYOUT, {"vpp": 2}).schedule[0] == 1
    with pytest.raises(InputError, match="tp 8 x pp 4 x cp 1 x dp 4 = 128, not the 64 GPUs"):
        changed(JOB, LAYOUT, {"dp": 4})


def test_neighbours_are_one_axis_away_fastest_first_and_the_impossible_last() -> None:
    found = neighbours(JOB, LAYOUT, SPACE)
    speeds = [it.slower for _, it in found if not it.broken]
    assert speeds == sorted(speeds)
    assert [bool(it.broken) for _, it in found] == sorted(bool(it.broken) for _, it in found)
    names = [name for name, _ in found]
    assert {"tp 8 -> 4", "pp 4 -> 2", "pp 4 -> 8", "micro_batch 1 -> 2", "recompute selective -> full"} <= set(names)
    broken = dict(found)["tp 8 -> 16"].broken
    assert broken[0][0] == "tp_domain"


def test_spans_are_the_links_that_groups_need() -> None:
    found = spans(JOB, LAYOUT)
    assert [(found[axis].level, found[axis].inside) for axis in ("tp", "dp", "pp")] == [
        ("nvlink", 8),
        ("leaf", 1),
        ("leaf", 1),
    ]
    assert order(JOB, LAYOUT).startswith("TP 8 inside nvlink; DP 2 over leaf (one NIC of each nvlink domain)")


def test_pipelines_inside_data_parallelism_hop_over_nearer_links() -> None:
    """TP 2 x PP 4 fill a node: stages hand on over NVLink, and gradients meet over one NIC in place of four."""
    job = problem("llama-3.1-8b", gpus=64, global_batch=64)
    both = [Layouts.of(tp=2, pp=4, dp=8, zero_stage=1, sequence_parallel=1, rank_order=code) for code in (0, 1)]
    assert [(spans(job, it)["pp"].level, spans(job, it)["dp"].inside) for it in both] == [("leaf", 4), ("nvlink", 1)]
    usual, other = (estimate(job, it).time for it in both)
    assert other.pipeline_send[0] < usual.pipeline_send[0]
    assert other.data_parallel[0] > usual.data_parallel[0]
    found = orders(job, both[0])
    assert found == orders(job, both[1])
    assert list(found) == sorted(found, key=found.__getitem__)
    assert set(found) == {"tp-cp-dp-pp", "tp-cp-pp-dp"}


def test_an_order_that_experts_do_not_allow_is_not_compared() -> None:
    """Their groups would lie over the ranks of other stages; Megatron-Core asserts that they do not."""
    job = problem("mixtral-8x7b", gpus=64)
    axes = {"tp": 2, "pp": 4, "dp": 8, "zero_stage": 1, "sequence_parallel": 1}
    assert set(orders(job, Layouts.of(**axes, ep=8))) == {"tp-cp-dp-pp"}
    assert set(orders(job, Layouts.of(**axes, ep=2))) == {"tp-cp-dp-pp", "tp-cp-pp-dp"}


def test_context_parallel_ranks_stay_side_by_side_under_pipelines() -> None:
    """TP 2 x CP 4 fill a node in either order, so that gradients meet over its four NICs."""
    job = problem("llama-3.1-8b", gpus=64, global_batch=64)
    both = [Layouts.of(tp=2, cp=4, pp=4, dp=2, zero_stage=1, sequence_parallel=1, rank_order=code) for code in (0, 1)]
    assert [spans(job, it)["dp"].inside for it in both] == [4, 4]
    assert len({float(estimate(job, it).time.data_parallel[0]) for it in both}) == 1


def test_neighbours_offer_the_other_order_where_it_is_another_layout() -> None:
    job = problem("llama-3.1-8b", gpus=64, global_batch=64)

    def names(**axes: int) -> list[str]:
        layout = Layouts.of(**axes, zero_stage=1, sequence_parallel=1)
        return [name for name, _ in neighbours(job, layout, load_space(job)) if name.startswith("rank_order")]

    assert names(tp=2, pp=4, dp=8) == ["rank_order tp-cp-dp-pp -> tp-cp-pp-dp"]
    assert names(tp=2, pp=1, dp=32) == names(tp=2, pp=32, dp=1) == []


def test_explain_says_what_another_order_of_the_ranks_changes(run) -> None:
    words = ("explain", "llama-3.1-8b", "dgx-h100", "--gpus", "64", "--tp", "2", "--pp", "4", "--stages")
    usual, inside = (run(*words, "--rank-order", name).out for name in ("tp-cp-dp-pp", "tp-cp-pp-dp"))
    assert "tp-cp-pp-dp" in usual
    assert "PP 4 inside nvlink" in " ".join(inside.split())


def test_explain_sets_a_row_against_another_and_against_changes(run, tmp_path) -> None:
    path = str(tmp_path / "f.parquet")
    assert run("search", "llama-3.1-8b", "dgx-h100", "--gpus", "8", "--tp", "1,2", "-o", path).code == 0
    code, out, _ = run("explain", path, "--rank", "1", "--against", "2", "--neighbours", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["against"]["slower"] >= 0.0
    assert found["neighbours"]
    terms = [term for other in found["neighbours"] for term in other["time_terms"]]
    assert {"name", "before", "after", "more", "because"} == set(terms[0])
    code, out, _ = run("explain", path, "--against", "recompute=full")
    assert code == 0
    assert "Against recompute full" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "2"), "--against 2: a row needs the frontier FILE"),
        (("--against", "foo=2"), "'foo=2' is neither a row nor AXIS=VALUE of tp, pp"),
        (("--against", "tp=3"), "tp 3 x pp 1 x cp 1 = 3 does not divide the 8 GPUs"),
        (("--against", "recompute=some"), "recompute 'some'"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(run, words, said) -> None:
    code, out, err = run("explain", "llama-3.1-8b", "dgx-h100", "--gpus", "8", *words)
    assert (code, out) == (2, "")
    assert said in err
