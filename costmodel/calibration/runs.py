"""Measured runs: one row of a table of runs -> the problem and layout that ran, and what was measured."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import pandas as pd

from costmodel.calibration.machine import cluster_of
from costmodel.calibration.software import software_of
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.model import Model, load_model, model_names
from costmodel.problem import Problem, Workload
from costmodel.profile import MODULES, Profile, RecomputeSet, load_profile
from hardware.errors import InputError

T = TypeVar("T")
K = TypeVar("K", str, tuple[str, str])

FRAMEWORKS: tuple[tuple[str, str], ...] = (
    ("megatron-deepspeed", "megatron-2021"),
    ("vtrain", "megatron-2021"),
    ("megatron", "megatron"),
    ("nemo-automodel", "torchtitan"),
    ("nemo", "megatron"),
    ("nanotron", "nanotron"),
    ("torchtitan", "torchtitan"),
    ("llm-foundry", "llm-foundry"),
    ("internevo", "internevo"),
    ("hai-llm", "deepseek"),
    ("meta internal", "llama3-meta"),
    ("deepspeed", "deepspeed"),
)
"""Names of frameworks as runs state them (how they begin, lower case) -> the profile that stands for them."""
FALLBACK = "torchtitan"
"""Profile of a framework that is not listed: PyTorch FSDP is what most of them build on."""

SLOW_BUSBW = 432.0
"""GB/s inside a node below which nanotron's machines were in their slow state."""

BF16_GRADIENTS = ("megatron-bridge", "nemo")
"""Frameworks whose published recipes set grad_reduce_in_fp32 to false."""

LIGER = {"logit_bytes": 0.0, "norm_saved": 2.0}
"""Rates of memory where Liger's kernels ran."""

