"""Profile: what a framework can launch, what it keeps in memory, and the rates it achieves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from costmodel.gpu_rates import (
    ByGpu,
    GpuRates,
    architecture_of,
    inherited_from,
    rates_under,
    read_by_gpu,
    read_rates,
    times_of,
)
from costmodel.layouts import RANK_ORDERS, SCHEDULES
from costmodel.range import Range, read_ranges
from costmodel.rates import Interval, MemoryRates, TimeRates
from costmodel.recompute import MODULES, RecomputeSet, free_sets, modules_of, words_of
from hardware.catalog import load_gpu
from hardware.errors import InputError
from hardware.gpu import Gpu
from hardware.provenance import Provenance
from hardware.reader import Table
from hardware.spelling import did_you_mean

DATA = Path(__file__).parent / "profiles"
FITTED = DATA / "fitted"
POOLED = FITTED / "pooled.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A training framework on a GPU; read from TOML, every rate with its tag and source."""

    name: str
    framework: str
    summary: str
    source: str
    zero_stages: tuple[int, ...]
    zero_stages_with_pp: tuple[int, ...]
    default_zero_stage: int
    schedules: tuple[str, ...]
    default_schedule: str
    rank_orders: tuple[str, ...]
    """orders of the ranks that it launches, the default first"""
    recompute: tuple[RecomputeSet, ...]
    """the declared sets, from that of no modules to the full one, then those that `recompute_modules` make"""
    recompute_modules: tuple[str, ...]
    """modules of which the framework lets the user recompute any"""
    selective: str
    default_recompute: str
    fp8_recipe: str
    tensor_parallel: bool
    pipeline_parallel: bool
    kv_replication: bool
    expert_tensor_parallel: bool
    ep_spans_cp_tp: bool
    """whether an expert group is made of whole context and tensor-parallel groups, inside a shard group"""
    hsdp_with_ep_and_tp: bool
    """whether shard groups below DP x CP go with expert and tensor parallelism together"""
    context_parallel: bool
    sequence_parallel: bool
    shard_groups: bool
    embedding_loss_as_layers: bool
    microbatches_divide_pp: bool
    gradients_in_step: bool
    gathers_beside_forward: bool
    """whether ZeRO-1's weights are gathered beside the first forward pass, not after the optimizer step"""
    grad_dtype: str
    moments_dtype: str
    time: TimeRates
    memory: MemoryRates
    interval: Interval
    shipped: str = ""
    """the shipped profile that this is, or that a user's file starts from; empty for one that starts from none"""
    rates_of: str = ""
    """GPU or architecture whose fitted rates these are; empty for the profile's own"""
    fitted_on: tuple[str, ...] = ()
    """GPUs whose runs are behind these rates"""
    by_gpu: ByGpu = field(default_factory=dict)
    covers: Range | None = None
    """what the runs on this GPU cover that the rates rest on; None where there are none"""
    ranges: Mapping[str, Range] = field(default_factory=dict)
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    def on(self, gpu: Gpu) -> Profile:
        """The profile with the rates of this GPU, of its architecture, of the fastest fitted architecture that is
        slower, or its own, in this order of preference."""
        key = next((name for name in (gpu.name, gpu.architecture) if name in self.by_gpu), "") or self._older(gpu)
        own = replace(self, covers=self.ranges.get(gpu.name), by_gpu={}, ranges={})
        if not key:
            return own
        rates = self.by_gpu[key].on(key, gpu.name)
        return replace(
            own,
            time=rates.time,
            memory=rates.memory,
            rates_of=key,
            fitted_on=(key,) if key == gpu.name else rates.fitted_on,
            provenance={**self.provenance, **rates.provenance},
        )

    def _older(self, gpu: Gpu) -> str:
        """The fitted architecture whose GPUs are the fastest of those slower than this one, by bf16 peak; empty where
        none is. A framework's kernels and habits carry over to faster GPUs, and not back to slower ones."""
        peaks = {key: [load_gpu(name).peak["bf16"] for name in it.fitted_on] for key, it in self.by_gpu.items()}
        slower = {key: max(found) for key, found in peaks.items() if found and max(found) < gpu.peak["bf16"]}
        return max(slower, key=lambda key: (slower[key], key), default="")

    @property
    def rank_order(self) -> int:
        """Code of the order of the ranks that is taken when none is named."""
        return RANK_ORDERS.index(self.rank_orders[0])

    def recompute_name(self, code: int, layers: int = 0) -> str:
        """A recompute set in words: "full", and "full in 3" where it holds for 3 layers of each stage."""
        return self.recompute[code].name + f" in {layers}" * (layers > 0)

    def recompute_code(self, name: str) -> int:
        """Index of a recompute set by its name or its modules, in any order ("mlp+layernorm"); `selective` is the
        recommended one. Raises InputError with the known names, or for a module that is named twice."""
        declared = [choice.name for choice in self.recompute if choice.declared]
        wanted = self.selective if name == "selective" and name not in declared else name
        names, words = [choice.name for choice in self.recompute], words_of(wanted)
        if wanted in names:
            return names.index(wanted)
        if alike := [code for code, known in enumerate(names) if words_of(known) == words]:
            return alike[0]
        if twice := [word for word in words if words.count(word) > 1]:
            raise InputError(f"recompute {name!r}: {twice[0]} is named twice")
        modules = modules_of(name)
        for code, choice in enumerate(self.recompute if modules else ()):
            if frozenset(choice.modules) == modules and not choice.full:
                return code
        known = [*declared, *(() if "selective" in declared else (f"selective (= {self.selective})",))]
        hint = did_you_mean(name, [*known, *self.recompute_modules])
        free = f", and any modules joined by +: {', '.join(self.recompute_modules)}" if self.recompute_modules else ""
        raise InputError(f"recompute {name!r}{hint or ':'} profile {self.name} has {', '.join(known)}{free}")


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in DATA.glob("*.toml")))


