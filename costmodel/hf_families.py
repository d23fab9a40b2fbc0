"""A Hugging Face config.json -> the fields of a Model. One entry of FAMILIES for each `model_type`.

An entry maps a Model field to a reader: a function of the Config that returns the value. Fields without a reader
keep the Model's default; what the Model has no field for is ignored (rotary positions, ALiBi, soft caps, parallel
residuals, the vision tower of a model with a `text_config`). Names and defaults are those of the family's configuration
class in `transformers`; a default stands only where files leave the key out, every other key is required.
tests/golden/make_hf_counts.py builds each family with that library and stores what it counts.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from costmodel import hf_readers as readers
from costmodel.hf_config import Config, Reader, fixed, flag, integer, load
from hardware.errors import InputError
from hardware.spelling import did_you_mean


def model_fields(path: Path, family: str | None, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the Model that the config.json at `path` describes, read as `family` or as its own `model_type`.

    `usual` holds the Model's defaults: a file that says otherwise by keys which a given `family` does not read is
    refused. `seq_len` is min(max_position_embeddings, 4096); the name is the folder's. A config with a `text_config`
    is read from there. Raises InputError, one line that names the file, for anything that cannot be read.
    """
    keys = load(path)
    text = keys.get("text_config")
    if isinstance(text, dict):
        outer = {key: value for key, value in keys.items() if key in ("model_type", "tie_word_embeddings")}
        keys = outer | text
    own = keys.get("model_type") if family is None else family
    if own is None:
        raise InputError(f"{path}: missing key 'model_type'; known types: {_known()}")
    try:
        check(own)
    except InputError as error:
        raise InputError(f"{path}: {error}; --as FAMILY reads it as one of them") from None
    config = Config(path, own, keys)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    source = f"Hugging Face configuration {path}, model_type {own}"
    values = {field: read(config) for field, read in FAMILIES[own].items()}
    if family not in (None, keys.get("model_type")) and (unread := _unread(config, usual)):
        raise config.error(
            f"it says more than this family reads: {', '.join(unread)}; take another family or drop them"
        )
    return {"name": name, "source": source} | values


def _unread(config: Config, usual: Mapping[str, Any]) -> list[str]:
    """Keys that the family leaves unread, by which other families set what it leaves at the Model's default."""
    found: set[str] = set()
    for readers_of in FAMILIES.values():
        for field, read in readers_of.items():
            other = Config(config.path, config.family, config.keys)
            if field not in FAMILIES[config.family]:
                with suppress(InputError):
                    found |= other.read if read(other) != usual[field] else set()
    return sorted(found - config.read)


def check(family: object) -> None:
    """Raise InputError, one line with the known ones, if there is no such family."""
    if not isinstance(family, str) or family not in FAMILIES:
        hint = did_you_mean(str(family), FAMILIES) or ";"
        raise InputError(f"unknown model_type {family!r}{hint} known types: {_known()}")


def _known() -> str:
    return ", ".join(sorted(FAMILIES))


