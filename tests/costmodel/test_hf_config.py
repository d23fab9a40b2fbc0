"""A Hugging Face config.json gives the model that its checkpoint holds, or one line that says why not."""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hf_families import FAMILIES
from costmodel.model import Model, load_model
from costmodel.params import active, mtp, total
from hardware.errors import InputError

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": False, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "sliding_window": None, "tie_word_embeddings": False,
    "vocab_size": 32000,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "attention_bias": False, "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc",
    "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
QWEN3_30B: dict[str, Any] = {
    "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
    "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "tie_word_embeddings": False,
    "vocab_size": 151936,
}  # fmt: skip
MISTRAL_7B: dict[str, Any] = {
    "sliding_window": None, "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
QWEN2_7B: dict[str, Any] = {
    "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072, "model_type": "qwen2",
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "tie_word_embeddings": False, "vocab_size": 152064,
}  # fmt: skip
QWEN2_HALF_B = QWEN2_7B | {
    "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 151936,
}  # fmt: skip
QWEN3_8B: dict[str, Any] = {
    "attention_bias": False, "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288,
    "max_position_embeddings": 40960, "model_type": "qwen3", "num_attention_heads": 32,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "tie_word_embeddings": False, "vocab_size": 151936,
}  # fmt: skip
MOONLIGHT = DEEPSEEK_V3 | {
    "first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 11264,
    "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16,
    "num_nextn_predict_layers": 0, "q_lora_rank": None, "topk_group": 1, "vocab_size": 163840,
    "max_position_embeddings": 8192,
}  # fmt: skip
CONFIGS = [LLAMA_8B, MISTRAL_7B, MIXTRAL, QWEN2_7B, QWEN3_8B, QWEN3_30B, DEEPSEEK_V3]


def write(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def load(folder: Path, config: object) -> Model:
    return load_model(write(folder, config))


def error(folder: Path, config: object) -> str:
    path = write(folder, config)
    with pytest.raises(InputError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "config"), [("llama-3.1-8b", LLAMA_8B), ("mixtral-8x7b", MIXTRAL), ("deepseek-v3", DEEPSEEK_V3)]
)
def test_a_config_gives_the_shipped_model(name: str, config: dict[str, Any], tmp_path: Path) -> None:
    shipped, model = load_model(name), load(tmp_path, config)
    assert (total(model), active(model), mtp(model)) == (total(shipped), active(shipped), mtp(shipped))
    same = dataclasses.replace(model, name=name, source=shipped.source, seq_len=shipped.seq_len)
    assert same == shipped


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (MISTRAL_7B, 7_241_732_096),
        (QWEN2_7B, 7_615_616_512),
        (QWEN2_HALF_B, 494_032_768),
        (QWEN3_8B, 8_190_735_360),
        (QWEN3_30B, 30_532_122_624),
    ],
)
def test_totals_equal_the_published_checkpoints(config: dict[str, Any], parameters: int, tmp_path: Path) -> None:
    assert total(load(tmp_path, config)) == parameters


def test_a_folder_with_a_config_names_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    write(folder, LLAMA_8B)
    model = load_model(folder)
    assert model.name == "My-Llama"
    assert str(folder / "config.json") in model.source
    other = folder / "copy.json"
    other.write_text(json.dumps(LLAMA_8B))
    assert load_model(other).name == "copy"


def test_sequence_length_is_the_context_up_to_4096(tmp_path: Path) -> None:
    assert load(tmp_path, LLAMA_8B).seq_len == 4096
    assert load(tmp_path, LLAMA_8B | {"max_position_embeddings": 2048}).seq_len == 2048


def test_moonlight_has_no_query_rank_and_no_node_limit(tmp_path: Path) -> None:
    model = load(tmp_path, MOONLIGHT)
    assert (model.q_lora_rank, model.routed_nodes, model.mtp_layers, model.shared_ffn_hidden) == (
        0,
        0,
        0,
        2816,
    )
    assert round(total(model) / 1e9, 2) == 15.96


def test_absent_query_rank_is_not_taken_for_none(tmp_path: Path) -> None:
    rest = {key: value for key, value in MOONLIGHT.items() if key != "q_lora_rank"}
    assert error(tmp_path, rest) == "missing key 'q_lora_rank' (model_type 'deepseek_v3')"