def load_profile(name: str, *, fitted: bool = True) -> Profile:
    """A shipped profile by name or a TOML file by path; `base` in a file names the profile it starts from.

    Raises InputError, one line, for an unknown name, key or value.
    """
    path = DATA / f"{name}.toml"
    if not path.is_file():
        path = Path(name)
        if path.suffix != ".toml":
            hint = did_you_mean(name, profile_names()) or f"; known: {', '.join(profile_names())}"
            raise InputError(f"unknown profile {name!r}{hint}")
    table = Table.load(path)
    shipped = [name for name in profile_names() if name != path.stem or path.parent != DATA]
    base_name = table.optional_text("base", choices=shipped)
    base = load_profile(base_name) if base_name else None
    profile = _read(table, base, path.stem)
    table.finish()
    by_gpu = FITTED / path.name
    if not fitted or path.parent != DATA:
        return profile
    if by_gpu.is_file():
        profile = _with_fitted(profile, by_gpu)
    if base and not profile.by_gpu and not table.has("time"):
        profile = replace(profile, by_gpu=times_of(base.by_gpu, base.name, profile.memory))
    return profile


def pooled_interval() -> Interval:
    """The interval over all frameworks that have runs: what one without any has."""
    table = Table.load(POOLED)
    found = read_rates(table.table("interval"), Interval, None, table)
    table.finish()
    return found


def _with_fitted(profile: Profile, path: Path) -> Profile:
    """The profile with rates by GPU from a file that `meshscout calibrate` wrote."""
    table = Table.load(path)
    by_gpu = read_by_gpu(table, GpuRates(time=profile.time, memory=profile.memory), {})
    table.text("base", profile.name, choices=(profile.name,))
    interval = read_rates(table.optional_table("interval"), Interval, profile.interval, table)
    ranges = read_ranges(table.optional_table("range"))
    table.finish()
    sources = {name: it for name, it in table.sources.items() if name.startswith("interval.")}
    found = {**profile.provenance, **sources}
    return replace(profile, by_gpu=by_gpu, interval=interval, ranges=ranges, provenance=found)


