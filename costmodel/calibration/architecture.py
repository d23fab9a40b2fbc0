"""The model that a run states: its architecture's columns, over a shipped model of the same name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from costmodel.calibration.cells import flag, whole
from costmodel.model import Model, load_model, model_names

_model = lru_cache(load_model)


def model_of(row: Mapping[str, str]) -> Model:
    """The architecture that ran: the row's numbers, over a shipped model of the same name for what a row lacks."""
    shipped = _shipped(row["model"])
    heads, hidden = whole(row, "heads"), whole(row, "hidden")
    moe = bool(row.get("experts"))
    values: dict[str, object] = {
        "name": row["model"],
        "source": row.get("source") or "a table of runs",
        "layers": whole(row, "layers"),
        "hidden": hidden,
        "heads": heads,
        "vocab": whole(row, "vocab"),
        "seq_len": whole(row, "seq"),
        "gated_mlp": flag(row, "gated_mlp", True),
        "tied_embeddings": flag(row, "tied_embeddings", False),
        "kv_heads": whole(row, "kv_heads", heads),
        "head_dim": whole(row, "head_dim", hidden // heads),
        "ffn_hidden": whole(row, "ffn_hidden", 0),
    }
    if moe:
        values |= _experts_of(row)
    if row.get("attention") == "mla":
        values |= _latent_of(row, shipped, heads)
    if shipped is not None:
        without = "w/o MTP" in row.get("notes", "")
        values["mtp_layers"] = 0 if without else shipped.mtp_layers
        return replace(shipped, **values)  # type: ignore[arg-type]
    return Model(**values)  # type: ignore[arg-type]


def _experts_of(row: Mapping[str, str]) -> dict[str, object]:
    first, step = whole(row, "first_k_dense", 0), whole(row, "moe_layer_step", 1) or 1
    dense = first > 0 or step > 1
    return {
        "experts": whole(row, "experts"),
        "experts_per_token": whole(row, "topk"),
        "expert_ffn_hidden": whole(row, "moe_ffn_hidden"),
        "shared_experts": whole(row, "shared_experts", 0),
        "first_dense_layers": first,
        "moe_layer_step": step,
        "ffn_hidden": whole(row, "ffn_hidden") if dense else 0,
    }


def _latent_of(row: Mapping[str, str], shipped: Model | None, heads: int) -> dict[str, object]:
    """MLA's ranks are not columns: a shipped model's, else DeepSeek-V2's and V3's, without a query rank below 4,096."""
    like = shipped or _model("deepseek-v3")
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")
    found: dict[str, object] = {name: getattr(like, name) for name in names}
    if shipped is None and whole(row, "hidden") < 4096:
        found["q_lora_rank"] = 0
    width = like.qk_nope_head_dim + like.qk_rope_head_dim
    return found | {"attention": "mla", "kv_heads": heads, "head_dim": width}


@lru_cache(maxsize=1)
def _shipped_names() -> dict[str, str]:
    return {_plain(name): name for name in model_names()}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _shipped(name: str) -> Model | None:
    """The shipped model that a run's model name begins with: "deepseek-v3 cut to 4 layers" is deepseek-v3."""
    plain = _plain(name)
    fits = [known for known in _shipped_names() if plain.startswith(known)]
    return _model(_shipped_names()[max(fits, key=len)]) if fits else None
