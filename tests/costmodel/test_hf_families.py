"""Every family of config.json against what `transformers` builds from it (tests/golden/make_hf_counts.py)."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.hf_families import FAMILIES
from costmodel.model import Model, load_model, model_names
from costmodel.params import active, mtp, total
from hardware.errors import InputError

GOLDEN: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "hf_counts.json").read_text())
SMALL = [name for name, row in GOLDEN.items() if "written" in row]


def load(folder: Path, config: dict[str, Any], family: str | None = None) -> Model:
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(folder, family)


def error(folder: Path, config: dict[str, Any], family: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load(folder, config, family)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", GOLDEN)
def test_total_is_what_the_familys_own_class_builds(name: str, tmp_path: Path) -> None:
    """To the last parameter; multi-token-prediction layers come on top, which no class builds."""
    assert total(load(tmp_path, GOLDEN[name]["config"])) == GOLDEN[name]["elements"]


def test_every_family_is_built_small_and_at_a_published_size() -> None:
    small = {GOLDEN[name]["config"]["model_type"] for name in SMALL}
    large = {row["config"]["model_type"] for name, row in GOLDEN.items() if name not in SMALL}
    assert small | {"gemma3", "llama4"} == large | {"gemma3", "llama4"} == set(FAMILIES)


@pytest.mark.parametrize("name", SMALL)
def test_the_file_that_the_class_writes_is_the_same_model(name: str, tmp_path: Path) -> None:
    """Its defaults filled in, its windows spelt out layer by layer, its keys under the names of a later release."""
    assert load(tmp_path, GOLDEN[name]["written"]) == load(tmp_path, GOLDEN[name]["config"])


@pytest.mark.parametrize("name", sorted(set(GOLDEN) & set(model_names())))
def test_a_published_config_is_the_shipped_model(name: str, tmp_path: Path) -> None:
    shipped, model = load_model(name), load(tmp_path, GOLDEN[name]["config"])
    assert (total(model), active(model), mtp(model)) == (total(shipped), active(shipped), mtp(shipped))
    assert dataclasses.replace(model, name=name, source=shipped.source, seq_len=shipped.seq_len) == shipped


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("mistral-7b", (4096,)),
        ("phi-3-mini", (2047,)),
        ("gpt-oss-120b", (128, 0)),
        ("gemma-2-27b", (4096, 0)),
        ("gemma-3-4b", (1024,) * 5 + (0,)),
        ("llama-4-maverick", (8192,) * 3 + (0,)),
        ("qwen2.5-7b", ()),
        ("mixtral-8x7b", ()),
        ("phi-4", ()),
        ("small-qwen2", (0, 0, 32, 32, 32)),
        ("small-qwen2_moe", (32, 0, 32, 0, 0, 0)),
        ("small-qwen3_moe", (32,)),
    ],
)
def test_windows(name: str, windows: tuple[int, ...], tmp_path: Path) -> None:
    model = load(tmp_path, GOLDEN[name]["config"])
    assert model.windows == windows
    assert model.chunked_windows == (name == "llama-4-maverick")


def test_a_text_config_is_read_with_the_family_of_the_outer_file(tmp_path: Path) -> None:
    inner = GOLDEN["llama-4-maverick"]["config"]
    text = {key: value for key, value in inner.items() if key != "model_type"}
    outer = {"model_type": "llama4", "vision_config": {"hidden_size": 1408, "model_type": "llama4_vision_model"}}
    assert load(tmp_path, outer | {"text_config": text}) == load(tmp_path, inner)
    typed = outer | {"text_config": text | {"model_type": "llama4_text"}}
    assert total(load(tmp_path, typed)) == GOLDEN["llama-4-maverick"]["elements"]


def test_a_family_may_be_given_for_a_type_that_is_unknown(tmp_path: Path) -> None:
    config = GOLDEN["llama-3.1-8b"]["config"] | {"model_type": "my_llama"}
    message = error(tmp_path, config)
    assert message.startswith(f"{tmp_path}/config.json: unknown model_type 'my_llama'")
    assert "bloom, " in message
    assert message.endswith("; --as FAMILY reads it as one of them")
    assert total(load(tmp_path, config, "llama")) == 8_030_261_248
    assert load(tmp_path, {k: v for k, v in config.items() if k != "model_type"}, "llama").layers == 32


def test_a_given_family_must_be_known_and_needs_a_config(tmp_path: Path) -> None:
    config = GOLDEN["llama-3.1-8b"]["config"]
    assert error(tmp_path, config, "lama").startswith("unknown model_type 'lama'; did you mean 'llama'? known types: ")
    with pytest.raises(InputError, match="--as llama is for a Hugging Face"):
        load_model("llama-3.1-8b", "llama")
    with pytest.raises(InputError, match="--as llama is for a Hugging Face"):
        load_model(tmp_path / "m.toml", "llama")


@pytest.mark.parametrize(
    ("change", "unread"),
    [
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, "num_experts_per_tok, num_local_experts"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"kv_lora_rank": 512, "num_nextn_predict_layers": 1}, "kv_lora_rank, num_nextn_predict_layers"),
        ({"sliding_window": None, "use_sliding_window": False, "num_experts": 0, "rope_theta": 1e6}, None),
    ],
)
def test_a_given_family_must_read_what_the_file_says(
    change: dict[str, Any], unread: str | None, tmp_path: Path
) -> None:
    """Experts that are dropped in silence would make a model of another size."""
    config = GOLDEN["llama-3.1-8b"]["config"] | {"model_type": "mine"} | change
    if unread is None:
        assert load(tmp_path, config, "llama").layers == 32
    else:
        message = error(tmp_path, config, "llama")
        assert message.startswith(f"{tmp_path}/config.json: it says more than this family reads: {unread}; ")


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_any_file_may_be_read_as_its_own_family(name: str, tmp_path: Path) -> None:
    config = GOLDEN[name]["config"]
    known = config.get("model_type")
    assert load(tmp_path, config | {"model_type": "mine"}, known) == load(tmp_path, config) or known is None


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("opt-125m", {"word_embed_proj_dim": 512}, "word_embed_proj_dim 512 is not supported, only hidden_size 768"),
        ("opt-125m", {"do_layer_norm_before": False}, "do_layer_norm_before False is not supported, only True"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention True is not supported, only False"),
        ("deepseek-v2", {"mlp_bias": True}, "mlp_bias True is not supported, only False"),
        ("llama-4-maverick", {"moe_layers": [1, 2]}, "moe_layers [1, 2] is not every n-th of 48 layers"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 24 layers"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "layer_types has 'linear_attention'"),
        ("gpt-oss-20b", {"layer_types": "full_attention"}, "'layer_types' must be a list of texts"),
        ("bloom-560m", {"n_embed": None}, "missing key 'hidden_size'"),
    ],
)
def test_what_a_family_may_say_but_the_model_has_not(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert message in error(tmp_path, GOLDEN[name]["config"] | change)
