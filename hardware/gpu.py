"""Gpu: memory, bandwidth, peak arithmetic per precision, and the fraction of it that GEMMs reach."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from hardware.errors import InputError
from hardware.provenance import Provenance

PRECISIONS = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
GEMM_KINDS = ("bf16", "fp8", "fp8_block")

# Vendors write GB for the GiB that the memory holds: usable memory may exceed the nominal by this much.
_GIB_PER_GB = 2.0**30 / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTable:
    """Achieved over peak FLOP/s of a GEMM with M rows (tokens) and N columns, median over K of 2k to 30k.

    m, n: log-midpoints of the measured ranges, rising. eta[i][j]: fraction at m[i], n[j], in (0, 1].
    Source: measured bursts in ai-dynamo/aiconfigurator@095f58a5; sustained training is slower.
    """

    m: tuple[float, ...]
    n: tuple[float, ...]
    eta: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name, axis in (("m", self.m), ("n", self.n)):
            if not axis or any(right <= left for left, right in pairwise(axis)):
                raise InputError(f"{name} = {axis}: must rise")
        if len(self.eta) != len(self.m) or any(len(row) != len(self.n) for row in self.eta):
            widths = sorted({len(row) for row in self.eta})
            raise InputError(
                f"eta: has {len(self.eta)} rows of {widths} figures, expected {len(self.m)} of {len(self.n)}"
            )
        if not all(0.0 < value <= 1.0 for row in self.eta for value in row):
            raise InputError("eta: a fraction of peak must be above 0 and at most 1")

    def scaled(self, factor: float) -> "GemmTable":
        """The same shape for another GPU, every fraction times `factor`, at most 1."""
        eta = tuple(tuple(min(1.0, value * factor) for value in row) for row in self.eta)
        return GemmTable(m=self.m, n=self.n, eta=eta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. SI units: B, B/s, FLOP/s, W.

    architecture       generation (ampere, hopper, blackwell ...): GPUs of one share measured rates; empty = alone
    memory             nominal HBM as the vendor prints it (80 GB = 80e9 B)
    usable_memory      what the driver leaves to the job. It can exceed `memory`: an "80 GB" H100 holds
                       80 GiB and leaves 79.1 GiB = 84.9e9 B
    memory_bandwidth   HBM, both directions together
    peak               dense FLOP/s by precision: bf16, fp16; fp8, mxfp8, nvfp4 where the GPU has them
    gemm               GemmTable by kind: bf16; with fp8 also fp8 (per-tensor scaling) and fp8_block
    memory_efficiency  share of HBM bandwidth that an elementwise kernel reaches
    power              board power
    provenance         tag and source of every number, by key path in its TOML file
    """

    name: str
    summary: str = ""
    architecture: str = ""
    memory: float
    usable_memory: float
    memory_bandwidth: float
    peak: Mapping[str, float]
    gemm: Mapping[str, GemmTable]
    memory_efficiency: float
    power: float
    provenance: Mapping[str, Provenance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("memory", "usable_memory", "memory_bandwidth", "memory_efficiency", "power"):
            value = getattr(self, name)
            if not value > 0:
                raise InputError(f"{name} = {value:g}: must be above 0")
        if self.memory_efficiency > 1:
            raise InputError(f"memory_efficiency = {self.memory_efficiency:g}: must be at most 1")
        if self.usable_memory > self.memory * _GIB_PER_GB:
            raise InputError(
                f"usable_memory = {self.usable_memory:g} B: is more than memory = {self.memory:g} B, "
                "even if that is read in GiB"
            )
        for names, known, key in ((self.peak, PRECISIONS, "peak"), (self.gemm, GEMM_KINDS, "gemm")):
            if unknown := sorted(set(names) - set(known)):
                raise InputError(f"{key}.{unknown[0]}: unknown; known: {', '.join(known)}")
            if "bf16" not in names:
                raise InputError(f"{key}.bf16: is missing")
