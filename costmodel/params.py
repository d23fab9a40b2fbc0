"""Parameters: how many a model has, part by part. Exact integers that match published checkpoints.

Symbols: h hidden, a heads, k_v KV heads, d head width, f dense MLP width, f_e expert width, E experts,
v vocab; MLA: q_r and kv_r the query and KV ranks, d_n and d_r the head widths without and with rotary
position, d_v the value width; g = 3 matrices in a gated MLP, 2 in a plain one.
"""

from dataclasses import dataclass

from costmodel.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Parameters of each part of a model, as `counts` fills it."""

    attention: int  # one layer
    dense_mlp: int  # one dense layer; 0 if there is none
    expert: int  # one routed expert of one layer
    shared: int  # all shared experts of one MoE layer
    router: int  # one MoE layer, with the gate of the shared experts
    norms: int  # one layer
    embedding: int  # with learned positions and the embedding's norm
    head: int  # 0 if it is tied to the embedding
    final_norm: int
    mtp: int  # what one multi-token-prediction depth has beside its layer


def counts(model: Model) -> Counts:
    """Parameters of each part of `model`.

    MLP `g h f` (expert `g h f_e`, shared experts of their own width or `f_e` each; with `mlp_bias` one more value
    per output of each matrix); router `h E` (+ E with `router_bias`: in DeepSeek-V3 the fp32 tensor
    `e_score_correction_bias`, stored in the checkpoint although no gradient reaches it; + h with `shared_gate`);
    norms h per norm (2h with `norm_bias`); embedding `v h` (+ a norm with `embedding_norm`), head `v h` unless
    tied, vocab not padded. A depth of multi-token
    prediction has a projection 2h -> h and three norms (of the embedding, of the hidden state, before the
    head), `2 h h + 3 h`; embedding and head are shared with the main model.
    """
    h, norm = model.hidden, model.hidden * (2 if model.norm_bias else 1)
    return Counts(
        attention=_mla(model) if model.attention == "mla" else _gqa(model),
        dense_mlp=_mlp(model, model.ffn_hidden, 1) if model.dense_layers else 0,
        expert=_mlp(model, model.expert_ffn_hidden, 1) if model.is_moe else 0,
        shared=_mlp(model, model.shared_expert_ffn_hidden or model.expert_ffn_hidden, model.shared_experts),
        router=model.experts * (h + model.router_bias) + model.shared_gate * h,
        norms=model.norms_per_layer * norm,
        embedding=(model.vocab + model.learned_positions) * h + model.embedding_norm * norm,
        head=0 if model.tied_embeddings else model.vocab * h,
        final_norm=norm,
        mtp=2 * h * h + 3 * norm if model.mtp_layers else 0,
    )


def layer(model: Model, *, moe: bool) -> int:
    """Parameters of one layer: attention, norms, and the dense MLP or the router with all its experts."""
    c = counts(model)
    mlp = c.router + c.shared + model.experts * c.expert if moe else c.dense_mlp
    return c.attention + c.norms + mlp


def total(model: Model) -> int:
    """Parameters of the main model: every tensor of the published checkpoint but multi-token prediction.

    DeepSeek-V3: 671,026,419,200, of which 14,848 are the routers' correction biases. Its checkpoint stores
    another `mtp(model)` = 11,610,068,224 and second copies of embedding and head, 684,489,845,504 in all
    (quantisation scales apart).
    """
    c = counts(model)
    dense = model.dense_layers * layer(model, moe=False)
    sparse = model.moe_layers * layer(model, moe=True)
    return c.embedding + dense + sparse + c.final_norm + c.head


def active(model: Model) -> int:
    """Parameters of the main model that one token meets: `total` less the routed experts it is not sent to.

    The whole input embedding counts, although a token reads one row of it: DeepSeek-V3 37.55e9. Without it
    the figure is 36.63e9 (2.5 % less): subtract `counts(model).embedding`, unless the head is tied to it.
    """
    idle = model.experts - model.experts_per_token
    return total(model) - model.moe_layers * idle * counts(model).expert


def mtp(model: Model) -> int:
    """Parameters of all multi-token-prediction depths, each one more layer like the last and `Counts.mtp`."""
    return model.mtp_layers * (layer(model, moe=model.layer_is_moe[-1]) + counts(model).mtp)


def key_value(m: Model) -> int:
    """Parameters of one layer's key and value projections, where a tensor-parallel rank may hold copies."""
    return 0 if m.attention == "mla" else 2 * m.kv_heads * m.head_dim * (m.hidden + m.qkv_bias)


def undivided(m: Model) -> int:
    """Parameters of one layer's attention that every tensor-parallel rank holds in full."""
    if m.attention != "mla":
        return _qk_norm(m)
    return (m.hidden + 1) * (m.q_lora_rank + m.kv_lora_rank) + m.hidden * m.qk_rope_head_dim


def _gqa(m: Model) -> int:
    """`A = 2 h a d + 2 h k_v d`, + (a + 2 k_v) d and + h for biases, + the norms of q and k, + a for sinks."""
    queries, keys = m.heads * m.head_dim, m.kv_heads * m.head_dim
    biases = m.qkv_bias * (queries + 2 * keys) + m.attention_output_bias * m.hidden
    return 2 * m.hidden * (queries + keys) + biases + _qk_norm(m) + m.attention_sinks * m.heads


def _qk_norm(m: Model) -> int:
    """Norms of queries and keys: d each if one norm serves every head, (a + k_v) d if a norm spans all heads."""
    return m.qk_norm * ((m.heads + m.kv_heads if m.qk_norm_whole else 2) * m.head_dim)


def _mla(m: Model) -> int:
    """`A = h q_r + q_r a (d_n+d_r) + q_r + h (kv_r+d_r) + kv_r a (d_n+d_v) + kv_r + a d_v h`.

    The lone q_r and kv_r are norms; with q_r = 0 the first three terms are `h a (d_n+d_r)`. Biases sit on the
    projections down to the ranks (q_r and kv_r + d_r) and on the output (h).
    """
    q_rank, kv_rank, qk = m.q_lora_rank, m.kv_lora_rank, m.heads * m.qk_head_dim
    query = m.hidden * q_rank + q_rank * qk + q_rank if q_rank else m.hidden * qk
    down = m.hidden * (kv_rank + m.qk_rope_head_dim)
    up = kv_rank * m.heads * (m.qk_nope_head_dim + m.v_head_dim) + kv_rank
    biases = m.qkv_bias * (q_rank + kv_rank + m.qk_rope_head_dim) + m.attention_output_bias * m.hidden
    return query + down + up + m.heads * m.v_head_dim * m.hidden + biases


def _mlp(m: Model, width: int, copies: int) -> int:
    """`g h f`, + (g - 1) f + h for biases, of `copies` MLPs of `width`."""
    matrices = 3 if m.gated_mlp else 2
    bias = m.mlp_bias * ((matrices - 1) * width + m.hidden)
    return copies * (matrices * m.hidden * width + bias)
