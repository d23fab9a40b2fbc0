"""FLOPs of the model per token, by the conventions that published MFU figures use."""

from __future__ import annotations

from functools import lru_cache

from costmodel.model import Model


def attention_projections(model: Model) -> float:
    """Forward FLOPs per token of one layer's attention projections (two per multiply-add)."""
    h, a = model.hidden, model.heads
    if model.attention == "mla":
        query = h * model.q_lora_rank + model.q_lora_rank * a * model.qk_head_dim
        if not model.q_lora_rank:
            query = h * a * model.qk_head_dim
        latent = h * (model.kv_lora_rank + model.qk_rope_head_dim)
        up = model.kv_lora_rank * a * (model.qk_nope_head_dim + model.v_head_dim)
        return 2.0 * (query + latent + up + a * model.v_head_dim * h)
    return 2.0 * (2 * h * a * model.head_dim + 2 * h * model.kv_heads * model.head_dim)


def attended(model: Model, seq_len: float) -> float:
    """Keys per query in the attended part of the square, mean of all layers; a causal mask needs half of it.

    All `seq_len` without a window. A window of w tokens leaves a band, w (2 - w / seq_len) keys per query; chunks of w
    leave squares, w keys per query (less in a last chunk that is cut short). The mean over the layers makes the
    model's sum exact, while a stage that holds more windowed layers than another is not told apart.
    """
    if not model.windows:
        return seq_len
    spans = [_span(window, seq_len, chunked=model.chunked_windows) for window in model.layer_windows]
    return sum(spans) / len(spans)


def _span(window: int, seq_len: float, *, chunked: bool) -> float:
    if not 0 < window < seq_len:
        return seq_len
    if not chunked:
        return window * (2.0 - window / seq_len)
    whole = seq_len // window
    return (whole * window**2 + (seq_len - whole * window) ** 2) / seq_len


def core_attention(model: Model, seq_len: float) -> float:
    """Forward FLOPs per token of QK^T and PV over the attended part of the square, mean of all layers."""
    return 2.0 * attended(model, seq_len) * model.heads * (model.qk_head_dim + model.value_head_dim)


def feed_forward(model: Model, *, moe: bool) -> float:
    """Forward FLOPs per token of one layer's MLP: dense, or top-k and shared experts with the router."""
    matrices = 3 if model.gated_mlp else 2
    if not moe:
        return 2.0 * matrices * model.hidden * model.ffn_hidden
    width = model.experts_per_token * model.expert_ffn_hidden + model.shared_ffn_hidden
    return 2.0 * (matrices * model.hidden * width + model.hidden * (model.experts + model.shared_gate))


def layer(model: Model, seq_len: float, *, moe: bool, causal: bool = True) -> float:
    """Forward FLOPs per token of one transformer layer."""
    share = 0.5 if causal else 1.0
    attention = attention_projections(model) + share * core_attention(model, seq_len)
    return attention + feed_forward(model, moe=moe)


def head(model: Model) -> float:
    """Forward FLOPs per token of the output projection."""
    return 2.0 * model.hidden * model.vocab


def mtp(model: Model, seq_len: float, *, causal: bool = True) -> float:
    """Forward FLOPs per token of one multi-token-prediction depth: its projection, its layer and the head again."""
    projection = 2.0 * 2 * model.hidden * model.hidden
    return projection + layer(model, seq_len, moe=model.is_moe, causal=causal) + head(model)


@lru_cache(maxsize=64)
def step_flops_per_token(model: Model, seq_len: int, convention: str, active: float) -> float:
    """FLOPs per token of one training step (forward and backward, recomputation not counted).

    `causal` is Megatron-LM's count of exact GEMMs with causal attention halved; `full` counts the whole attention
    square, as PaLM, torchtitan and the Llama 3 report do (27 % against 13 % over 6N at 8B and 8k tokens); `6n` is
    6 times the active parameters, without attention.
    """
    if convention == "6n":
        return 6.0 * active
    causal = convention == "causal"
    layers = sum(layer(model, seq_len, moe=moe, causal=causal) for moe in model.layer_is_moe)
    depths = model.mtp_layers * mtp(model, seq_len, causal=causal)
    return 3.0 * (layers + head(model) + depths)