_CHUNKS = readers.windows("attention_chunk_size", 8192, readers.llama4_chunked)
_COMMON: dict[str, Reader] = {
    "layers": integer("num_hidden_layers"),
    "hidden": integer("hidden_size"),
    "heads": integer("num_attention_heads"),
    "kv_heads": readers.kv_heads,
    "head_dim": readers.head_dim,
    "ffn_hidden": integer("intermediate_size"),
    "vocab": integer("vocab_size"),
    "seq_len": readers.seq_len,
    "tied_embeddings": flag("tie_word_embeddings", default=False),
}
_ATTENTION_BIAS: dict[str, Reader] = {
    "qkv_bias": flag("attention_bias", default=False),
    "attention_output_bias": flag("attention_bias", default=False),
}
_ALL_BIASES: dict[str, Reader] = {
    key: fixed(True) for key in ("qkv_bias", "attention_output_bias", "mlp_bias", "norm_bias")
}
_CLASSIC = _COMMON | _ALL_BIASES | {
    "kv_heads": integer("num_attention_heads"),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "gated_mlp": fixed(False),
}  # fmt: skip
_QWEN2 = _COMMON | {
    "qkv_bias": fixed(True),
    "windows": readers.qwen_window(lambda c, i: i >= c.integer("max_window_layers", 28)),
}
_QWEN3 = _COMMON | _ATTENTION_BIAS | {
    "head_dim": integer("head_dim", default=128),
    "qk_norm": fixed(True),
    "windows": _QWEN2["windows"],
}  # fmt: skip
_QWEN_EXPERTS: dict[str, Reader] = {
    "ffn_hidden": readers.qwen_dense_width,
    "experts": integer("num_experts"),
    "experts_per_token": integer("num_experts_per_tok"),
    "expert_ffn_hidden": integer("moe_intermediate_size"),
    "first_dense_layers": readers.qwen_leading_dense,
    "moe_layer_step": integer("decoder_sparse_step"),
}
_DEEPSEEK_EXPERTS: dict[str, Reader] = {
    "ffn_hidden": readers.leading_dense_width,
    "experts": integer("n_routed_experts"),
    "experts_per_token": integer("num_experts_per_tok"),
    "expert_ffn_hidden": integer("moe_intermediate_size"),
    "shared_experts": integer("n_shared_experts", null=0),
    "first_dense_layers": integer("first_k_dense_replace"),
    "routed_nodes": readers.routed_nodes,
}
_DEEPSEEK_V2 = _COMMON | _ATTENTION_BIAS | _DEEPSEEK_EXPERTS | {
    "kv_heads": integer("num_attention_heads"),
    "head_dim": readers.mla_head_dim,
    "attention": fixed("mla"),
    "q_lora_rank": integer("q_lora_rank", null=0),
    "kv_lora_rank": integer("kv_lora_rank"),
    "qk_nope_head_dim": integer("qk_nope_head_dim"),
    "qk_rope_head_dim": integer("qk_rope_head_dim"),
    "v_head_dim": integer("v_head_dim"),
    "moe_layer_step": readers.only(fixed(1), "moe_layer_freq", 1, 1),
    "mlp_bias": readers.only(fixed(False), "mlp_bias", False, False),
    "routed_nodes": readers.v2_routed_nodes,
}  # fmt: skip
_NEXT_TOKENS: dict[str, Reader] = {
    "router_bias": fixed(True),
    "mtp_layers": integer("num_nextn_predict_layers", default=1),
}
_DEEPSEEK_V3 = _DEEPSEEK_V2 | _NEXT_TOKENS | {"routed_nodes": readers.routed_nodes}
_GEMMA2 = _COMMON | _ATTENTION_BIAS | {
    "head_dim": integer("head_dim", default=256),
    "norms_per_layer": fixed(4),
    "tied_embeddings": flag("tie_word_embeddings", default=True),
    "windows": readers.windows("sliding_window", 4096, readers.all_but_each(2)),
}  # fmt: skip
_GEMMA3 = _GEMMA2 | {  # files with a text_config leave out what equals the class's default
    "heads": integer("num_attention_heads", default=8),
    "kv_heads": integer("num_key_value_heads", default=4),
    "vocab": integer("vocab_size", default=262_208),
    "seq_len": lambda config: min(config.integer("max_position_embeddings", default=131_072), readers.SEQ_LEN_LIMIT),
    "qk_norm": fixed(True),
    "windows": readers.windows(
        "sliding_window", 4096, lambda c, i: (i + 1) % max(1, c.integer("sliding_window_pattern", default=6)) != 0
    ),
}
_LOCAL_EXPERTS: dict[str, Reader] = {
    "experts": integer("num_local_experts"),
    "experts_per_token": integer("num_experts_per_tok"),
    "expert_ffn_hidden": integer("intermediate_size"),
}
_LLAMA4 = _COMMON | _ATTENTION_BIAS | _LOCAL_EXPERTS | {
    "head_dim": integer("head_dim", default=128),
    "ffn_hidden": readers.llama4_dense_width,
    "shared_experts": fixed(1),
    "moe_layer_step": readers.llama4_step,
    "windows": _CHUNKS,
    "chunked_windows": lambda config: bool(_CHUNKS(config)),
}  # fmt: skip

