"""Counts must equal the tensors in the published checkpoints, to the last parameter."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.model import Model, load_model, model_names
from costmodel.params import active, counts, layer, mtp, total

CHECKPOINTS = {
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v3": 671_026_419_200,
}
TINY = Model(
    name="tiny", source="test", layers=2, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn_hidden=16, vocab=10,
    seq_len=8,
)  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), CHECKPOINTS.items())
def test_total_equals_the_published_checkpoint(name: str, parameters: int) -> None:
    assert total(load_model(name)) == parameters


def test_deepseek_v3_matches_its_checkpoint_by_data_type() -> None:
    """Hugging Face lists 680,571,043,840 FP8 and 3,918,786,560 BF16; the FP32 router biases come on top."""
    model = load_model("deepseek-v3")
    copies = counts(model).embedding + counts(model).head
    router_biases = 59 * 256  # 58 MoE layers and the multi-token-prediction layer
    assert total(model) + mtp(model) + copies == 680_571_043_840 + 3_918_786_560 + router_biases


def test_deepseek_v3_multi_token_prediction_is_counted_apart() -> None:
    model = load_model("deepseek-v3")
    assert mtp(model) == 11_610_068_224
    assert mtp(dataclasses.replace(model, mtp_layers=2)) == 2 * 11_610_068_224
    assert total(dataclasses.replace(model, mtp_layers=0)) == total(model)


def test_active_parameters() -> None:
    v3 = load_model("deepseek-v3")
    assert active(v3) == 37_552_297_472
    assert active(v3) - counts(v3).embedding == 36_625_618_432
    assert active(load_model("mixtral-8x7b")) == 12_879_925_248
    assert active(load_model("llama-3.1-8b")) == 8_030_261_248


def test_one_expert_of_deepseek_v3_has_the_published_width() -> None:
    c = counts(load_model("deepseek-v3"))
    assert c.expert == c.shared == 3 * 7168 * 2048
    assert c.dense_mlp == 3 * 7168 * 18432
    assert c.attention == 187_107_328


@pytest.mark.parametrize("name", model_names())
def test_parts_of_a_model_that_do_not_exist_count_nothing(name: str) -> None:
    model = load_model(name)
    c = counts(model)
    assert (c.expert > 0, c.router > 0) == (model.is_moe, model.is_moe)
    assert (c.dense_mlp > 0) == (model.dense_layers > 0)
    assert (c.mtp > 0) == (model.mtp_layers > 0)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"tied_embeddings": True}, -80),
        ({"gated_mlp": False}, -2 * 8 * 16),
        ({"qkv_bias": True}, 2 * (8 + 4 + 4)),
        ({"attention_output_bias": True}, 2 * 8),
        ({"mlp_bias": True}, 2 * (16 + 16 + 8)),
        ({"mlp_bias": True, "gated_mlp": False}, 2 * (16 + 8) - 2 * 8 * 16),
        ({"qk_norm": True}, 2 * (2 + 2)),
        ({"norm_bias": True}, (2 * 2 + 1) * 8),
        ({"norms_per_layer": 4}, 2 * 2 * 8),
        ({"learned_positions": 7}, 7 * 8),
    ],
)
def test_each_option_adds_its_own_tensors(change: dict[str, int], more: int) -> None:
    assert total(dataclasses.replace(TINY, **change)) - total(TINY) == more  # type: ignore[arg-type]


def test_gpt2_matches_its_checkpoint() -> None:
    """Learned positions, biases everywhere, plain MLP, tied head: 124,439,808 parameters."""
    gpt2 = Model(
        name="gpt2", source="test", layers=12, hidden=768, heads=12, kv_heads=12, head_dim=64,
        ffn_hidden=3072, vocab=50257, seq_len=1024, gated_mlp=False, tied_embeddings=True, qkv_bias=True,
        attention_output_bias=True, mlp_bias=True, norm_bias=True, learned_positions=1024,
    )  # fmt: skip
    assert total(gpt2) == 124_439_808


def test_mla_without_query_rank_projects_queries_in_one_step() -> None:
    model = load_model("deepseek-v3")
    direct = counts(dataclasses.replace(model, q_lora_rank=0)).attention
    low_rank = 7168 * 1536 + 1536 * 128 * 192 + 1536
    assert direct == counts(model).attention - low_rank + 7168 * 128 * 192


@st.composite
def moe_models(draw: st.DrawFn) -> Model:
    layers = draw(st.integers(1, 40))
    first = draw(st.integers(0, layers - 1))
    step = draw(st.integers(1, layers - first))
    experts = draw(st.integers(1, 64))
    dense = first > 0 or step > 1
    return dataclasses.replace(
        TINY, layers=layers, first_dense_layers=first, experts=experts, expert_ffn_hidden=4,
        experts_per_token=draw(st.integers(1, experts)), shared_experts=draw(st.integers(0, 2)),
        moe_layer_step=step, ffn_hidden=16 if dense else 0,
        mtp_layers=draw(st.integers(0, 2)),
    )  # fmt: skip


@given(moe_models())
def test_total_is_the_sum_of_the_layers_and_active_leaves_out_idle_experts(model: Model) -> None:
    c = counts(model)
    layers = sum(layer(model, moe=moe) for moe in model.layer_is_moe)
    assert total(model) == c.embedding + layers + c.final_norm + c.head
    assert len(model.layer_is_moe) == model.layers == model.dense_layers + model.moe_layers
    everyone = dataclasses.replace(model, experts_per_token=model.experts)
    assert active(model) <= active(everyone) == total(model)