def test_nested_text_config_is_the_language_model(tmp_path: Path) -> None:
    model = load(tmp_path, {"model_type": "kimi_vl", "vision_config": {}, "text_config": MOONLIGHT})
    assert model == load(tmp_path, MOONLIGHT)


def test_nested_text_config_takes_tied_embeddings_from_outside(tmp_path: Path) -> None:
    inner = {key: value for key, value in QWEN2_7B.items() if key != "tie_word_embeddings"}
    assert load(tmp_path, {"text_config": inner, "tie_word_embeddings": True}).tied_embeddings
    assert not load(tmp_path, {"text_config": QWEN2_7B, "tie_word_embeddings": True}).tied_embeddings


def test_llama_without_kv_heads_or_head_dim_is_multi_head(tmp_path: Path) -> None:
    config = LLAMA_8B | {"num_key_value_heads": None, "head_dim": None}
    model = load(tmp_path, config)
    assert (model.kv_heads, model.head_dim) == (32, 128)


def test_dense_layers_of_qwen3_moe(tmp_path: Path) -> None:
    model = load(tmp_path, QWEN3_30B | {"mlp_only_layers": [1, 0], "decoder_sparse_step": 2})
    assert model.layer_is_moe[:5] == (False, False, False, True, False)
    assert model.ffn_hidden == 6144
    assert "mlp_only_layers [5]" in error(tmp_path, QWEN3_30B | {"mlp_only_layers": [5]})


def test_attention_bias_of_llama_holds_for_all_four_projections(tmp_path: Path) -> None:
    more = total(load(tmp_path, LLAMA_8B | {"attention_bias": True})) - total(load(tmp_path, LLAMA_8B))
    assert more == 32 * (4096 + 1024 + 1024 + 4096)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"])
def test_a_missing_key_is_named(config: dict[str, Any], key: str, tmp_path: Path) -> None:
    rest = {name: value for name, value in config.items() if name != key}
    expected = f"missing key {key!r} (model_type {config['model_type']!r})"
    assert error(tmp_path, rest) == expected
    assert error(tmp_path, config | {key: None}) == expected


@pytest.mark.parametrize("value", [32.0, "32", True, [32]])
def test_a_value_that_is_no_integer_is_shown(value: object, tmp_path: Path) -> None:
    message = error(tmp_path, LLAMA_8B | {"num_hidden_layers": value})
    assert message == f"'num_hidden_layers' must be an integer, got {value!r} (model_type 'llama')"


def test_what_cannot_be_a_model_is_refused_with_the_numbers(tmp_path: Path) -> None:
    assert "must be true or false, got 'no'" in error(tmp_path, QWEN2_7B | {"tie_word_embeddings": "no"})
    assert "hidden_size 4096 is not a multiple of num_attention_heads 31" in error(
        tmp_path, LLAMA_8B | {"num_attention_heads": 31}
    )
    assert "heads 32 is not a multiple of kv_heads 5" in error(tmp_path, LLAMA_8B | {"num_key_value_heads": 5})
    assert "moe_layer_freq 2 is not supported" in error(tmp_path, DEEPSEEK_V3 | {"moe_layer_freq": 2})


@given(st.sampled_from(CONFIGS), st.data())
def test_one_wrong_value_gives_a_model_or_one_line(config: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(config)))
    value = data.draw(st.sampled_from([None, True, -1, 0, 1, 7, 10**12, 1.5, "x", "", [], [3, 1], [None], {}]))
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), config | {key: value})
        try:
            model = load_model(path)
        except InputError as wrong:
            message = str(wrong)
        else:
            message = f"{path}: "
            assert 0 < active(model) <= total(model)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_unknown_model_type_lists_the_known_ones(tmp_path: Path) -> None:
    message = error(tmp_path, LLAMA_8B | {"model_type": "lama"})
    assert message.startswith("unknown model_type 'lama'; did you mean 'llama'? known types: bloom, ")
    assert all(family in message for family in FAMILIES)
    assert error(tmp_path, {"hidden_size": 3}).startswith("missing key 'model_type'; known types: ")
    assert error(tmp_path, {"model_type": ["llama"]}).startswith("unknown model_type ['llama']")


def test_a_file_that_is_no_json_object(tmp_path: Path) -> None:
    assert error(tmp_path, [1, 2]) == "expected a JSON object, got list"
    path = tmp_path / "config.json"
    for content in (b"{'hidden_size': 1}", b"", b"\xff\xfe", b"[" * 100_000):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a JSON file") as caught:
            load_model(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
