"""FLOPs of models with attention windows: what a published MFU is a share of."""

import dataclasses

import pytest

from costmodel.flops import attended, core_attention, feed_forward, step_flops_per_token
from costmodel.model import load_model
from costmodel.params import active


def pairs(seq_len: int, window: int, *, chunked: bool) -> int:
    """Pairs of a query and a key that causal attention with a window computes, counted one by one."""
    return sum(
        1
        for query in range(seq_len)
        for key in range(query + 1)
        if not window or (query // window == key // window if chunked else query - key < window)
    )


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("window", [0, 16, 50, 64, 100, 128, 500])
def test_a_window_leaves_as_many_keys_as_its_mask(window: int, chunked: bool) -> None:
    """Half of the attended square, to half a key: the causal half of s keys stands for (s + 1) / 2."""
    model = dataclasses.replace(load_model("mistral-7b"), windows=(window,), chunked_windows=chunked)
    assert attended(model, 128) / 2 == pytest.approx(pairs(128, window, chunked=chunked) / 128, abs=0.51)


def test_windowed_layers_are_averaged_with_full_ones() -> None:
    """gpt-oss alternates 128 tokens with all of them: at 8k little more than half of the work is left."""
    oss = load_model("gpt-oss-120b")
    everywhere = dataclasses.replace(oss, windows=())
    share = core_attention(oss, 8192) / core_attention(everywhere, 8192)
    assert share == pytest.approx((1 + 128 / 8192 * (2 - 128 / 8192)) / 2)
    assert core_attention(oss, 128) == core_attention(everywhere, 128)


def test_chunks_are_full_attention_up_to_their_length() -> None:
    llama = load_model("llama-4-maverick")
    assert attended(llama, 8192) == 8192
    assert attended(llama, 32768) == (3 * 8192 + 32768) / 4


def test_a_pattern_that_does_not_divide_the_layers_is_cut() -> None:
    model = dataclasses.replace(load_model("llama-3.1-8b"), layers=3, windows=(32, 0))
    assert model.layer_windows == (32, 0, 32)
    assert attended(model, 64) == (48 + 64 + 48) / 3


def test_step_flops_follow_the_window_in_every_convention_that_counts_attention() -> None:
    model = load_model("mistral-7b")
    wide = dataclasses.replace(model, windows=())
    for convention, part in (("causal", 1.5), ("full", 3.0)):
        less = step_flops_per_token(wide, 32768, convention, 0.0) - step_flops_per_token(model, 32768, convention, 0.0)
        per_layer = core_attention(wide, 32768) - core_attention(model, 32768)
        assert less == pytest.approx(part * 32 * per_layer)
    assert step_flops_per_token(model, 32768, "6n", active(model)) == 6 * active(model)


def test_shared_experts_of_their_own_width_and_their_gate() -> None:
    base = dataclasses.replace(load_model("qwen3-30b-a3b"), shared_experts=1)
    wide = dataclasses.replace(base, shared_expert_ffn_hidden=5632, shared_gate=True)
    more = feed_forward(wide, moe=True) - feed_forward(base, moe=True)
    assert more == 2 * (3 * 2048 * (5632 - 768) + 2048)