FAMILIES: dict[str, dict[str, Reader]] = {
    "llama": _COMMON | _ATTENTION_BIAS | {
        "kv_heads": readers.kv_heads_or_all,
        "mlp_bias": flag("mlp_bias", default=False),
    },
    "mistral": _COMMON | {"windows": readers.windows("sliding_window", 4096, readers.every)},
    "mixtral": _COMMON | _LOCAL_EXPERTS | {
        "ffn_hidden": fixed(0),
        "windows": readers.windows("sliding_window", 0, readers.every),
    },
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
    "qwen2_moe": _QWEN2 | _QWEN_EXPERTS | {
        "qkv_bias": flag("qkv_bias", default=True),
        "shared_experts": fixed(1),
        "shared_expert_ffn_hidden": integer("shared_expert_intermediate_size"),
        "shared_gate": fixed(True),
        "windows": readers.qwen_window(lambda c, i: i % 2 == 0 and i < c.integer("max_window_layers", 28)),
    },
    "qwen3_moe": _QWEN3 | _QWEN_EXPERTS | {"windows": readers.qwen_window(readers.every)},
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "phi3": _COMMON | {
        "kv_heads": readers.kv_heads_or_all,
        "windows": readers.windows("sliding_window", 0, readers.every),
    },
    "olmo2": _COMMON | _ATTENTION_BIAS | {
        "kv_heads": readers.kv_heads_or_all,
        "qk_norm": fixed(True),
        "qk_norm_whole": fixed(True),
    },
    "gpt_neox": _CLASSIC | {
        "qkv_bias": flag("attention_bias", default=True),
        "attention_output_bias": flag("attention_bias", default=True),
        "tied_embeddings": flag("tie_word_embeddings", default=False),
    },
    "gpt2": _CLASSIC | {
        "ffn_hidden": readers.or_four_hidden("n_inner"),
        "learned_positions": readers.only(integer("max_position_embeddings"), "add_cross_attention", False, False),
    },
    "opt": _CLASSIC | {
        "ffn_hidden": integer("ffn_dim"),
        "qkv_bias": flag("enable_bias", default=True),
        "attention_output_bias": flag("enable_bias", default=True),
        "mlp_bias": flag("enable_bias", default=True),
        "norm_bias": readers.only(fixed(True), "layer_norm_elementwise_affine", True, True),
        "norms_per_layer": readers.only(fixed(2), "do_layer_norm_before", True, True),
        "learned_positions": readers.only(readers.opt_positions, "_remove_final_layer_norm", False, False),
    },
    "bloom": _CLASSIC | {
        "ffn_hidden": readers.four_hidden,
        "seq_len": integer("seq_length", default=2048),  # no limit of positions; 2048 in pre-training
        "embedding_norm": fixed(True),
    },
    "falcon": _CLASSIC | {
        "kv_heads": readers.falcon_kv_heads,
        "ffn_hidden": readers.or_four_hidden("ffn_hidden_size"),
        "seq_len": lambda config: min(config.integer("max_position_embeddings", default=2048), readers.SEQ_LEN_LIMIT),
        "qkv_bias": flag("bias", default=False),
        "attention_output_bias": flag("bias", default=False),
        "mlp_bias": flag("bias", default=False),
        "norms_per_layer": readers.falcon_norms,
    },
    "glm4_moe": _COMMON | _DEEPSEEK_EXPERTS | _NEXT_TOKENS | {
        "qkv_bias": flag("attention_bias", default=False),
        "qk_norm": flag("use_qk_norm", default=False),
    },
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "nemotron": _COMMON | _ATTENTION_BIAS | {
        "kv_heads": readers.kv_heads_or_all,
        "gated_mlp": fixed(False),
        "mlp_bias": flag("mlp_bias", default=False),
        "norm_bias": fixed(True),
    },
    "gpt_oss": _COMMON | _LOCAL_EXPERTS | {
        "head_dim": integer("head_dim", default=64),
        "ffn_hidden": fixed(0),
        "qkv_bias": flag("attention_bias", default=True),
        "attention_output_bias": flag("attention_bias", default=True),
        "mlp_bias": fixed(True),
        "router_bias": fixed(True),
        "attention_sinks": fixed(True),
        "windows": readers.windows("sliding_window", 128, readers.all_but_each(2)),
    },
}  # fmt: skip
