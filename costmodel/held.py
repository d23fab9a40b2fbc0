"""Parameters that one rank of a pipeline stage holds, whatever ZeRO does with their states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costmodel.layouts import Column
from costmodel.model import Model
from costmodel.params import counts, key_value, undivided

_VOCAB_MULTIPLE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParameters:
    """Parameters on one rank of a pipeline stage, float64 columns.

    `matrices` are the layers' matrices but the routed experts, `expert` the routed experts, `ends` the rest:
    embedding, head, norms and router, whose weights stay in 16 bits under fp8.
    """

    matrices: Column
    ends: Column
    expert: Column

    @property
    def dense(self) -> Column:
        """All but the routed experts: what the dense data-parallel group replicates or shards."""
        return self.matrices + self.ends


def vocab_per_rank(model: Model, tp: Column) -> Column:
    """Rows of embedding and head on a rank; the vocabulary is padded to a multiple of 128 tp."""
    return np.ceil(model.vocab / (_VOCAB_MULTIPLE * tp)) * _VOCAB_MULTIPLE


def key_share(model: Model, tp: Column) -> Column:
    """Share of the key and value heads on a rank: 1 / tp, but one head at least; more ranks hold copies."""
    return np.maximum(1.0 / tp, 1.0 / model.kv_heads)


def quantities(model: Model, stage: Mapping[str, Column]) -> dict[str, Column]:
    """What a stage of `dense`, `moe`, `mtp` layers and `embedding`, `head` (0 or 1) holds of each of `units`.

    The layer of a multi-token-prediction depth is one more like the model's last. A stage with such a depth and
    no embedding holds a copy of it; with tied embeddings a stage that holds both ends keeps one matrix.
    """
    mtp, last_is_moe = stage["mtp"], model.layer_is_moe[-1]
    embedding = np.maximum(stage["embedding"], np.minimum(mtp, 1.0))
    head = stage["head"] * (1.0 - np.minimum(embedding, 1.0) * model.tied_embeddings)
    return {
        "dense": stage["dense"] + mtp * (not last_is_moe),
        "moe": stage["moe"] + mtp * last_is_moe,
        "depths": mtp,
        "matrix": embedding + head,
        "positions": embedding,
        "head": stage["head"],
    }


def units(model: Model, tp: Column, ep: Column, etp: Column) -> dict[str, StageParameters]:
    """Parameters per rank of a dense and an MoE layer, of what a multi-token-prediction depth has beside its
    layer, of a vocabulary matrix, of a position table and of the final norm; float64 columns or one number.

    Tensor parallelism divides the matrices of attention, MLP and shared experts and the padded vocabulary; norms,
    router and the projections down to MLA's ranks are on each of its ranks (Megatron-LM,
    multi_latent_attention.py: "duplicated"); key and value heads follow `key_share`. A routed expert lies on
    1 / (ep etp) of the ranks.
    """
    c, h, none = counts(model), model.hidden, np.zeros(1)
    keys, whole = key_value(model), undivided(model)
    attention = c.attention - keys - whole
    rest = keys * key_share(model, tp) + whole

    def unit(matrices: Column = none, ends: Column | float = 0.0, expert: Column = none) -> StageParameters:
        return StageParameters(matrices=matrices, ends=none + ends, expert=expert)

    experts = model.experts * c.expert / (ep * etp)
    return {
        "dense": unit((attention + c.dense_mlp) / tp + rest, c.norms),
        "moe": unit((attention + c.shared) / tp + rest, c.norms + c.router, experts),
        "depths": unit(2 * h * h / tp, c.mtp - 2 * h * h) if model.mtp_layers else unit(),
        "matrix": unit(ends=h * vocab_per_rank(model, tp)),
        "positions": unit(ends=c.embedding - model.vocab * h),
        "head": unit(ends=c.final_norm),
    }


def stage_parameters(model: Model, stage: Mapping[str, Column], tp: Column, ep: Column, etp: Column) -> StageParameters:
    """Parameters per rank of a stage with `dense`, `moe`, `mtp` layers and `embedding`, `head` (0 or 1).

    All columns are float64; see `quantities` and `units`.
    """
    none = np.zeros(1)
    held = StageParameters(matrices=none, ends=none, expert=none)
    each, holds = units(model, tp, ep, etp), quantities(model, stage)
    for name, unit in each.items():
        held = StageParameters(
            matrices=held.matrices + holds[name] * unit.matrices,
            ends=held.ends + holds[name] * unit.ends,
            expert=held.expert + holds[name] * unit.expert,
        )
    return held
