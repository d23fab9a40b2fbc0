"""Readers of a Hugging Face config.json that do more than look up one key; families share them."""

from collections.abc import Callable
from typing import Any

from costmodel.hf_config import Config, Reader

SEQ_LEN_LIMIT = 4096  # tokens; a config.json tells the longest context, not the length in pre-training


def only(reader: Reader, key: str, value: int | bool, default: int | bool) -> Reader:
    """`reader`, for a family of which the model has just the case of `key` = `value`."""

    def read(config: Config) -> Any:
        found = config.flag(key, bool(default)) if isinstance(value, bool) else config.integer(key, default)
        if found != value:
            raise config.error(f"{key} {found} is not supported, only {value}")
        return reader(config)

    return read


def head_dim(config: Config) -> int:
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = config.integer("head_dim", default=0)
    if width == 0 and (heads < 1 or hidden % heads):
        raise config.error(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    return width or hidden // heads


def kv_heads(config: Config) -> int:
    return config.integer("num_key_value_heads", null=config.integer("num_attention_heads"))


def kv_heads_or_all(config: Config) -> int:
    return config.integer("num_key_value_heads", default=config.integer("num_attention_heads"))


def seq_len(config: Config) -> int:
    return min(config.integer("max_position_embeddings"), SEQ_LEN_LIMIT)


def four_hidden(config: Config) -> int:
    return 4 * config.integer("hidden_size")


def or_four_hidden(key: str) -> Reader:
    return lambda config: config.integer(key, default=four_hidden(config))


def windows(key: str, default: int, local: Callable[[Config, int], bool]) -> Reader:
    """The shortest pattern of attention windows: `key` tokens in the layers that `layer_types` or `local` name."""

    def read(config: Config) -> tuple[int, ...]:
        window, layers = config.integer(key, default=default, null=0), config.integer("num_hidden_layers")
        kinds = config.texts("layer_types")
        if kinds and len(kinds) != layers:
            raise config.error(f"layer_types has {len(kinds)} entries for {layers} layers")
        if unknown := set(kinds) - {"full_attention", "sliding_attention", "chunked_attention"}:
            raise config.error(f"layer_types has {sorted(unknown)[0]!r}; known: full, sliding and chunked_attention")
        wide = range(min(layers, 10_000))
        whole = tuple(window * (kinds[i] != "full_attention" if kinds else local(config, i)) for i in wide)
        return _shortest(whole) if any(whole) else ()

    return read


def _shortest(values: tuple[int, ...]) -> tuple[int, ...]:
    """The shortest tuple that repeated, and cut, gives `values`."""
    size = next(n for n in range(1, len(values) + 1) if values[n:] == values[: len(values) - n])
    return values[:size]


def every(config: Config, layer: int) -> bool:
    return True


def all_but_each(step: int) -> Callable[[Config, int], bool]:
    return lambda config, layer: (layer + 1) % step != 0


def qwen_window(local: Callable[[Config, int], bool]) -> Reader:
    return windows("sliding_window", 4096, lambda c, i: c.flag("use_sliding_window", False) and local(c, i))


def qwen_leading_dense(config: Config) -> int:
    """`mlp_only_layers` as a number of leading dense layers."""
    dense = sorted(config.integers("mlp_only_layers"))
    if dense != list(range(len(dense))):
        raise config.error(f"mlp_only_layers {dense} is not a run of layers from 0; only that is supported")
    return len(dense)


def qwen_dense_width(config: Config) -> int:
    """`intermediate_size`, which the file also gives when no layer is dense."""
    some_dense = config.integers("mlp_only_layers") or config.integer("decoder_sparse_step") != 1
    return config.integer("intermediate_size") if some_dense else 0


def leading_dense_width(config: Config) -> int:
    return config.integer("intermediate_size") if config.integer("first_k_dense_replace") else 0


def mla_head_dim(config: Config) -> int:
    return config.integer("qk_nope_head_dim") + config.integer("qk_rope_head_dim")


def routed_nodes(config: Config) -> int:
    """`topk_group`, if the experts are in several groups; DeepSeek places one group on a node."""
    groups, used = config.integer("n_group", null=1), config.integer("topk_group", null=1)
    return used if used < groups else 0


def v2_routed_nodes(config: Config) -> int:
    return 0 if config.text("topk_method", "greedy") == "greedy" else routed_nodes(config)


def llama4_step(config: Config) -> int:
    """`moe_layers`, or `interleave_moe_layer_step`, as the step of Model."""
    layers, listed = config.integer("num_hidden_layers"), config.integers("moe_layers")
    step = listed[0] + 1 if listed else config.integer("interleave_moe_layer_step", default=1)
    if listed and (step < 1 or listed != list(range(step - 1, min(layers, 10_000), step))):
        raise config.error(f"moe_layers {listed} is not every n-th of {layers} layers; only that is supported")
    return step


def llama4_dense_width(config: Config) -> int:
    return config.integer("intermediate_size_mlp") if llama4_step(config) != 1 else 0


def llama4_chunked(config: Config, layer: int) -> bool:
    """Whether a layer has rotary positions: those attend in chunks."""
    rotary = config.integers("no_rope_layers")
    if rotary:
        return layer < len(rotary) and rotary[layer] == 1
    return (layer + 1) % max(1, config.integer("no_rope_layer_interval", default=4)) != 0


def falcon_kv_heads(config: Config) -> int:
    heads = config.integer("num_attention_heads")
    if not config.flag("new_decoder_architecture", False) and config.flag("multi_query", True):
        return 1
    return config.integer("num_kv_heads", default=heads)


def falcon_norms(config: Config) -> int:
    if not config.flag("parallel_attn", True):
        return 2
    default = 2 if config.flag("new_decoder_architecture", False) else 1
    return 2 if config.integer("num_ln_in_parallel_attn", default=default) == 2 else 1


def opt_positions(config: Config) -> int:
    """Two rows more than positions: the class keeps fairseq's offset for padding."""
    hidden = config.integer("hidden_size")
    if (width := config.integer("word_embed_proj_dim", default=hidden)) != hidden:
        raise config.error(f"word_embed_proj_dim {width} is not supported, only hidden_size {hidden}")
    return config.integer("max_position_embeddings") + 2
