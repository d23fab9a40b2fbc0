"""A Hugging Face config.json -> the fields of a Model. One entry of FAMILIES for each `model_type`.

An entry maps a Model field to a reader: a function of the Config that returns the value. Fields without a
reader keep the Model's default; what the Model has no field for is ignored (a sliding window counts as full
attention, the vision tower of a model with a `text_config` is left out). A default stands only where the
family's own code takes it for an absent key; every other key is required.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardware.errors import InputError
from hardware.reader import did_you_mean

SEQ_LEN_LIMIT = 4096  # tokens; a config.json tells the longest context, not the length in pre-training
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Config:
    """The keys of one config.json. Every error is an InputError, one line with the file and the key."""

    path: Path
    family: str
    keys: Mapping[str, Any]

    def integer(self, key: str, default: int = _REQUIRED, null: int = _REQUIRED) -> int:
        """Integer at `key`; `default` if the key is absent, `null` (else `default`) if its value is null."""
        value = self._get(key, default, null)
        if type(value) is not int:
            raise self.error(f"{key!r} must be an integer, got {value!r}")
        return value

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """Boolean at `key`; `default` if the key is absent or null."""
        value = self._get(key, default, _REQUIRED)
        if type(value) is not bool:
            raise self.error(f"{key!r} must be true or false, got {value!r}")
        return value

    def integers(self, key: str) -> list[int]:
        """List of integers at `key`; empty if the key is absent or null."""
        value = self._get(key, [], _REQUIRED)
        if type(value) is not list or any(type(item) is not int for item in value):
            raise self.error(f"{key!r} must be a list of integers, got {value!r}")
        return value

    def error(self, message: str) -> InputError:
        """The error to raise for this file."""
        return InputError(f"{self.path}: {message} (model_type {self.family!r})")

    def _get(self, key: str, default: Any, null: Any) -> Any:
        value = self.keys.get(key, default)
        if value is None:
            value = default if null is _REQUIRED else null
        if value is _REQUIRED:
            raise self.error(f"missing key {key!r}")
        return value


Reader = Callable[[Config], int | bool | str]


def integer(key: str, default: int = _REQUIRED, null: int = _REQUIRED) -> Reader:
    """Reader of the integer at `key`."""
    return lambda config: config.integer(key, default, null)


def flag(key: str, default: bool = _REQUIRED) -> Reader:
    """Reader of the boolean at `key`."""
    return lambda config: config.flag(key, default)


def fixed(value: int | bool | str) -> Reader:
    """Reader of a value that the family's code fixes."""
    return lambda config: value


def model_fields(path: Path) -> dict[str, Any]:
    """Fields of the Model that the config.json at `path` describes.

    `seq_len` is min(max_position_embeddings, 4096); the name is the folder's. A config with a `text_config`
    is read from there. Raises InputError, one line that names the file, for anything that cannot be read.
    """
    keys = _load(path)
    text = keys.get("text_config")
    if isinstance(text, dict):
        keys = {"tie_word_embeddings": keys.get("tie_word_embeddings")} | text
    family = keys.get("model_type")
    known = f"known types: {', '.join(sorted(FAMILIES))}"
    if family is None:
        raise InputError(f"{path}: missing key 'model_type'; {known}")
    if not isinstance(family, str) or family not in FAMILIES:
        hint = did_you_mean(str(family), FAMILIES) or ";"
        raise InputError(f"{path}: unknown model_type {family!r}{hint} {known}")
    config = Config(path, family, keys)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    source = f"Hugging Face configuration {path}, model_type {family}"
    values = {field: read(config) for field, read in FAMILIES[family].items()}
    return {"name": name, "source": source} | values


def _load(path: Path) -> dict[str, Any]:
    try:
        keys = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(keys, dict):
        raise InputError(f"{path}: expected a JSON object, got {type(keys).__name__}")
    return keys


def _head_dim(config: Config) -> int:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = config.integer("head_dim", default=0)
    if width == 0 and (heads < 1 or hidden % heads):
        raise config.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return width or hidden // heads


def _llama_kv_heads(config: Config) -> int:
    return config.integer("num_key_value_heads", default=config.integer("num_attention_heads"))


def _seq_len(config: Config) -> int:
    return min(config.integer("max_position_embeddings"), SEQ_LEN_LIMIT)


