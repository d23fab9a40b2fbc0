"""Counts must equal the tensors in the published checkpoints, to the last parameter."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.held import stage_parameters
from costmodel.model import Model, load_model, model_names
from costmodel.params import active, counts, layer, mtp, total

# total, active (with the input embedding)
LITERALS = {
    "bloom-176b": (176_247_271_424, 176_247_271_424),
    "deepseek-v2": (235_741_434_880, 21_375_800_320),
    "deepseek-v3": (671_026_419_200, 37_552_297_472),
    "gpt-oss-120b": (116_829_156_672, 5_711_982_912),
    "gpt-oss-20b": (20_914_757_184, 4_187_440_704),
    "gpt3-175b": (174_604_259_328, 174_604_259_328),
    "grok-1": (315_684_820_992, 83_756_587_008),
    "kimi-k2": (1_026_408_232_448, 32_861_500_928),
    "llama-2-13b": (13_015_864_320, 13_015_864_320),
    "llama-2-70b": (68_976_648_192, 68_976_648_192),
    "llama-2-7b": (6_738_415_616, 6_738_415_616),
    "llama-3.1-405b": (405_853_388_800, 405_853_388_800),
    "llama-3.1-70b": (70_553_706_496, 70_553_706_496),
    "llama-3.1-8b": (8_030_261_248, 8_030_261_248),
    "llama-4-maverick": (400_711_848_960, 17_184_691_200),
    "mistral-7b": (7_241_732_096, 7_241_732_096),
    "mixtral-8x22b": (140_620_634_112, 39_152_031_744),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "nemotron-4-340b": (341_029_195_776, 341_029_195_776),
    "olmo-2-32b": (32_234_279_936, 32_234_279_936),
    "qwen2.5-32b": (32_763_876_352, 32_763_876_352),
    "qwen2.5-72b": (72_706_203_648, 72_706_203_648),
    "qwen2.5-7b": (7_615_616_512, 7_615_616_512),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen3-32b": (32_762_123_264, 32_762_123_264),
    "qwen3-8b": (8_190_735_360, 8_190_735_360),
}
# billions as printed, cut or rounded to these digits: total, then active
PUBLISHED = {
    "bloom-176b": ("176.247", "", "model card of bigscience/bloom: 176,247,271,424"),
    "deepseek-v2": ("236", "21", "arXiv 2405.04434 abstract"),
    "deepseek-v3": ("671", "37", "arXiv 2412.19437 abstract"),
    "gpt-oss-120b": ("116.83", "", "gpt-oss model card arXiv 2508.10925 Table 1"),
    "gpt-oss-20b": ("20.91", "", "gpt-oss model card arXiv 2508.10925 Table 1"),
    "gpt3-175b": ("175", "", "arXiv 2005.14165 Table 2.1, which prints 175.0"),
    "llama-2-13b": ("13.0", "", "arXiv 2302.13971 Table 2"),
    "llama-2-7b": ("6.7", "", "arXiv 2302.13971 Table 2"),
    "llama-2-70b": ("69", "", "tensors of meta-llama/Llama-2-70b-hf; the paper's 70 is a name"),
    "llama-3.1-405b": ("405", "", "arXiv 2407.21783 section 1"),
    "llama-3.1-70b": ("70.6", "", "tensors of meta-llama/Llama-3.1-70B"),
    "llama-3.1-8b": ("8.03", "", "tensors of meta-llama/Llama-3.1-8B"),
    "llama-4-maverick": ("400", "17", "model card of meta-llama/Llama-4-Maverick-17B-128E"),
    "mistral-7b": ("7.24", "", "tensors of mistralai/Mistral-7B-v0.1"),
    "mixtral-8x22b": ("141", "39", "mistral.ai, announcement of Mixtral 8x22B"),
    "mixtral-8x7b": ("46.7", "12.9", "mistral.ai, announcement of Mixtral of experts"),
    "nemotron-4-340b": ("341", "", "arXiv 2406.11704 section 2.1: 9.4 and 331.6"),
    "olmo-2-32b": ("32.2", "", "tensors of allenai/OLMo-2-0325-32B"),
    "qwen2.5-72b": ("72.7", "", "model card of Qwen/Qwen2.5-72B"),
    "qwen2.5-7b": ("7.61", "", "model card of Qwen/Qwen2.5-7B"),
    "qwen3-235b-a22b": ("235", "22", "arXiv 2505.09388 Table 2 and abstract"),
    "qwen3-30b-a3b": ("30.5", "3.3", "model card of Qwen/Qwen3-30B-A3B"),
    "qwen3-32b": ("32.8", "", "model card of Qwen/Qwen3-32B"),
    "qwen3-8b": ("8.2", "", "model card of Qwen/Qwen3-8B"),
}
# printed figures that the tensors do not give, and by how much the tensors are more
OTHERWISE = {
    "grok-1": (314, 0.005, "release of xai-org/grok-1: its layers alone"),
    "kimi-k2": (1040, -0.013, "arXiv 2507.20534 Table 2; the model card says 1T"),
    "qwen2.5-32b": (32.5, 0.008, "model card of Qwen/Qwen2.5-32B"),
}
TINY = Model(
    name="tiny", source="test", layers=2, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn_hidden=16, vocab=10,
    seq_len=8,
)  # fmt: skip


def digits(text: str) -> float:
    """One unit of the last printed digit."""
    return 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize("name", model_names())
def test_total_and_active_parameters(name: str) -> None:
    """Totals are the tensors of the published checkpoint, which tests/golden/hf_counts.json counts again."""
    model = load_model(name)
    assert (total(model), active(model)) == LITERALS[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures_to_their_digits(name: str) -> None:
    model = load_model(name)
    for text, count in zip(PUBLISHED[name][:2], (total(model), active(model)), strict=True):
        assert not text or abs(count / 1e9 - float(text)) < digits(text), (name, text, count)


@pytest.mark.parametrize("name", OTHERWISE)
def test_published_figures_that_the_tensors_do_not_give(name: str) -> None:
    printed, more, _ = OTHERWISE[name]
    assert round(total(load_model(name)) / 1e9 / printed - 1, 3) == more


def test_every_shipped_model_has_a_published_figure() -> None:
    assert PUBLISHED.keys() | OTHERWISE.keys() == set(LITERALS) == set(model_names())


def test_gpt_oss_prints_active_parameters_without_the_input_embedding() -> None:
    """Model card arXiv 2508.10925 Table 1: 5.13 and 3.61 billion."""
    for name, billions in (("gpt-oss-120b", 5.13), ("gpt-oss-20b", 3.61)):
        model = load_model(name)
        assert round((active(model) - counts(model).embedding) / 1e9, 2) == billions


def test_nemotron_prints_embeddings_apart() -> None:
    """arXiv 2406.11704 section 2.1: 9.4 billion embedding and 331.6 billion other parameters."""
    model = load_model("nemotron-4-340b")
    c = counts(model)
    assert round((c.embedding + c.head) / 1e9, 1) == 9.4
    assert round((total(model) - c.embedding - c.head) / 1e9, 1) == 331.6


def test_grok_prints_its_layers() -> None:
    """The release says 314 billion: its 64 layers, cut. The tied embedding adds 0.8."""
    model = load_model("grok-1")
    assert int((total(model) - counts(model).embedding) / 1e9) == 314


@pytest.mark.parametrize("name", model_names())
def test_a_rank_that_holds_all_stages_holds_all_parameters(name: str) -> None:
    """No new part of a model may be counted in the total and forgotten on the ranks, or the other way round."""
    model, one = load_model(name), np.ones(1)
    stage = {"dense": model.dense_layers * one, "moe": model.moe_layers * one, "mtp": model.mtp_layers * one}
    held = stage_parameters(model, stage | {"embedding": one, "head": one}, one, one, one)
    padding = (-model.vocab % 128) * model.hidden * (1 if model.tied_embeddings else 2)
    assert (held.dense + held.expert).tolist() == [total(model) + mtp(model) + padding]


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
        ({"qk_norm": True, "qk_norm_whole": True}, 2 * (8 + 4)),
        ({"attention_sinks": True}, 2 * 4),
        ({"windows": (4, 0)}, 0),
        ({"norm_bias": True}, (2 * 2 + 1) * 8),
        ({"norms_per_layer": 4}, 2 * 2 * 8),
        ({"learned_positions": 7}, 7 * 8),
        ({"embedding_norm": True}, 8),
        ({"embedding_norm": True, "norm_bias": True}, (2 * 2 + 1 + 2) * 8),
    ],
)
def test_each_option_adds_its_own_tensors(change: dict[str, int], more: int) -> None:
    assert total(dataclasses.replace(TINY, **change)) - total(TINY) == more  # type: ignore[arg-type]


def test_shared_experts_of_their_own_width_and_their_gate() -> None:
    base = dataclasses.replace(
        TINY, ffn_hidden=0, experts=4, experts_per_token=2, expert_ffn_hidden=6, shared_experts=2
    )
    wide = dataclasses.replace(base, shared_expert_ffn_hidden=10, shared_gate=True)
    assert wide.shared_ffn_hidden == 20
    assert total(wide) - total(base) == 2 * (2 * 3 * 8 * (10 - 6) + 8)


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
