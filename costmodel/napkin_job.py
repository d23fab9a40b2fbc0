"""One layout in the worked-examples chapter's symbols, and what the chapter prints without a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel import napkin, params
from costmodel.layouts import Layouts
from costmodel.model import Model
from costmodel.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What the chapter prints for a layout of its own and no formula gives; SI, None where it prints nothing."""

    mfu: tuple[float, float]
    micro_batch: int | None = None
    backward: float | None = None
    activations: float | None = None
    keeps_activations: bool = False  # no formula gives the printed ones: the corrected sum keeps them
    largest_micro_batch: int | None = None
    pipeline_argument: float | None = None
    experts_per_token: int | None = None
    not_routed: float | None = None
    states: float | None = None


CASES: Mapping[tuple[float, int, int, int], Case] = {
    (8e9, 8, 1, 1): Case(mfu=(0.45, 0.55), micro_batch=4, backward=0.1, activations=4e9, largest_micro_batch=16),
    (70e9, 64, 8, 1): Case(mfu=(0.40, 0.50), micro_batch=2, backward=0.5, activations=3e9, keeps_activations=True),
    (405e9, 256, 8, 2): Case(
        mfu=(0.35, 0.45),
        micro_batch=1,
        backward=1.2,
        activations=3e9,
        keeps_activations=True,
        pipeline_argument=1.82,
    ),
    (671e9, 2048, 1, 16): Case(mfu=(0.33, 0.33), experts_per_token=2, not_routed=11e9, states=25e9),
}
"""By N, GPUs, TP and PP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The axes of one layout and the chapter's other symbols: n is N, the parameters as people say them."""

    problem: Problem
    n: float
    tp: int
    pp: int
    vpp: int
    dp: int
    dp_shard: int
    cp: int
    ep: int
    etp: int
    zero_stage: int
    micro_batch: int
    recompute: int
    recompute_layers: int
    sequence_parallel: int
    schedule: int
    rank_order: int

    @classmethod
    def of(cls, problem: Problem, layout: Layouts) -> Job:
        """The one row of `layout`."""
        return cls(problem=problem, n=napkin.nominal_parameters(problem.model), **layout.row(0))

    @property
    def model(self) -> Model:
        """The transformer."""
        return self.problem.model

    @property
    def gpus(self) -> int:
        """G."""
        return self.problem.workload.gpus

    @property
    def memory(self) -> float:
        """H, bytes of a GPU as it is sold: 80e9 for one of 80 GB."""
        return self.problem.cluster.gpu.memory

    @property
    def ranks(self) -> int:
        """Ranks that hold the same weights: DP, times CP."""
        return self.dp * self.cp

    @property
    def tokens(self) -> float:
        """b s of a micro-batch, on one context-parallel rank."""
        return self.micro_batch * self.problem.workload.seq_len / self.cp

    @property
    def volume(self) -> float:
        """V, bytes of a micro-batch's activations between two layers: 2 b s h."""
        return 2.0 * self.tokens * self.model.hidden

    @property
    def micro_batches(self) -> float:
        """m."""
        return self.problem.workload.global_batch / (self.dp * self.micro_batch)

    @property
    def layers(self) -> float:
        """Layers of a stage, the mean."""
        return self.model.layers / self.pp

    @property
    def case(self) -> Case | None:
        """What the chapter prints for this very layout."""
        return CASES.get((self.n, self.gpus, self.tp, self.pp))

    @property
    def full(self) -> bool:
        """Whether every layer is recomputed."""
        return self.problem.profile.recompute[self.recompute].full and not self.recompute_layers

    @property
    def nvlink(self) -> float:
        """One-way bandwidth of the fast links, B/s."""
        return self.problem.cluster.levels[0].bandwidth

    @property
    def nic(self) -> float:
        """Bandwidth of a GPU's NIC, B/s."""
        levels = self.problem.cluster.levels
        return levels[min(1, len(levels) - 1)].bandwidth

    @property
    def domain(self) -> int:
        """GPUs that the fast links join."""
        return self.problem.cluster.fast_domain or self.gpus

    @property
    def local(self) -> bool:
        """Whether the data-parallel group stays on the fast links."""
        return self.tp * self.ranks <= self.domain

    @property
    def data_bandwidth(self) -> float:
        """What the chapter gives data parallelism: two-way NVLink, or all NICs of a node."""
        return 2.0 * self.nvlink if self.local else self.nic * self.problem.cluster.gpus_per_node

    @property
    def data_bandwidth_corrected(self) -> float:
        """One-way NVLink as NCCL reaches it, or the NICs of the group's own members in a node."""
        return napkin.ACHIEVED * self.nvlink if self.local else self.nic * max(1, self.domain // self.tp)

    @property
    def stage_weights(self) -> float:
        """2 N / (T P)."""
        return napkin.weights(self.n, self.tp, self.pp)

    @property
    def routed(self) -> float:
        """Parameters of all routed experts."""
        return float(self.model.moe_layers * self.model.experts * params.counts(self.model).expert)

    @property
    def not_routed(self) -> float:
        """All other parameters."""
        return params.total(self.model) - self.routed