def _qwen3_leading_dense(config: Config) -> int:
    """`mlp_only_layers` as a number of leading dense layers."""
    dense = sorted(config.integers("mlp_only_layers"))
    if dense != list(range(len(dense))):
        raise config.error(f"mlp_only_layers {dense} is not a run of layers from 0; only that is supported")
    return len(dense)


def _qwen3_dense_width(config: Config) -> int:
    """`intermediate_size`, which the file also gives when no layer is dense."""
    some_dense = config.integers("mlp_only_layers") or config.integer("decoder_sparse_step") != 1
    return config.integer("intermediate_size") if some_dense else 0


def _deepseek_dense_width(config: Config) -> int:
    return config.integer("intermediate_size") if config.integer("first_k_dense_replace") else 0


def _deepseek_head_dim(config: Config) -> int:
    return config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")


def _deepseek_step(config: Config) -> int:
    step = config.integer("moe_layer_freq", default=1)
    if step != 1:
        raise config.error(f"moe_layer_freq {step} is not supported, only 1")
    return step


def _deepseek_routed_nodes(config: Config) -> int:
    """`topk_group`, if the experts are in several groups; DeepSeek places one group on a node."""
    groups, used = config.integer("n_group"), config.integer("topk_group")
    return used if used < groups else 0


_COMMON: dict[str, Reader] = {
    "layers": integer("num_hidden_layers"),
    "hidden": integer("hidden_size"),
    "heads": integer("num_attention_heads"),
    "kv_heads": integer("num_key_value_heads"),
    "head_dim": _head_dim,
    "ffn_hidden": integer("intermediate_size"),
    "vocab": integer("vocab_size"),
    "seq_len": _seq_len,
    "tied_embeddings": flag("tie_word_embeddings", default=False),
}
_ATTENTION_BIAS: dict[str, Reader] = {
    "qkv_bias": flag("attention_bias", default=False),
    "attention_output_bias": flag("attention_bias", default=False),
}
_QWEN3 = _COMMON | _ATTENTION_BIAS | {"head_dim": integer("head_dim"), "qk_norm": fixed(True)}

FAMILIES: dict[str, dict[str, Reader]] = {
    "llama": _COMMON
    | _ATTENTION_BIAS
    | {"kv_heads": _llama_kv_heads, "mlp_bias": flag("mlp_bias", default=False)},
    "mistral": _COMMON,
    "mixtral": _COMMON
    | {
        "ffn_hidden": fixed(0),
        "experts": integer("num_local_experts"),
        "experts_per_token": integer("num_experts_per_tok"),
        "expert_ffn_hidden": integer("intermediate_size"),
    },
    "qwen2": _COMMON | {"qkv_bias": fixed(True)},
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3
    | {
        "ffn_hidden": _qwen3_dense_width,
        "experts": integer("num_experts"),
        "experts_per_token": integer("num_experts_per_tok"),
        "expert_ffn_hidden": integer("moe_intermediate_size"),
        "first_dense_layers": _qwen3_leading_dense,
        "moe_layer_step": integer("decoder_sparse_step"),
    },
    "deepseek_v3": _COMMON
    | _ATTENTION_BIAS
    | {
        "kv_heads": integer("num_attention_heads"),
        "head_dim": _deepseek_head_dim,
        "ffn_hidden": _deepseek_dense_width,
        "attention": fixed("mla"),
        "q_lora_rank": integer("q_lora_rank", null=0),
        "kv_lora_rank": integer("kv_lora_rank"),
        "qk_nope_head_dim": integer("qk_nope_head_dim"),
        "qk_rope_head_dim": integer("qk_rope_head_dim"),
        "v_head_dim": integer("v_head_dim"),
        "experts": integer("n_routed_experts"),
        "experts_per_token": integer("num_experts_per_tok"),
        "expert_ffn_hidden": integer("moe_intermediate_size"),
        "shared_experts": integer("n_shared_experts", null=0),
        "first_dense_layers": integer("first_k_dense_replace"),
        "moe_layer_step": _deepseek_step,
        "routed_nodes": _deepseek_routed_nodes,
        "router_bias": fixed(True),
        "mtp_layers": integer("num_nextn_predict_layers", default=0),
    },
}
