"""The config.json of each case of hf_counts.json: families at their published sizes, and small ones with every option.

The keys of a published size are those of that model's own file that say something of its architecture.
"""

from typing import Any


def of(family: str, sizes: str, **more: Any) -> dict[str, Any]:
    """A config.json; `sizes` are layers, hidden, heads, KV heads, MLP width, vocabulary; 0 leaves the key out."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    values = dict(zip((*names, "vocab_size"), map(int, sizes.split()), strict=True))
    return {"model_type": family} | {key: value for key, value in values.items() if value} | more


def deepseek(family: str, sizes: str, experts: str, ranks: str = "1536 512 128 64 128", **more: Any) -> dict[str, Any]:
    """`experts`: routed, shared, top-k, width, leading dense layers; `ranks`: query, KV, no-RoPE, RoPE, value."""
    kinds = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size")
    widths = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    values = dict(zip((*kinds, "first_k_dense_replace"), map(int, experts.split()), strict=True))
    low = dict(zip(widths, map(int, ranks.split()), strict=True)) if ranks else {}
    return of(family, sizes, **values, **low, **more)


def qwen_moe(family: str, sizes: str, experts: int, top: int, width: int, **more: Any) -> dict[str, Any]:
    """A Qwen mixture of experts."""
    moe = {"num_experts": experts, "num_experts_per_tok": top, "moe_intermediate_size": width}
    return of(family, sizes, decoder_sparse_step=1, **moe, **more)


TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
LONG, CONTEXT = {"max_position_embeddings": 131072}, {"max_position_embeddings": 4096}
GPT3 = {"n_layer": 96, "n_embd": 12288, "n_head": 96, "n_positions": 2048, "vocab_size": 50257}
GPT2 = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
FALCON = {"alibi": False, "bias": False, "multi_query": True, "parallel_attn": True}
BLOOM = {"n_embed": 1024, "n_layer": 24, "num_attention_heads": 16, "vocab_size": 250880}
LLAMA4 = {"head_dim": 128, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "max_position_embeddings": 262144}
GPT_OSS = {"head_dim": 64, "num_experts_per_tok": 4, "sliding_window": 128, **LONG}
ROUTING = {"n_group": 8, "topk_group": 3, "topk_method": "group_limited_greedy"}
OPT = {"model_type": "opt", "max_position_embeddings": 2048, "vocab_size": 50272}

PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-2-7b": of("llama", "32 4096 32 32 11008 32000", **CONTEXT),
    "llama-2-13b": of("llama", "40 5120 40 40 13824 32000", **CONTEXT),
    "llama-2-70b": of("llama", "80 8192 64 8 28672 32000", **CONTEXT),
    "llama-3.1-8b": of("llama", "32 4096 32 8 14336 128256", **LONG),
    "llama-3.1-70b": of("llama", "80 8192 64 8 28672 128256", **LONG),
    "llama-3.1-405b": of("llama", "126 16384 128 8 53248 128256", **LONG),
    "mistral-7b": of("mistral", "32 4096 32 8 14336 32000", sliding_window=4096, max_position_embeddings=32768),
    "mixtral-8x7b": of("mixtral", "32 4096 32 8 14336 32000", num_local_experts=8, num_experts_per_tok=2, **LONG),
    "mixtral-8x22b": of("mixtral", "56 6144 48 8 16384 32000", num_local_experts=8, num_experts_per_tok=2, **LONG),
    "qwen2.5-7b": of("qwen2", "28 3584 28 4 18944 152064", use_sliding_window=False, **LONG),
    "qwen2.5-32b": of("qwen2", "64 5120 40 8 27648 152064", use_sliding_window=False, **LONG),
    "qwen2.5-72b": of("qwen2", "80 8192 64 8 29568 152064", use_sliding_window=False, **LONG),
    "qwen3-8b": of("qwen3", "36 4096 32 8 12288 151936", head_dim=128, **LONG),
    "qwen3-32b": of("qwen3", "64 5120 64 8 25600 151936", head_dim=128, **LONG),
    "qwen1.5-moe-a2.7b": qwen_moe(
        "qwen2_moe", "24 2048 16 16 5632 151936", 60, 4, 1408, shared_expert_intermediate_size=5632, **LONG
    ),
    "qwen2-57b-a14b": qwen_moe(
        "qwen2_moe", "28 3584 28 4 18944 151936", 64, 8, 2560, shared_expert_intermediate_size=20480, **LONG
    ),
    "qwen3-30b-a3b": qwen_moe("qwen3_moe", "48 2048 32 4 6144 151936", 128, 8, 768, head_dim=128, **LONG),
    "qwen3-235b-a22b": qwen_moe("qwen3_moe", "94 4096 64 4 12288 151936", 128, 8, 1536, head_dim=128, **LONG),
    "deepseek-v2": deepseek("deepseek_v2", "60 5120 128 128 12288 102400", "160 2 6 1536 1", **LONG, **ROUTING),
    "deepseek-v2-lite": deepseek(
        "deepseek_v2", "27 2048 16 16 10944 102400", "64 2 6 1408 1", "", q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_group=1, topk_group=1, **LONG,
    ),
    "deepseek-v3": deepseek(
        "deepseek_v3", "61 7168 128 128 18432 129280", "256 1 8 2048 3", n_group=8, topk_group=4,
        num_nextn_predict_layers=1, **LONG,
    ),
    "kimi-k2": deepseek(
        "kimi_k2", "61 7168 64 64 18432 163840", "384 1 8 2048 1", n_group=1, topk_group=1,
        num_nextn_predict_layers=0, **LONG,
    ),
    "gemma-2-2b": of("gemma2", "26 2304 8 4 9216 256000", head_dim=256, sliding_window=4096, **CONTEXT),
    "gemma-2-27b": of("gemma2", "46 4608 32 16 36864 256000", head_dim=128, sliding_window=4096, **CONTEXT),
    "gemma-3-4b": of("gemma3", "34 2560 0 0 10240 0", sliding_window=1024),
    "gemma-3-27b": of("gemma3_text", "62 5376 32 16 21504 0", head_dim=128, sliding_window=1024),
    "phi-3-mini": of("phi3", "32 3072 32 32 8192 32064", sliding_window=2047, **CONTEXT),
    "phi-4": of("phi3", "40 5120 40 10 17920 100352", sliding_window=None, **CONTEXT),
    "olmo-2-32b": of("olmo2", "64 5120 40 8 27648 100352", **CONTEXT),
    "gpt-neox-20b": of("gpt_neox", "44 6144 64 0 24576 50432", max_position_embeddings=2048),
    "gpt2": {"model_type": "gpt2"} | GPT2,
    "gpt3-175b": {"model_type": "gpt2"} | GPT3,
    "opt-125m": OPT | {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072},
    "opt-66b": OPT | {"hidden_size": 9216, "num_hidden_layers": 64, "num_attention_heads": 72, "ffn_dim": 36864},
    "bloom-560m": {"model_type": "bloom"} | BLOOM,
    "bloom-176b": {"model_type": "bloom"} | BLOOM | {"n_embed": 14336, "n_layer": 70, "num_attention_heads": 112},
    "falcon-7b": of("falcon", "32 4544 71 0 0 65024", num_kv_heads=71, **FALCON),
    "falcon-40b": of("falcon", "60 8192 128 0 0 65024", num_kv_heads=8, new_decoder_architecture=True, **FALCON),
    "glm-4.5-air": deepseek(
        "glm4_moe", "46 4096 96 8 10944 151552", "128 1 8 1408 1", "", head_dim=128, attention_bias=True, n_group=1,
        topk_group=1, num_nextn_predict_layers=1, **LONG,
    ),
    "glm-4.5": deepseek(
        "glm4_moe", "92 5120 96 8 12288 151552", "160 1 8 1536 3", "", head_dim=128, attention_bias=True, n_group=1,
        topk_group=1, num_nextn_predict_layers=1, use_qk_norm=True, **LONG,
    ),
    "llama-4-maverick": of(
        "llama4", "48 5120 40 8 8192 202048", num_local_experts=128, interleave_moe_layer_step=2, **LLAMA4
    ),
    "llama-4-scout": of(
        "llama4_text", "48 5120 40 8 8192 202048", num_local_experts=16, interleave_moe_layer_step=1, **LLAMA4
    ),
    "gpt-oss-20b": of("gpt_oss", "24 2880 64 8 2880 201088", num_local_experts=32, **GPT_OSS),
    "gpt-oss-120b": of("gpt_oss", "36 2880 64 8 2880 201088", num_local_experts=128, **GPT_OSS),
    "nemotron-4-340b": of("nemotron", "96 18432 96 8 73728 256000", **CONTEXT),
}  # fmt: skip

_BIASED = {"attention_bias": True, **CONTEXT}
_SPARSE = {"decoder_sparse_step": 2, "mlp_only_layers": [0, 1]}
SMALL: dict[str, dict[str, Any]] = {
    "small-llama": of("llama", "3 64 8 2 96 101", head_dim=16, mlp_bias=True, **_BIASED, **TIED),
    "small-mistral": of("mistral", "3 64 8 2 96 101", head_dim=16, sliding_window=None, **CONTEXT, **TIED),
    "small-mixtral": of("mixtral", "3 64 8 2 96 101", num_local_experts=5, num_experts_per_tok=3, **CONTEXT, **TIED),
    "small-qwen2": of(
        "qwen2", "5 64 8 2 96 101", use_sliding_window=True, sliding_window=32, max_window_layers=2, **CONTEXT, **TIED
    ),
    "small-qwen3": of("qwen3", "5 64 8 2 96 101", head_dim=24, **_BIASED, **TIED),
    "small-qwen2_moe": qwen_moe(
        "qwen2_moe", "6 64 8 2 96 101", 6, 2, 40, shared_expert_intermediate_size=56, qkv_bias=False,
        use_sliding_window=True, sliding_window=32, max_window_layers=4, **CONTEXT, **TIED,
    ) | _SPARSE,
    "small-qwen3_moe": qwen_moe(
        "qwen3_moe", "6 64 8 2 96 101", 6, 2, 40, head_dim=24, use_sliding_window=True, sliding_window=32,
        **_BIASED, **TIED,
    ) | _SPARSE,
    "small-deepseek_v2": deepseek("deepseek_v2", "4 64 8 8 96 101", "6 2 2 40 2", "24 16 12 8 20", **_BIASED, **TIED),
    "small-deepseek_v3": deepseek(
        "deepseek_v3", "4 64 8 8 96 101", "8 2 2 40 2", "24 16 12 8 20", n_group=4, topk_group=2, **_BIASED, **TIED
    ),
    "small-kimi_k2": deepseek(
        "kimi_k2", "4 64 8 8 96 101", "8 3 2 40 1", "24 16 12 8 20", n_group=1, topk_group=1, **CONTEXT
    ),
    "small-gemma2": of("gemma2", "3 64 8 2 96 101", head_dim=24, sliding_window=32, **_BIASED, **UNTIED),
    "small-gemma3_text": of("gemma3_text", "8 64 8 2 96 101", head_dim=24, sliding_window=32, **_BIASED, **UNTIED),
    "small-phi3": of("phi3", "3 64 8 2 96 101", sliding_window=32, **CONTEXT, **TIED),
    "small-olmo2": of("olmo2", "3 64 8 2 96 101", **_BIASED, **TIED),
    "small-gpt_neox": of("gpt_neox", "3 64 8 0 96 101", **_BIASED | {"attention_bias": False}, **TIED),
    "small-gpt2": {"model_type": "gpt2"} | GPT2 | {"n_embd": 96, "n_inner": 200, **UNTIED},
    "small-opt": OPT | {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "ffn_dim": 96, "enable_bias": False,
        **UNTIED,
    },
    "small-bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 3, "n_head": 8, "vocab_size": 101, **UNTIED},
    "small-falcon": of("falcon", "3 64 8 0 0 101", parallel_attn=False, multi_query=False, bias=True, **UNTIED),
    "small-falcon-wide": of(
        "falcon", "3 64 8 0 0 101", new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
        ffn_hidden_size=100,
    ),
    "small-glm4_moe": deepseek(
        "glm4_moe", "4 64 8 2 96 101", "8 2 2 40 2", "", n_group=1, topk_group=1, use_qk_norm=True, **_BIASED, **TIED
    ),
    "small-llama4": of(
        "llama4_text", "6 64 8 2 40 101", head_dim=24, intermediate_size_mlp=96, num_local_experts=3,
        num_experts_per_tok=2, moe_layers=[2, 5], attention_chunk_size=32, **_BIASED, **TIED,
    ),
    "small-gpt_oss": of(
        "gpt_oss", "5 64 8 2 40 101", head_dim=24, num_local_experts=5, num_experts_per_tok=2, sliding_window=32,
        **CONTEXT, **TIED,
    ),
    "small-nemotron": of("nemotron", "3 64 8 2 96 101", head_dim=24, mlp_bias=True, **_BIASED, **TIED),
}  # fmt: skip
