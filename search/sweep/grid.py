"""What was asked -> the units: models x clusters x what-ifs x sizes x batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product

from costmodel.model import Model, load_model
from costmodel.problem import Problem, default_global_batch
from costmodel.profile import Profile, load_profile
from hardware.catalog import load_cluster
from hardware.changes import Value
from hardware.cluster import Cluster
from hardware.errors import InputError
from search.inputs import problem_of
from search.space import load_space
from search.sweep.rows import value_of
from search.sweep.unit import Unit

Settings = tuple[tuple[str, str], ...]
MOST_GPUS = 16_384
"""Size up to which a sweep doubles from one node when no sizes are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a sweep was asked for.

    `sizes` empty: doubling from one node. `batches` in sequences, empty: the default of each size; `critical_batch`
    in tokens is the most that a step may hold. `prices` by cluster in $ per GPU-hour; `axes` are what-ifs: key path ->
    values as typed. `workload` holds further fields of Workload, `limits` values of the layout's axes.
    """

    models: tuple[str, ...]
    clusters: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    critical_batch: float | None = None
    max_gpus: int | None = None
    family: str | None = None
    profile: str = "megatron"
    seq_len: int | None = None
    space: str = "default"
    prices: Mapping[str, float] = field(default_factory=dict)
    axes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    workload: Mapping[str, object] = field(default_factory=dict)
    limits: Mapping[str, tuple[int | str, ...] | None] = field(default_factory=dict)
    any_domain: bool = False

    def settings(self) -> Iterator[Settings]:
        """Every combination of the what-ifs."""
        different = [
            [text for number, text in enumerate(values) if value_of(text) not in map(value_of, values[:number])]
            for values in self.axes.values()
        ]
        for values in product(*different):
            yield tuple(zip(self.axes, values, strict=True))

    def sizes_of(self, cluster: Cluster) -> tuple[int, ...]:
        """Numbers of GPUs, rising, within the limit."""
        most = self.max_gpus or (max(self.sizes) if self.sizes else min(MOST_GPUS, cluster.max_gpus))
        if self.sizes:
            return tuple(size for size in sorted(set(self.sizes)) if size <= most)
        node = cluster.gpus_per_node
        return tuple(node << k for k in range((most // node).bit_length()) if node << k <= most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A model on a cluster under one set of what-ifs: all that its units have in common."""

    request: Request
    model_name: str
    cluster_name: str
    settings: Settings
    model: Model
    cluster: Cluster
    profile: Profile

    def units(self, sizes: Sequence[int], *, fitting: bool = False) -> Iterator[Unit]:
        """A unit for every size and batch; `fitting` moves a default batch to the nearest one that the size divides."""
        for gpus in sizes:
            for batch in self.batches(gpus, fitting=fitting):
                yield self._unit(gpus, batch)

    def batches(self, gpus: int, *, fitting: bool = False) -> tuple[int, ...]:
        """Sequences a step, at most the critical batch: those asked for, or the default; never none."""
        request, length = self.request, self.seq_len
        usual = default_global_batch(gpus, length)
        asked = request.batches or (fitting_batch(gpus, usual) if fitting else usual,)
        if request.critical_batch is None:
            return asked
        most = int(request.critical_batch // length)
        if not most:
            raise InputError(f"--critical-batch {request.critical_batch:g} tokens: fewer than a sequence of {length}")
        kept = tuple(batch for batch in asked if batch <= most)
        if not kept and request.batches:
            raise InputError(
                f"--critical-batch {request.critical_batch:g} tokens: {most} sequences of {length}, fewer than "
                f"--global-batch {min(asked)}"
            )
        return kept or (1 << (most.bit_length() - 1),)

    def with_margin(self, margin: float) -> Machine:
        """The machine with this memory margin for every size."""
        request = self.request
        return replace(self, request=replace(request, workload={**request.workload, "memory_margin": margin}))

    def margins(self) -> Iterator[float]:
        """The memory margin of each size: what was typed, or its default."""
        for gpus in self.request.sizes_of(self.cluster):
            with suppress(InputError):
                yield self.problem(gpus, self.batches(gpus)[0]).workload.memory_margin

    @property
    def seq_len(self) -> int:
        """Tokens of a sequence."""
        return self.request.seq_len or self.model.seq_len

    def _unit(self, gpus: int, batch: int) -> Unit:
        request = self.request
        try:
            problem = self.problem(gpus, batch)
            space = load_space(
                problem, request.space, {axis: values for axis, values in request.limits.items() if values},
                tp_across_domains=request.any_domain, strict=False,
            )  # fmt: skip
        except InputError as error:
            problem, space, reason = None, None, str(error)
        else:
            reason = ""
        return Unit(
            model=self.model_name, cluster=self.cluster_name, settings=self.settings, gpus=gpus, global_batch=batch,
            problem=problem, space=space, reason=reason,
        )  # fmt: skip

    def problem(self, gpus: int, batch: int) -> Problem:
        """The problem of one size and batch, as `search` would read it. Raises InputError where they do not go
        together."""
        job = {"gpus": gpus, "seq_len": self.request.seq_len, "global_batch": batch}
        return problem_of(self.model, self.cluster, self.profile, {**self.request.workload, **job})


def fitting_batch(gpus: int, usual: int) -> int:
    """The batch nearest the usual one, a power of two, that the odd part of the GPUs divides, and a power of two beside
    it: 9,216 GPUs take 2,304 sequences, not 2,048, which no 9 divides."""
    step = gpus // (gpus & -gpus)
    if step > usual // 2:
        return usual
    while 4 * step <= usual:
        step *= 2
    return step * round(usual / step)


def machines(request: Request) -> list[Machine]:
    """Every model on every cluster under every what-if. Raises InputError for a name or a path that is unknown."""
    for name in request.prices:
        if name not in request.clusters:
            raise InputError(f"--price {name}: is none of the clusters of this sweep: {', '.join(request.clusters)}")
    profile = load_profile(request.profile)
    models = {name: load_model(name, request.family) for name in request.models}
    found = []
    for model, cluster, settings in product(request.models, request.clusters, list(request.settings())):
        changes: dict[str, Value] = {"price": request.prices[cluster]} if cluster in request.prices else {}
        changes |= {path.removeprefix("cluster."): value for path, value in settings}
        loaded = _load(cluster, changes, settings)
        found.append(
            Machine(
                request=request, model_name=model, cluster_name=cluster, settings=settings, model=models[model],
                cluster=loaded, profile=profile.on(loaded.gpu),
            )
        )  # fmt: skip
    return found


def _load(cluster: str, changes: Mapping[str, Value], settings: Settings) -> Cluster:
    try:
        return load_cluster(cluster, changes)
    except InputError as error:
        if not settings:
            raise
        said = " ".join(f"--set {path}={value}" for path, value in settings)
        raise InputError(f"{said}: {error}") from None
