"""The split of layers over pipeline stages: complete, as even as can be, lighter where the ends weigh."""

from dataclasses import replace
from itertools import accumulate, combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layer_counts import even_layers, fill_layers, split_layers
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.model import load_model
from costmodel.split import OWN, split_table
from tests.strategies import models

weights = st.lists(st.sampled_from((0.05, 0.4, 0.9, 1.0, 1.0, 1.7)), min_size=1, max_size=9)
tails = st.sampled_from((0.0, 0.3, 1.2, 4.0))


def slowest(costs: list[float], tail: float, counts: tuple[int, ...]) -> float:
    ends = list(accumulate(counts))
    stages = [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    return max([*stages[:-1], stages[-1] + tail])


@given(weights, tails, st.data())
def test_slowest_stage_is_as_fast_as_any_split_allows(costs, tail, data):
    layers = len(costs)
    stages = data.draw(st.integers(1, layers))
    counts = split_layers(tuple(costs), tail, stages)
    assert len(counts) == stages
    assert sum(counts) == layers
    assert min(counts) >= 1
    cuts = ((0, *inner, layers) for inner in combinations(range(1, layers), stages - 1))
    every = (tuple(b - a for a, b in pairwise(cut)) for cut in cuts)
    assert slowest(costs, tail, counts) == pytest.approx(min(slowest(costs, tail, split) for split in every))


def test_llama3_405b_has_a_layer_less_on_either_end():
    """126 layers on 16 stages: arXiv 2407.21783 removes one layer from the first and one from the last stage."""
    table = split_table(load_model("llama-3.1-405b"), 8192, [16])
    assert table.split(16) == (7, *[8] * 14, 7)


def test_a_heavy_head_lightens_the_last_stage():
    """DeepSeek-V3's last stage computes the head twice and one more layer for multi-token prediction."""
    counts = split_table(load_model("deepseek-v3"), 4096, [16]).split(16)
    assert sum(counts) == 61
    assert counts[-1] < counts[-2]


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(96, 4, (24,) * 4), (70, 12, (5, *(6,) * 10, 5)), (94, 8, (11, *(12,) * 6, 11)), (71, 12, ()), (70, 1, (70,))],
)
def test_ends_take_a_layers_place_where_that_makes_stages_even(layers, stages, counts):
    """BLOOM's 70 layers on 12 stages and Qwen3-235B's 94 on 8, as they were launched."""
    assert even_layers(layers, stages) == counts


@pytest.mark.parametrize(("stages", "first"), [(2, 18), (4, 9), (8, 5), (16, 3), (32, 2)])
def test_nanotron_fills_its_first_stage_most(stages, first):
    """Layers of the first stage by the parameters that nanotron's published sweep states for it, its 8B model."""
    model = replace(load_model("llama-3.1-8b"), kv_heads=32, vocab=131072)
    counts = split_table(model, 4096, [stages], rule="filled").split(stages)
    assert counts == fill_layers(model, stages)
    assert counts[0] == first == max(counts)
    assert sum(counts) == 32


def test_nanotrons_head_has_a_stage_for_itself_where_it_weighs_one():
    """The head weighs 2.2 layers and a stage of 16 holds 2.1: it then steps as three layers do, not five."""
    model = replace(load_model("llama-3.1-8b"), kv_heads=32, vocab=131072)
    assert fill_layers(model, 16)[-2:] == (2, 0)


def test_more_stages_than_layers_is_an_error():
    with pytest.raises(ValueError, match="3 layers cannot fill 4 stages"):
        split_layers((1.0, 1.0, 1.0), 0.0, 4)


@given(models())
def test_every_layer_and_end_lies_on_one_stage_and_on_two_under_dualpipe(model):
    table = split_table(model, 256, range(1, model.layers + 1))
    whole = (model.dense_layers, model.moe_layers, model.mtp_layers, 1, 1)
    for pp in range(1, model.layers + 1):
        for dual in (False, True):
            row = table.rows(Layouts.of(pp=pp, schedule=SCHEDULES.index("dualpipe") if dual else 0))
            kinds = [table.kind(number, row) for number in range(table.kinds)]
            assert sum(kind["count"][0] for kind in kinds) == pp
            for prefix, copies in (("", 1), ("mirror_", int(dual))):
                held = [sum(kind["count"][0] * kind[prefix + name][0] for kind in kinds) for name in OWN]
                assert held == [copies * number for number in whole]


@given(models())
def test_padding_repeats_the_last_kind(model):
    """So that what is longest or largest of the kinds of all splits is that of each row's own."""
    table = split_table(model, 256, range(1, model.layers + 1))
    padding = table.columns["count"] == 0
    last = (~padding).sum(axis=1, keepdims=True) - 1
    for name, column in table.columns.items():
        if name != "count":
            repeated = np.broadcast_to(np.take_along_axis(column, last, axis=1), column.shape)
            assert (column[padding] == repeated[padding]).all()


def test_embedding_and_loss_may_count_as_layers_of_the_end_stages():
    """Then 405B's 126 layers on 16 stages make 8 virtual stages each, without 7 (Megatron-Core)."""
    model = load_model("llama-3.1-405b")
    assert [split_table(model, 8192, [16], ends=ends).most_virtual(16) for ends in (False, True)] == [7, 8]


def test_virtual_stages_are_not_refused_because_a_heavy_head_lightens_the_last_stage():
    """8B on 8 stages is fastest with 2 layers beside the head; with vpp 4 each has 4."""
    table = split_table(load_model("llama-3.1-8b"), 8192, [8])
    assert table.split(8)[-1] == 2
    assert table.split(8, 4) == (4,) * 8
    assert table.most_virtual(8) == 4


@given(weights, tails, st.data())
def test_no_split_that_leaves_every_stage_its_least_is_faster(costs, tail, data):
    stages = data.draw(st.integers(1, min(4, len(costs))))
    least = tuple(data.draw(st.integers(1, len(costs) // stages)) for _ in range(stages))
    counts = split_layers(tuple(costs), tail, stages, least)
    cuts = ((0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), stages - 1))
    every = [split for split in (tuple(b - a for a, b in pairwise(cut)) for cut in cuts) if enough(split, least)]
    assert enough(counts, least)
    assert slowest(costs, tail, counts) == pytest.approx(min(slowest(costs, tail, split) for split in every))


@given(weights, tails.filter(bool), st.data())
def test_where_the_head_sets_the_pace_the_other_stages_are_even(costs, tail, data):
    stages = data.draw(st.integers(1, len(costs)))
    *others, last = split_layers(tuple(costs), tail, stages)
    rest = costs[: len(costs) - last]
    cuts = ((0, *inner, len(rest)) for inner in combinations(range(1, len(rest)), stages - 2)) if stages > 1 else ()
    every = [slowest(rest, 0.0, tuple(b - a for a, b in pairwise(cut))) for cut in cuts]
    assert stages == 1 or slowest(rest, 0.0, tuple(others)) == pytest.approx(min(every))


def test_a_heavy_head_leaves_no_other_stage_heavy():
    """gpt-oss-120b on 16 stages: the head weighs as much as four layers, yet none of the others has four or five."""
    counts = split_table(load_model("gpt-oss-120b"), 4096, [16]).split(16)
    assert (max(counts), counts[-1]) == (3, 1)


def enough(split: tuple[int, ...], least: tuple[int, ...]) -> bool:
    return all(count >= need for count, need in zip(split, least, strict=True))
