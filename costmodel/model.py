"""Model: a transformer's architecture. Shipped ones are in data/models/*.toml, others come from a TOML file
of the same keys or from a Hugging Face config.json."""

import os
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from costmodel import hf_families
from hardware.errors import InputError
from hardware.reader import Table
from hardware.spelling import did_you_mean

_DATA = Path(__file__).parent / "data" / "models"
_AT_LEAST_ONE = frozenset({"layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "seq_len", "moe_layer_step"})
_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_MOE = (
    "experts_per_token", "expert_ffn_hidden", "shared_experts", "shared_expert_ffn_hidden", "first_dense_layers",
    "routed_nodes",
)  # fmt: skip
_HIGHEST = 10**9
_OWN_SOURCE = "a file of the user's"


@lru_cache(maxsize=64)
def _moe_layers(layers: int, dense: int, step: int) -> tuple[bool, ...]:
    return tuple(layer >= dense and (layer + 1) % step == 0 for layer in range(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer. Widths are in elements, counts in units.

    Layer i (from 0) is a mixture of experts (MoE) if `experts` > 0, i >= `first_dense_layers` and i + 1 is a
    multiple of `moe_layer_step`; all others have a dense MLP of width `ffn_hidden`. `mlp_bias` holds for
    dense MLPs and experts alike. A token of layer i attends to the last `windows[i mod len(windows)]` tokens, to
    all before it where that is 0 or `windows` is empty; with `chunked_windows` to those of its own chunk of so
    many tokens (Llama 4). With `attention = "mla"` (multi-head latent attention, DeepSeek-V2) every
    head has its own key and value, so `kv_heads` = `heads` and `head_dim` = `qk_nope_head_dim` +
    `qk_rope_head_dim`; `q_lora_rank = 0` means that queries are projected in one step.

    Raises InputError, one line with the numbers, if a value has the wrong type or contradicts another.
    """

    name: str
    source: str  # where the numbers come from
    layers: int  # transformer layers, multi-token-prediction layers not included
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int  # width of the dense MLP; 0 if no layer is dense
    vocab: int  # as published, not padded
    seq_len: int  # tokens per sequence in pre-training
    gated_mlp: bool = True  # three matrices (SwiGLU) or two
    attention: Literal["gqa", "mla"] = "gqa"
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    experts: int = 0  # routed experts per MoE layer
    experts_per_token: int = 0
    expert_ffn_hidden: int = 0
    shared_experts: int = 0
    shared_expert_ffn_hidden: int = 0  # width of one shared expert; 0 = expert_ffn_hidden
    shared_gate: bool = False  # one more output of the router scales the shared experts (Qwen2-MoE)
    first_dense_layers: int = 0
    moe_layer_step: int = 1
    routed_nodes: int = 0  # nodes a token may be routed to; 0 = not limited
    mtp_layers: int = 0  # multi-token-prediction depths, each one more layer like the last
    windows: tuple[int, ...] = ()  # tokens, repeated over the layers
    chunked_windows: bool = False
    attention_sinks: bool = False  # one learned logit per head (gpt-oss)
    tied_embeddings: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm of head_dim weights on q and on k, shared by all heads
    qk_norm_whole: bool = False  # with qk_norm: over all heads at once, a weight per channel (OLMo 2)
    router_bias: bool = False  # one value per routed expert
    norm_bias: bool = False  # LayerNorm rather than RMSNorm
    norms_per_layer: int = 2
    embedding_norm: bool = False  # one more norm after the embedding (BLOOM)
    learned_positions: int = 0  # rows of a learned position table

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(self.name, field.name, field.type, getattr(self, field.name))
        for contradiction in _contradictions(self):
            raise InputError(f"model {self.name!r}: {contradiction}")

    @property
    def is_moe(self) -> bool:
        """Whether any layer is a mixture of experts."""
        return self.experts > 0

    @property
    def layer_is_moe(self) -> tuple[bool, ...]:
        """For each of the `layers` layers, whether it is a mixture of experts."""
        return _moe_layers(self.layers, self.first_dense_layers if self.is_moe else self.layers, self.moe_layer_step)

    @property
    def moe_layers(self) -> int:
        """Number of mixture-of-experts layers."""
        return self.layer_is_moe.count(True)

    @property
    def dense_layers(self) -> int:
        """Number of layers with a dense MLP."""
        return self.layers - self.moe_layers

    @property
    def shared_ffn_hidden(self) -> int:
        """Width of all shared experts of a layer together."""
        return self.shared_experts * (self.shared_expert_ffn_hidden or self.expert_ffn_hidden)

    @property
    def layer_windows(self) -> tuple[int, ...]:
        """For each of the `layers` layers, the tokens of its attention window; 0 = no window."""
        pattern = self.windows or (0,)
        return tuple(pattern[i % len(pattern)] for i in range(self.layers))

    @property
    def qk_head_dim(self) -> int:
        """Width of one query (or key) head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.attention == "mla" else self.head_dim

    @property
    def value_head_dim(self) -> int:
        """Width of one value head."""
        return self.v_head_dim if self.attention == "mla" else self.head_dim


def model_names() -> tuple[str, ...]:
    """Names of the shipped models, sorted."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.toml")))


def load_model(name_or_path: str | Path, family: str | None = None) -> Model:
    """The model of a shipped name, a TOML file, a Hugging Face config.json or the folder that holds one.

    A TOML file has the Model's fields as its keys; `base` names the shipped model that gives those it leaves out, its
    own name is by default that of the file. A shipped name wins over a file or folder of the same name; write ./NAME
    for the latter. A config.json is read as a model of `family`, if given, whatever its `model_type` says.
    Raises InputError, one line that names the file, for anything that is not a valid model.
    """
    text, path = str(name_or_path), Path(name_or_path)
    if family is not None:
        hf_families.check(family)
        if text in model_names() or path.suffix == ".toml":
            raise InputError(f"{text}: --as {family} is for a Hugging Face config.json; this is none")
    if text in model_names():
        return _from_toml(_DATA / f"{text}.toml")
    if os.path.isdir(text):
        path = path / "config.json"
        if not os.path.isfile(path):
            raise InputError(f"{path.parent}: the folder holds no config.json")
    elif path.suffix not in (".toml", ".json"):
        raise InputError(_unknown(text, path))
    if path.suffix != ".json":
        return _from_toml(path)
    usual = {field.name: field.default for field in fields(Model)}
    return _build(path, hf_families.model_fields(path, family, usual))


def _unknown(text: str, path: Path) -> str:
    if os.path.exists(text):
        return f"{path}: expected a .toml file, a .json file or a folder that holds a config.json"
    if len(path.parts) > 1:
        return f"{path}: no such file or folder"
    hint = did_you_mean(text, model_names()) or ";"
    return f"unknown model {text!r}{hint} shipped: {', '.join(model_names())}"


def _from_toml(path: Path) -> Model:
    table = Table.load(path)
    for field in fields(Model):
        table.has(field.name)
    base = load_model(table.text("base", choices=model_names())) if table.has("base") else None
    table.finish()  # first: a misspelt key is a better message than the missing one it leaves
    usual = {field.name: getattr(base, field.name, field.default) for field in fields(Model)}
    usual |= {"name": path.stem, "source": f"{base.name} and {_OWN_SOURCE}" if base else _OWN_SOURCE}
    return _build(path, {field.name: _read(table, field, usual[field.name]) for field in fields(Model)})


def _read(table: Table, field: Field[Any], usual: Any) -> Any:
    default = () if usual is MISSING else (usual,)
    if field.type is int:
        return table.integer(field.name, *default)
    if field.type == tuple[int, ...]:
        if not table.has(field.name) or table.raw(field.name) == []:
            return () if table.has(field.name) else usual
        return tuple(int(value) if value == int(value) else value for value in table.numbers(field.name, minimum=0))
    return table.flag(field.name, *default) if field.type is bool else table.text(field.name, *default)


def _build(path: Path, values: dict[str, Any]) -> Model:
    try:
        return Model(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _check_type(model: str, key: str, kind: object, value: object) -> None:
    lowest, highest = int(key in _AT_LEAST_ONE), 2_000 if key in ("layers", "mtp_layers") else _HIGHEST
    if kind is int:
        good, must = type(value) is int and lowest <= value <= highest, f"an integer from {lowest} to {highest}"
    elif kind is bool:
        good, must = type(value) is bool, "true or false"
    elif kind is str:
        good, must = type(value) is str and bool(value.strip()), "a text that is not empty"
    elif kind == tuple[int, ...]:
        good = type(value) is tuple and all(type(item) is int and 0 <= item <= _HIGHEST for item in value)
        must = f"a list of integers from 0 to {_HIGHEST}"
    else:
        good, must = value in ("gqa", "mla"), "'gqa' or 'mla'"
    if not good:
        raise InputError(f"model {model!r}: {key} must be {must}, got {value!r}")


def _contradictions(m: Model) -> Iterator[str]:
    yield from _mla_contradictions(m) if m.attention == "mla" else _gqa_contradictions(m)
    yield from _moe_contradictions(m) if m.is_moe else _dense_contradictions(m)
    if m.dense_layers and not m.ffn_hidden:
        yield f"ffn_hidden is 0 but {m.dense_layers} of {m.layers} layers are dense"
    if m.qk_norm_whole and not m.qk_norm:
        yield "qk_norm_whole is true but qk_norm is false"
    if m.chunked_windows and not m.windows:
        yield "chunked_windows is true but windows is empty"
    if m.shared_expert_ffn_hidden and not m.shared_experts:
        yield f"shared_expert_ffn_hidden is {m.shared_expert_ffn_hidden} but shared_experts is 0"
    if m.ffn_hidden and not m.dense_layers:
        yield f"ffn_hidden is {m.ffn_hidden} but none of {m.layers} layers is dense; write 0"


def _gqa_contradictions(m: Model) -> Iterator[str]:
    if m.heads % m.kv_heads:
        yield f"heads {m.heads} is not a multiple of kv_heads {m.kv_heads}"
    for key in _MLA:
        if getattr(m, key):
            yield f"{key} is {getattr(m, key)} but attention is 'gqa'; it belongs to 'mla'"


def _mla_contradictions(m: Model) -> Iterator[str]:
    for key in _MLA[1:]:
        if not getattr(m, key):
            yield f"{key} is 0 but attention is 'mla'"
    if m.qk_norm:
        yield "qk_norm is true but attention is 'mla', which has norms of its own; write false"
    if m.kv_heads != m.heads:
        yield f"kv_heads {m.kv_heads} must equal heads {m.heads} when attention is 'mla'"
    if m.head_dim != m.qk_head_dim:
        yield (
            f"head_dim {m.head_dim} must equal qk_nope_head_dim {m.qk_nope_head_dim} + qk_rope_head_dim "
            f"{m.qk_rope_head_dim} when attention is 'mla'"
        )


def _moe_contradictions(m: Model) -> Iterator[str]:
    if not 1 <= m.experts_per_token <= m.experts:
        yield f"experts_per_token {m.experts_per_token} must be from 1 to experts {m.experts}"
    if not m.expert_ffn_hidden:
        yield f"expert_ffn_hidden is 0 but experts is {m.experts}"
    if not m.moe_layers:
        yield (
            f"experts is {m.experts} but first_dense_layers {m.first_dense_layers} and moe_layer_step "
            f"{m.moe_layer_step} leave no MoE layer among {m.layers}"
        )


def _dense_contradictions(m: Model) -> Iterator[str]:
    for key in _MOE:
        if getattr(m, key):
            yield f"{key} is {getattr(m, key)} but experts is 0"
    if m.moe_layer_step != 1:
        yield f"moe_layer_step is {m.moe_layer_step} but experts is 0"
    for key in ("router_bias", "shared_gate"):
        if getattr(m, key):
            yield f"{key} is true but experts is 0"
