"""Activations: what a layer keeps per token for its backward pass, and what recompute sets drop of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.held import key_share
from costmodel.layouts import Column, Layouts
from costmodel.model import Model
from costmodel.problem import Problem
from costmodel.rates import MemoryRates
from costmodel.recompute import RecomputeSet

STORED_BYTES: dict[str, float] = {"fp8": 1.0, "mxfp8": 1.0 + 1 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes per element of a tensor stored in a low precision, block scales included."""

WAYS: tuple[str, ...] = ("residual", "split", "keys", "context", "routed", "expert", "gathered")
"""How ranks divide what a layer keeps; `shares` gives the share of a token's bytes on each."""

_DROPPED: dict[str, tuple[str, ...]] = {
    "layernorm": ("norm_out",),
    "activation": ("mlp_out", "shared_out"),
    "mla_up_proj": ("latent_norm", "mla_qkv"),
    "core_attn": ("softmax", "scores"),
    "moe_act": ("expert_out",),
    "shared_experts": ("shared_gate", "shared_mid", "shared_out"),
    "mlp": ("mlp_gate", "mlp_mid", "mlp_out"),
    "moe": (
        "router",
        "expert_in",
        "expert_gate",
        "expert_mid",
        "expert_out",
        "shared_gate",
        "shared_mid",
        "shared_out",
    ),
    "second_matmul": ("norm_out", "key", "mlp_mid", "mlp_out", "shared_mid", "shared_out"),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a layer keeps of one kind: bytes per token over all ranks, and the way in which they divide it."""

    part: str
    way: str
    size: float


def shares(model: Model, layouts: Layouts) -> dict[str, Column]:
    """Share of the bytes of a micro-batch's tokens (those of its context-parallel rank) on one rank, by way.

    residual  norm inputs and outputs, MLA's latents, router: divided by TP only with sequence parallelism
    split     attention heads, MLP width: divided by TP
    keys      key and value heads: divided by TP, one head a rank at least
    context   what context parallelism adds, divided by TP
    routed    tokens at the experts: t / TP of them enter the dispatch, expert tensor parallelism gathers ETP
              times as many and Megatron-Core keeps that input of the grouped GEMM for its weight gradient
    expert    the same tokens times the 1 / ETP of the expert's width
    gathered  inputs that sequence parallelism gathers, where the framework keeps them
    """
    tp, etp = layouts.tp.astype(np.float64), layouts.etp.astype(np.float64)
    parallel = layouts.sequence_parallel.astype(np.float64)
    routed = np.maximum(etp / tp, 1.0 - parallel)
    return {
        "residual": np.maximum(1.0 / tp, 1.0 - parallel),
        "split": 1.0 / tp,
        "keys": key_share(model, tp),
        "context": (layouts.cp > 1) / tp,
        "routed": routed,
        "expert": routed / etp,
        "gathered": parallel * (tp > 1.0),
    }


def layer_tables(problem: Problem, codes: Iterable[int], *, moe: bool) -> tuple[Column, Column]:
    """Bytes per token of one layer, (kept until its backward pass, recomputed at one time).

    Both have shape (recompute sets, WAYS), of which the rows `codes` are given. A set of modules keeps the rest of the
    layer and holds what it drops of one layer while that runs backward; `full` keeps the layer's input and holds a
    whole layer.
    """
    sets = tuple((code, problem.profile.recompute[code]) for code in codes)
    return _tables(layer_tensors(problem, moe=moe), sets, 2.0 * problem.model.hidden)


@lru_cache(maxsize=64)
def _tables(
    tensors: tuple[Tensor, ...], sets: tuple[tuple[int, RecomputeSet], ...], input_: float
) -> tuple[Column, Column]:
    kept, recomputed = (np.zeros((max(code for code, _ in sets) + 1, len(WAYS))) for _ in range(2))
    for code, choice in sets:
        for tensor in tensors:
            way = WAYS.index(tensor.way)
            (recomputed if _drops(choice, tensor.part) else kept)[code, way] += tensor.size
        if choice.full:
            kept[code, WAYS.index("residual")] = input_
    for table in (kept, recomputed):
        table.flags.writeable = False
    return kept, recomputed


def per_token(table: Column, code: Column, share: Mapping[str, Column]) -> Column:
    """Bytes per token on one rank: row `code` of a table of `layer_tables`, each way times its share."""
    total = np.zeros(len(code))
    for number, way in enumerate(WAYS):
        if table[:, number].any():
            total = total + table[:, number].take(code) * share[way]
    return total


def layer_tensors(problem: Problem, *, moe: bool) -> tuple[Tensor, ...]:
    """What one layer keeps without recomputation, bf16 but for what the profile stores in fp8.

    Flash attention, fused norm, SwiGLU and RoPE, no dropout; the attention output is the projection's input,
    one storage. Reproduces Megatron-Core's allocated peak to 4 % (tests). Korthikanti et al. 2205.05198 count
    34 h per layer for a GPT with dropout and plain MLP; Megatron-LM's own estimate, 18 h + 4 f, leaves out
    grouped queries, the third matrix of SwiGLU and experts.
    """
    m, rates = problem.model, problem.profile.memory
    low = STORED_BYTES.get(problem.workload.precision, 2.0)
    stored = 2.0 + rates.fp8_activations * (low - 2.0)
    norms = m.norms_per_layer * m.hidden
    parts = [
        Tensor("norm_in", "residual", 2.0 * norms),
        Tensor("norm_out", "residual", 0.5 * rates.norm_saved * stored * norms),
        Tensor("gathered", "gathered", rates.gathered_input * m.hidden),
        *(_mla(m, stored) if m.attention == "mla" else _gqa(m, rates)),
        *_attention_out(m, rates, low),
        Tensor("scores", "split", rates.scores_saved * m.heads * problem.workload.seq_len),
        *(_experts(problem, stored, low) if moe else _mlp(m, rates, stored, low, m.ffn_hidden, "mlp")),
    ]
    return tuple(parts)


def _drops(choice: RecomputeSet, part: str) -> bool:
    return choice.full or any(part in _DROPPED[module] for module in choice.modules)


def _gqa(m: Model, rates: MemoryRates) -> Iterator[Tensor]:
    copies = 1.0 + rates.keys_copied * (m.kv_heads == m.heads)
    yield Tensor("q", "split", 2.0 * m.heads * m.head_dim)
    yield Tensor("key", "keys", 2.0 * copies * m.kv_heads * m.head_dim)
    yield Tensor("value", "keys", 2.0 * copies * m.kv_heads * m.head_dim)


def _mla(m: Model, stored: float) -> Iterator[Tensor]:
    ranks = m.q_lora_rank + m.kv_lora_rank
    yield Tensor("latent", "residual", 2.0 * (ranks + m.qk_rope_head_dim))
    yield Tensor("latent_norm", "residual", stored * ranks)
    yield Tensor("mla_qkv", "split", 2.0 * m.heads * (2 * m.qk_head_dim + m.v_head_dim))


def _attention_out(m: Model, rates: MemoryRates, low: float) -> Iterator[Tensor]:
    width = float(m.heads * m.value_head_dim)
    kept = rates.fp8_attention_output if low < 2.0 else 2.0
    yield Tensor("attention_out", "split", kept * width)
    yield Tensor("softmax", "split", 4.0 * m.heads)
    yield Tensor("attention_out", "context", rates.cp_saved * width)


def _mlp(m: Model, rates: MemoryRates, stored: float, low: float, width: float, name: str) -> Iterator[Tensor]:
    """The first GEMM's output, the rest of the activation function's inputs and its output, for an MLP of `width`
    (k c f_e at the experts)."""
    way = "expert" if name == "expert" else "split"
    mid = rates.mlp_saved - 4.0 if m.gated_mlp else 0.0
    stored_mid = 1.0 + rates.fp8_swiglu_input * (0.5 * low - 1.0)
    yield Tensor(f"{name}_gate", way, 2.0 * stored_mid * width)
    yield Tensor(f"{name}_mid", way, mid * stored_mid * width)
    yield Tensor(f"{name}_out", way, 0.5 * rates.swiglu_saved * stored * width)


def _experts(problem: Problem, stored: float, low: float) -> Iterator[Tensor]:
    m, rates = problem.model, problem.profile.memory
    copies = m.experts_per_token * problem.workload.expert_load
    yield Tensor("router", "residual", 13.0 * m.experts)
    yield Tensor("expert_in", "routed", stored * copies * m.hidden)
    yield from _mlp(m, rates, stored, low, copies * m.expert_ffn_hidden, "expert")
    yield from _mlp(m, rates, stored, low, float(m.shared_ffn_hidden), "shared")