REQUIRED = ("model", "hidden", "layers", "heads", "vocab", "gpu", "gpus", "framework", "gbs", "mbs", "seq")
LARGEST = 1e9
"""No count or width of a run is above this."""
TRUSTS = ("ok", "medium", "low")
RUNS = Path(__file__).parents[1] / "data" / "runs.csv.gz"
"""Published, measured runs, each with its source."""
GIB = float(2**30)
_profile, _model = lru_cache(load_profile), lru_cache(load_model)
ZERO = {"none": 0, "distopt": 1, "distopt(ZeRO-1)": 1, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run. step_time in s, memory in B, None where not measured; `layout` is a table of one row."""

    id: str
    framework: str
    problem: Problem
    layout: Layouts
    step_time: float | None
    memory: float | None
    memory_kind: str
    oom: bool
    trust: str
    sweep: str
    source: str
    recompute_stated: bool
    ep_stated: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    id: str
    why: str
    trust: str


def read_runs(path: str | Path, profile: Profile | None = None) -> tuple[list[Run], list[Skipped]]:
    """Runs of a CSV file in its order, and the rows that cannot be predicted. Raises InputError for a wrong file.

    With a profile: its runs alone, predicted with it; those are the runs of its framework and of frameworks that are
    not listed. docs/runs_format.md describes the columns.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a CSV file of runs: {' '.join(str(error).split())}") from None
    if missing := [name for name in ("id", *REQUIRED) if name not in table.columns]:
        names = ", ".join(map(repr, missing))
        which = f"columns {names} are" if len(missing) > 1 else f"column {names} is"
        raise InputError(f"{path}: {which} missing; docs/runs_format.md describes all columns")
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for row in table.to_dict("records"):
        cells = {str(key): str(value).strip() for key, value in row.items()}
        try:
            runs.append(run_of(cells, profile))
        except InputError as error:
            skipped.append(Skipped(cells["id"], str(error), cells.get("trust") or "ok"))
    return runs, skipped


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by a key, in the order of the keys; each group in the order of the items."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return dict(sorted(groups.items()))


def run_of(row: Mapping[str, str], profile: Profile | None = None) -> Run:
    """One row. Raises InputError where a value that a prediction needs is missing or contradicts another, or where the
    row is none of the profile's."""
    if absent := [name for name in REQUIRED if not row.get(name)]:
        raise InputError(f"{', '.join(absent)} not stated")
    cluster = cluster_of(row)
    profile = _as_run(_profile_of(row, profile).on(cluster.gpu), row)
    model = model_of(row)
    precision = row.get("precision") or "bf16"
    workload = Workload(
        gpus=_int(row, "gpus"),
        seq_len=_int(row, "seq"),
        global_batch=_int(row, "gbs"),
        precision=precision,
        grad_dtype=_gradients(row["framework"].lower(), precision, profile),
        moments_dtype=profile.moments_dtype,
        routed_nodes=model.routed_nodes,
        optimizer_offload=1.0 if re.search(r"CPU Adam\w* offload", row.get("overlap_flags", "")) else 0.0,
        **software_of(row),  # type: ignore[arg-type]
    )
    problem = Problem(model=model, cluster=cluster, profile=profile, workload=workload)
    measured = _number(row, "step_time_s")
    speed = _number(row, "tokens_per_s_per_gpu")
    if measured is None and speed:
        measured = problem.tokens / (workload.gpus * speed)
    memory = _number(row, "peak_mem_gib")
    return Run(
        id=row["id"],
        framework=row["framework"],
        problem=problem,
        layout=layout_of(row, problem),
        step_time=measured,
        memory=None if memory is None else memory * GIB,
        memory_kind=row.get("peak_mem_kind", ""),
        oom=row.get("oom") == "1",
        trust=_trust(row),
        sweep=row.get("sweep", ""),
        source=row.get("source", ""),
        recompute_stated=bool(row.get("recompute")),
        ep_stated=not model.is_moe or bool(row.get("ep")),
    )


def _gradients(framework: str, precision: str, profile: Profile) -> str:
    """fp16 training keeps gradients of its own type; the recipes of NeMo and Megatron-Bridge reduce them in bf16."""
    if precision == "fp16":
        return "fp16"
    return "bf16" if framework.startswith(BF16_GRADIENTS) else profile.grad_dtype


def _trust(row: Mapping[str, str]) -> str:
    trust = row.get("trust") or "ok"
    if trust not in TRUSTS:
        raise InputError(f"trust = {trust!r} is none of {', '.join(TRUSTS)}")
    return trust


def profile_name(framework: str) -> str:
    """The profile that stands for a framework's name."""
    return _listed(framework) or FALLBACK


def framework_of(run: Run) -> str:
    """The shipped profile of a run's framework; of one that is not listed, that of the profile it is predicted with."""
    return _listed(run.framework) or run.problem.profile.shipped or run.problem.profile.name


def strangers(runs: Iterable[Run]) -> dict[str, int]:
    """Frameworks of runs that are not listed, and how many runs each has; in alphabetical order."""
    names = [run.framework for run in runs if not _listed(run.framework)]
    return {name: names.count(name) for name in sorted(set(names))}


def _listed(framework: str) -> str:
    known = framework.lower()
    return next((profile for begins, profile in FRAMEWORKS if known.startswith(begins)), "")


def _profile_of(row: Mapping[str, str], given: Profile | None) -> Profile:
    """The profile that stands for the row's framework; or the given one, where it is the row's or builds on it."""
    own = _state(row)
    if given is None:
        return _profile(own)
    if _listed(row["framework"]) and own != given.shipped:
        raise InputError(f"framework {row['framework']!r} is not that of profile {given.name}")
    return given


def _state(row: Mapping[str, str]) -> str:
    """The profile of a row: nanotron's sweep logged on some machines a slow state, NVLink near 425 instead of 458 GB/s,
    in which each layer waits for the host in proportion to TP."""
    name = profile_name(row["framework"])
    logged = _number(row, "busbw_intra_gbs")
    return "nanotron-slow" if name == "nanotron" and logged is not None and logged < SLOW_BUSBW else name


def model_of(row: Mapping[str, str]) -> Model:
    """The architecture that ran: the row's numbers, over a shipped model of the same name for what a row lacks."""
    shipped = _shipped(row["model"])
    heads, hidden = _int(row, "heads"), _int(row, "hidden")
    moe = bool(row.get("experts"))
    values: dict[str, object] = {
        "name": row["model"],
        "source": row.get("source") or "a table of runs",
        "layers": _int(row, "layers"),
        "hidden": hidden,
        "heads": heads,
        "vocab": _int(row, "vocab"),
        "seq_len": _int(row, "seq"),
        "gated_mlp": row.get("gated_mlp") != "0",
        "tied_embeddings": row.get("tied_embeddings") == "1",
        "kv_heads": _int(row, "kv_heads", heads),
        "head_dim": _int(row, "head_dim", hidden // heads),
        "ffn_hidden": _int(row, "ffn_hidden", 0),
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
    first, step = _int(row, "first_k_dense", 0), _int(row, "moe_layer_step", 1) or 1
    dense = first > 0 or step > 1
    return {
        "experts": _int(row, "experts"),
        "experts_per_token": _int(row, "topk"),
        "expert_ffn_hidden": _int(row, "moe_ffn_hidden"),
        "shared_experts": _int(row, "shared_experts", 0),
        "first_dense_layers": first,
        "moe_layer_step": step,
        "ffn_hidden": _int(row, "ffn_hidden") if dense else 0,
    }


def _latent_of(row: Mapping[str, str], shipped: Model | None, heads: int) -> dict[str, object]:
    """MLA's ranks are not columns: a shipped model's, else DeepSeek-V2's and V3's, without a query rank below 4,096."""
    like = shipped or _model("deepseek-v3")
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "q_lora_rank")
    found: dict[str, object] = {name: getattr(like, name) for name in names}
    if shipped is None and _int(row, "hidden") < 4096:
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


def layout_of(row: Mapping[str, str], problem: Problem) -> Layouts:
    """The layout that ran; what a row leaves out is 1, DP what the other degrees leave."""
    workload, profile = problem.workload, problem.profile
    tp, pp, vpp, cp = (_int(row, name, 1) or 1 for name in ("tp", "pp", "vpp", "cp"))
    ep = _int(row, "ep", 1) or 1 if problem.model.is_moe else 1
    etp = _int(row, "etp", 1) or 1 if problem.model.is_moe else 1
    inner = tp * pp * cp
    if workload.gpus % inner:
        raise InputError(f"tp {tp} x pp {pp} x cp {cp} does not divide {workload.gpus} GPUs")
    if pp > problem.model.layers:
        raise InputError(f"pp {pp} is more than {problem.model.layers} layers")
    dp, micro_batch = workload.gpus // inner, _int(row, "mbs")
    if workload.global_batch % (dp * micro_batch):
        raise InputError(f"dp {dp} x micro-batch {micro_batch} does not divide global batch {workload.global_batch}")
    schedule = "interleaved" if vpp > 1 else ("1f1b" if pp == 1 else profile.default_schedule)
    shard = dp * cp
    if row.get("zero") == "hsdp":
        shard = min(shard, problem.cluster.gpus_per_node)
    return Layouts.of(
        tp=tp, pp=pp, vpp=vpp, dp=dp, dp_shard=shard, cp=cp, ep=ep, etp=etp, micro_batch=micro_batch,
        zero_stage=_zero(row, profile), recompute=1 if _modules(row) else 0,
        sequence_parallel=int(tp > 1 and _sequence_parallel(row, profile)),
        schedule=SCHEDULES.index(schedule),
    )  # fmt: skip


def _zero(row: Mapping[str, str], profile: Profile) -> int:
    stated = row.get("zero", "")
    if not stated:
        return profile.default_zero_stage
    if "ZeRO-2" in stated:
        return 2
    return ZERO.get(stated.split("/")[0].split(" ")[0], profile.default_zero_stage)


def _sequence_parallel(row: Mapping[str, str], profile: Profile) -> bool:
    return row["sp"] == "1" if row.get("sp") else profile.sequence_parallel


def _as_run(profile: Profile, row: Mapping[str, str]) -> Profile:
    """The profile with what ran as its second recompute set, so that any choice of modules can be predicted.

    Liger's kernels compute the logits in chunks with the head and keep none, and norms that keep no fp32 copies.
    """
    if "Liger" in row.get("framework", "") + row.get("overlap_flags", ""):
        profile = replace(profile, memory=replace(profile.memory, **LIGER))
    modules = _modules(row)
    if not modules:
        return profile
    if modules == ("full",):
        choice = RecomputeSet(name="as run", full=True)
    elif modules == ("selective",):
        choice = profile.recompute[profile.recompute_code("selective")]
    else:
        choice = RecomputeSet(name="as run", modules=modules)
    return replace(profile, recompute=(profile.recompute[0], choice, profile.recompute[-1]), selective=choice.name)


def _modules(row: Mapping[str, str]) -> tuple[str, ...]:
    """("full",), ("selective",) for the profile's own set, a tuple of modules, or () for none."""
    stated = row.get("recompute", "")
    if not stated or stated.startswith("none"):
        return ()
    if stated == "full":
        return ("full",)
    named = tuple(m for m in MODULES if re.search(rf"\b{m}\b", stated))
    return named or ("selective",)


def _number(row: Mapping[str, str], name: str) -> float | None:
    text = row.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{name} = {text!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{name} = {text!r} is out of range")
    return value


def _int(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = _number(row, name)
    if value is None:
        if default is None:
            raise InputError(f"{name} not stated")
        return default
    if value != int(value):
        raise InputError(f"{name} = {value:g} is not a whole number")
    if value > LARGEST or (value == 0 and name in REQUIRED):
        raise InputError(f"{name} = {value:g} is out of range")
    return int(value)
