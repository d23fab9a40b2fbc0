"""Cluster: GPUs joined by nested link levels, and what a collective reaches on each level."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hardware.errors import InputError
from hardware.gpu import Gpu
from hardware.provenance import Provenance

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What one collective reaches on one level, by group size and message size.

    group       members of the group, rising. Innermost level: GPUs. A level above: nodes (innermost
                domains), with one GPU of each in the group; with g GPUs of each, g rings run side by side,
                each with V/g on one NIC
    latency     s, the time of a tiny message (512 B) at each group size
    size        bytes V of the full tensor (p2p: of the message), rising: 1, 8, 64, 512 MiB
    efficiency  [group][size] bus bandwidth over the level's bandwidth. Bus bandwidth is q V / t with the
                whole time t, latency included: at the listed sizes t = q V / (efficiency bandwidth) and
                nothing is to be added. q = 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter
                and all_to_all, 1 for p2p (nccl-tests PERFORMANCE.md). All-reduce in the switch (NVLS) sends V
                once, not q V: it comes near 1 and may exceed it, by q at most
    """

    group: tuple[int, ...]
    latency: tuple[float, ...]
    size: tuple[float, ...]
    efficiency: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name, axis in (("group", self.group), ("size", self.size)):
            if not axis or any(right <= left for left, right in pairwise(axis)):
                raise InputError(f"{name} = {axis}: must rise")
        if len(self.latency) != len(self.group):
            raise InputError(f"latency: has {len(self.latency)} figures for {len(self.group)} group sizes")
        widths = {len(row) for row in self.efficiency}
        if len(self.efficiency) != len(self.group) or widths != {len(self.size)}:
            raise InputError(
                f"busbw: expected {len(self.group)} rows (group sizes) of {len(self.size)} figures (sizes)"
            )
        for members, row in zip(self.group, self.efficiency, strict=True):
            if not all(0.0 < value <= 2.0 - 2.0 / members for value in row):
                raise InputError("busbw: must be above 0 and at most the bandwidth of the link")

    def rebased(self, reference: float, bandwidth: float, scale: float = 1.0) -> "Curve":
        """The curve on a link of another bandwidth [B/s] than the one it was measured on (`reference`).

        The largest message keeps its fraction of the link, times `scale`, at most 1 or what was measured. What a
        smaller one takes beyond it, as time per byte, does not depend on the link:
        1/b(V) = 1/b_ref(V) - 1/b_ref(V_max) + 1/b(V_max). Equal bandwidths and scale 1 change nothing.
        """
        if reference == bandwidth and scale == 1.0:
            return self
        rows = []
        for row in self.efficiency:
            top = min(max(1.0, row[-1]), row[-1] * scale)
            overhead = [max(0.0, 1.0 / value - 1.0 / row[-1]) * bandwidth / reference for value in row]
            rows.append(tuple(1.0 / (extra + 1.0 / top) for extra in overhead))
        return Curve(group=self.group, latency=self.latency, size=self.size, efficiency=tuple(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of links.

    size              GPUs joined at this level; 0 = unlimited (the outermost level)
    bandwidth         B/s per GPU and direction: one-way NVLink of a GPU; above it, the NICs of ONE GPU
    oversubscription  >= 1, divides the bandwidth (a tapered spine)
    latency           s per step of a ring on this level, large messages (NCCL's Simple protocol)
    curves            Curve by operation: all_reduce, all_gather, reduce_scatter, all_to_all, p2p
    """

    name: str
    size: int
    bandwidth: float
    oversubscription: float = 1.0
    latency: float
    curves: Mapping[str, Curve]

    def __post_init__(self) -> None:
        if self.size < 0 or self.size == 1:
            raise InputError(f"levels.{self.name}.size = {self.size}: must be at least 2, or 0 for no limit")
        if not self.bandwidth > 0:
            raise InputError(f"levels.{self.name}.bandwidth = {self.bandwidth:g}: must be above 0")
        if not self.oversubscription >= 1:
            raise InputError(f"levels.{self.name}.oversubscription = {self.oversubscription:g}: must be at least 1")
        if not self.latency >= 0:
            raise InputError(f"levels.{self.name}.latency = {self.latency:g}: must be at least 0")
        if missing := [name for name in OPERATIONS if name not in self.curves]:
            raise InputError(f"levels.{self.name}.curves.{missing[0]}: is missing")

    @property
    def effective_bandwidth(self) -> float:
        """B/s per GPU and direction after oversubscription."""
        return self.bandwidth / self.oversubscription


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """GPUs of one kind joined by nested levels of links, innermost first.

    Ranks fill the machine in order: GPUs 0 .. size-1 share the first unit of a level. Bandwidths are per GPU
    and direction, and a NIC belongs to a GPU, so what a group sees above the innermost level depends on how
    many of its members sit in each node (or innermost domain):
    - one member a node (for example data parallelism with TP = 8): ONE NIC, 50 GB/s on a DGX H100, however
      many NICs the node has; the other seven serve the other groups at the same time;
    - all 8 GPUs of each node: rings over all 8 NICs, 400 GB/s per node, then bounded by NVLink.
    An all-to-all cannot pool NICs: each GPU sends the share that leaves its node through its own.

    gpus_per_node   GPUs of a host: 8 on a DGX, 4 on a GB200 tray (its NVLink domain, levels[0].size, is 72)
    levels          innermost first, sizes rising, each a multiple of the one before, the last 0 = unlimited
    nics_per_gpu    NICs a GPU has for itself; their sum is `bandwidth` of the levels above the innermost
    max_gpus        most GPUs that a search may ask for
    price           $ per GPU and hour, None if unknown
    node_power      W of a whole node under load: GPUs, CPUs, NICs, fans and its share of NVLink switches
    pue             power drawn by the site over power drawn by the nodes
    provenance      tag and source of every number, by key path; the GPU's are in `gpu.provenance`
    """

    name: str
    summary: str = ""
    gpu: Gpu
    gpus_per_node: int
    levels: tuple[Level, ...]
    nics_per_gpu: float
    max_gpus: int
    price: float | None
    node_power: float
    pue: float
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("gpus_per_node", 1), ("max_gpus", 1), ("pue", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} = {getattr(self, name)}: must be at least {least}")
        for name in ("nics_per_gpu", "node_power"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} = {getattr(self, name):g}: must be above 0")
        if self.price is not None and self.price < 0:
            raise InputError(f"price = {self.price:g}: must be at least 0")
        self._check_levels()

    def _check_levels(self) -> None:
        if not self.levels:
            raise InputError("levels: at least one is needed")
        last = self.levels[-1]
        if last.size != 0:
            raise InputError(f"levels.{last.name}.size = {last.size}: the last level must be 0 (no limit)")
        for inner, outer in pairwise(self.levels[:-1]):
            if inner.size == 0 or outer.size <= inner.size or outer.size % inner.size:
                raise InputError(
                    f"levels.{outer.name}.size = {outer.size}: must be a multiple of "
                    f"levels.{inner.name}.size = {inner.size} (levels go from the inside out)"
                )
        domain = self.fast_domain
        if domain and domain % self.gpus_per_node and self.gpus_per_node % domain:
            raise InputError(
                f"gpus_per_node = {self.gpus_per_node}: does not fit levels.{self.levels[0].name}.size = "
                f"{domain}; one must divide the other"
            )

    def used_by(self, gpus: int) -> "Cluster":
        """The links as a job of so many GPUs sees them, which fill every innermost domain alike.

        Where they do not divide into whole domains it takes of each as many, in whole nodes and at least half, as do:
        64 of the 72 of an NVL72 for 1,024. A level that joins them all has no limit, and none lies above it.
        """
        domain, node, part = self.fast_domain, self.gpus_per_node, self.fast_domain
        if domain and gpus > domain:
            whole = [size for size in range(domain, (domain - 1) // 2, -1) if size % node == 0 and gpus % size == 0]
            part = whole[0] if whole else domain
        levels: list[Level] = []
        for level in self.levels:
            size = level.size // domain * part if domain else 0
            last = size == 0 or size >= gpus
            levels.append(replace(level, size=0 if last else size))
            if last:
                break
        return replace(self, levels=tuple(levels))

    @property
    def fast_domain(self) -> int:
        """GPUs joined by the innermost level: 8 on a DGX, 72 on an NVL72; 0 = all."""
        return self.levels[0].size
