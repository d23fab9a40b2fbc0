"""Problem: what is trained, on what, by what; the frozen context of every estimate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from costmodel import params
from costmodel.model import Model
from costmodel.profile import Profile
from costmodel.split import StageTable, split_table
from hardware.cluster import Cluster
from hardware.errors import InputError
from hardware.units import format_bytes

PRECISIONS: tuple[str, ...] = ("bf16", "fp16", "fp8", "mxfp8", "nvfp4")
LOW_PRECISIONS: tuple[str, ...] = ("fp8", "mxfp8", "nvfp4")
DTYPE_BYTES: dict[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
FP8_SCALINGS: tuple[str, ...] = ("tensor", "row")
FLOPS_CONVENTIONS: tuple[str, ...] = ("causal", "full", "6n")
MATURITY = 0.2
"""Years of software in which half of the speed-up up to the newest release is gained."""
MFU_PEAKS: tuple[str, ...] = ("bf16", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The training job, apart from its layout.

    seq_len in tokens, global_batch in sequences; `expert_load` is the token count of the hottest expert rank over
    the mean (>= 1); `routed_nodes` limits the nodes that a token's experts lie on (0 = no limit);
    `optimizer_offload` is the share of master weights and moments that lie in host memory (their time is not modelled);
    `software_age` is how many years the framework's release is behind the newest that the rates stand for;
    `expert_overlap` and `tensor_overlap` say that expert all-to-all is paired with another micro-batch's compute and
    that tensor parallelism is asynchronous; `plain_dispatch` that tokens go to experts by an all-to-all that knows no
    nodes; `fp8_scaling` is what has a scale of its own, a tensor or a row;
    `headroom` is memory of a GPU in bytes that a layout must leave free; `memory_margin` is the probability with which
    a layout must fit (0.5: its predicted memory must).
    Raises InputError with the numbers when a value is out of range.
    """

    gpus: int
    seq_len: int
    global_batch: int
    precision: str = "bf16"
    grad_dtype: str = "fp32"
    moments_dtype: str = "fp32"
    expert_load: float = 1.0
    routed_nodes: int = 0
    optimizer_offload: float = 0.0
    software_age: float = 0.0
    expert_overlap: bool = False
    tensor_overlap: bool = False
    plain_dispatch: bool = False
    fp8_scaling: str = "tensor"
    memory_margin: float = 0.5
    flops_convention: str = "causal"
    mfu_peak: str = "bf16"
    headroom: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gpus", "seq_len", "global_batch"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise InputError(f"{name} must be a positive integer, got {value!r}")
        for name, known in (
            ("precision", PRECISIONS),
            ("grad_dtype", ("fp32", "bf16", "fp16")),
            ("moments_dtype", ("fp32", "bf16", "fp8")),
            ("fp8_scaling", FP8_SCALINGS),
            ("flops_convention", FLOPS_CONVENTIONS),
            ("mfu_peak", MFU_PEAKS),
        ):
            if getattr(self, name) not in known:
                raise InputError(f"{name} {getattr(self, name)!r} is unknown; known: {', '.join(known)}")
        if not 1.0 <= self.expert_load <= 1e6:
            raise InputError(f"expert_load is hottest rank over mean and at least 1, got {self.expert_load!r}")
        if not 0.0 <= self.optimizer_offload <= 1.0:
            raise InputError(f"optimizer_offload is a share from 0 to 1, got {self.optimizer_offload!r}")
        if not 0.0 <= self.software_age < float("inf"):
            raise InputError(f"software_age must be 0 years or more, got {self.software_age!r}")
        if not 0.5 <= self.memory_margin < 1.0:
            raise InputError(f"memory_margin is a probability from 0.5 to below 1, got {self.memory_margin!r}")
        if self.routed_nodes < 0:
            raise InputError(f"routed_nodes must be 0 (no limit) or more, got {self.routed_nodes!r}")
        if not 0 <= self.headroom < float("inf"):
            raise InputError(f"headroom must be 0 bytes or more, got {self.headroom!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A model, a cluster, a profile and a workload that go together.

    Raises InputError where they do not: more GPUs than the cluster joins, a part of a node, a precision that the
    GPU lacks.
    """

    model: Model
    cluster: Cluster
    profile: Profile
    workload: Workload

    def __post_init__(self) -> None:
        gpus, node = self.workload.gpus, self.cluster.gpus_per_node
        if gpus > self.cluster.max_gpus:
            raise InputError(f"gpus {gpus}: {self.cluster.name} joins at most {self.cluster.max_gpus} GPUs")
        if gpus > node and gpus % node:
            near = f"{gpus // node * node} and {gpus // node * node + node}"
            raise InputError(
                f"gpus {gpus}: {self.cluster.name} has {node} GPUs a node; the nearest whole nodes are {near}"
            )
        precision = self.workload.precision
        if precision not in self.cluster.gpu.peak:
            raise InputError(
                f"precision {precision}: {self.cluster.gpu.name} has {', '.join(sorted(self.cluster.gpu.peak))}"
            )

        usable, headroom = self.cluster.gpu.usable_memory, self.workload.headroom
        if headroom >= usable:
            raise InputError(
                f"headroom {format_bytes(headroom)}: {self.cluster.gpu.name} has {format_bytes(usable)} usable"
            )

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Why measured runs of the profile on this GPU do not cover the job, one sentence each; empty if they do."""
        covers, gpu, work = self.profile.covers, self.cluster.gpu.name, self.workload
        if covers is None:
            return (f"no measured run of profile {self.profile.name} on {gpu}",)
        absent = [("precision", work.precision, covers.precisions), ("a model that is", self.kind, covers.kinds)]
        named = tuple(
            f"{what} {own}: measured runs have {', '.join(seen)}" for what, own, seen in absent if own not in seen
        )
        return named + covers.misses(self.amounts)

    @property
    def kind(self) -> str:
        """ "dense" or "moe"."""
        return "moe" if self.model.is_moe else "dense"

    @property
    def amounts(self) -> dict[str, float]:
        """GPUs, parameters and tokens of a sequence: how large the job is."""
        return {"gpus": self.workload.gpus, "parameters": params.total(self.model), "seq_len": self.workload.seq_len}

    @property
    def links(self) -> Cluster:
        """The cluster's link levels as this job's GPUs fill them."""
        return self.cluster.used_by(self.workload.gpus)

    @property
    def memory_limit(self) -> float:
        """Bytes that a layout may need: usable memory less the headroom demanded, over what memory may exceed its
        prediction by with the probability that `memory_margin` leaves (normal in the logarithm, as wide as the
        profile's interval, or the wider one for a job that no runs cover).
        """
        free = self.cluster.gpu.usable_memory - self.workload.headroom
        interval = self.profile.interval.wider if self.uncovered else self.profile.interval
        sigma = math.log(interval.memory_high) / NormalDist().inv_cdf(0.9)
        return free / math.exp(NormalDist().inv_cdf(self.workload.memory_margin) * sigma)

    def split(self, stages: Iterable[int], *, rule: str = "best") -> StageTable:
        """The closed-form split of this model's layers for every number of pipeline stages in use."""
        ends = self.profile.embedding_loss_as_layers
        return split_table(self.model, self.workload.seq_len, stages, rule=rule, ends=ends)

    @property
    def lag(self) -> float:
        """How far behind the software is, from 0 (newest) to 1: 1 - 2^(-age / MATURITY), smooth and saturating."""
        return 1.0 - math.exp2(-self.workload.software_age / MATURITY)

    @property
    def peak(self) -> float:
        """FLOP/s per GPU that MFU is measured against."""
        return self.cluster.gpu.peak["bf16" if self.workload.mfu_peak == "bf16" else self.workload.precision]

    @property
    def tokens(self) -> int:
        """Tokens per optimizer step."""
        return self.workload.global_batch * self.workload.seq_len


def default_global_batch(gpus: int, seq_len: int) -> int:
    """Sequences per step: 4 Mi tokens up to 1,024 GPUs, 16 Mi above, rounded to a power of two of sequences."""
    tokens = 4 * 2**20 if gpus <= 1024 else 16 * 2**20
    sequences = max(1, tokens // seq_len)
    low = 1 << (sequences.bit_length() - 1)
    return low if sequences - low < 2 * low - sequences else 2 * low