def _read(table: Table, base: Profile | None, name: str) -> Profile:
    """A profile from its table, and from `base` what the table leaves out."""
    values: dict[str, Any] = {"name": name, "shipped": name if table.file.parent == DATA else base.name if base else ""}
    for key in _TEXTS:
        values[key] = table.text(key, getattr(base, key, None))
    for key in _FLAGS:
        values[key] = table.flag(key, getattr(base, key, None))
    for key in ("zero_stages", "zero_stages_with_pp"):
        stages = table.numbers(key, getattr(base, key, None), minimum=0, maximum=3)
        if any(stage % 1 for stage in stages):
            raise table.error(key, "expected whole numbers", list(stages))
        values[key] = tuple(sorted({int(stage) for stage in stages}))
    stage = getattr(base, "default_zero_stage", None)
    values["default_zero_stage"] = table.integer("default_zero_stage", stage, 0, maximum=3)
    values["schedules"] = table.texts("schedules", getattr(base, "schedules", None))
    values["rank_orders"] = table.texts("rank_orders", getattr(base, "rank_orders", RANK_ORDERS[:1]))
    values["recompute_modules"], values["recompute"] = _recompute(table, base)
    values["time"] = read_rates(table.optional_table("time"), TimeRates, base.time if base else None, table)
    values["memory"] = read_rates(table.optional_table("memory"), MemoryRates, base.memory if base else None, table)
    values["interval"] = read_rates(
        table.optional_table("interval"), Interval, base.interval if base else pooled_interval(), table
    )
    said = {name: it for name, it in table.sources.items() if not name.startswith(("gpu.", "range."))}
    inherited = rates_under(table, said, base.by_gpu, base.name) if base and table.file.parent != DATA else {}
    values["by_gpu"] = read_by_gpu(table, GpuRates(time=values["time"], memory=values["memory"]), inherited)
    values["provenance"] = {**(inherited_from(base.provenance, f"profile {base.name}") if base else {}), **said}
    values["ranges"] = _ranges(table, base)
    profile = Profile(**values)
    for key, known in (
        ("schedules", SCHEDULES), ("rank_orders", RANK_ORDERS), ("fp8_recipe", ("fp8", "fp8_block")),
    ):  # fmt: skip
        given = getattr(profile, key)
        for value in given if isinstance(given, tuple) else (given,):
            if value not in known:
                raise table.error(key, f"must be one of {', '.join(known)}", value)
    if profile.default_schedule not in profile.schedules:
        own = ", ".join(profile.schedules)
        raise table.error("default_schedule", f"must be one of the profile's: {own}", profile.default_schedule)
    if profile.default_zero_stage not in profile.zero_stages:
        raise table.error("default_zero_stage", f"must be among {profile.zero_stages}", profile.default_zero_stage)
    profile.recompute_code(profile.selective)
    profile.recompute_code(profile.default_recompute)
    return profile


def _ranges(table: Table, base: Profile | None) -> Mapping[str, Range]:
    """What runs cover: the file's own, and those of a user's base on GPUs that the file has no rates for."""
    own = read_ranges(table.optional_table("range"))
    if base is None or table.file.parent == DATA or table.has("time") or table.has("memory"):
        return own
    rated = table.table("gpu").keys() if table.has("gpu") else ()
    kept = {gpu: it for gpu, it in base.ranges.items() if gpu not in rated and architecture_of(gpu) not in rated}
    return {**kept, **own}


def _recompute(table: Table, base: Profile | None) -> tuple[tuple[str, ...], tuple[RecomputeSet, ...]]:
    """The free modules, and all recompute sets. A user's file inherits its base's free modules unless it declares sets;
    what another shipped framework lets the user choose says nothing of this one."""
    own = table.has("recompute")
    inherited = base.recompute_modules if base and not own and table.file.parent != DATA else ()
    free = _modules(table, "recompute_modules", inherited)
    if base and not own:
        declared = tuple(choice for choice in base.recompute if choice.declared)
        return free, (*declared, *free_sets(free, declared))
    choices = []
    for entry in table.tables("recompute"):
        modules = _modules(entry, "modules", ())
        choices.append(RecomputeSet(name=entry.text("name"), modules=modules, full=entry.flag("full", False)))
    if len({choice.name for choice in choices}) < len(choices):
        raise table.error("recompute", "two sets have the same name")
    if not choices or choices[0].modules or choices[0].full or not choices[-1].full:
        raise table.error("recompute", "starts with a set of no modules and ends with the full one")
    return free, (*choices, *free_sets(free, choices))


def _modules(table: Table, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    modules = table.texts(key, default)
    for module in modules:
        if module not in MODULES:
            raise table.error(key, f"must be among {', '.join(MODULES)}", module)
    return modules


_TEXTS = (
    "framework", "summary", "source", "default_schedule", "selective", "default_recompute", "fp8_recipe",
    "grad_dtype", "moments_dtype",
)  # fmt: skip
_FLAGS = (
    "tensor_parallel", "pipeline_parallel", "kv_replication", "expert_tensor_parallel", "ep_spans_cp_tp",
    "hsdp_with_ep_and_tp", "context_parallel", "sequence_parallel", "shard_groups", "embedding_loss_as_layers",
    "microbatches_divide_pp", "gradients_in_step", "gathers_beside_forward",
)  # fmt: skip
