"""The GEMMs of a layer by their shapes, and the seconds that they take at the measured rate of such a shape.

Every linear has three GEMMs: forward, gradient of its input, gradient of its weight.
t = max(2 M N K / (peak * eta(M, N)), bytes / HBM bandwidth).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from costmodel.layouts import Column, Layouts
from costmodel.problem import LOW_PRECISIONS, Problem
from costmodel.tables import bilinear
from hardware.gpu import GemmTable

SHARES = {"fp8": "gemm_fp8", "mxfp8": "gemm_mxfp8", "nvfp4": "gemm_fp4"}
"""The rate of a precision's GEMMs; of all others it is `gemm`."""


class Gemm(NamedTuple):
    """One linear of a layer on one rank: out[M, N] = in[M, K] w[K, N]; `groups` of them for experts."""

    m: Column
    n: Column
    k: Column
    groups: float | Column = 1.0
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """Per-row sizes that every formula needs, float64, computed once; None where the table lacks the axis."""

    tp: Column
    cp: Column
    ep: Column
    etp: Column
    micro_batch: Column
    tokens: Column
    """tokens per GPU and micro-batch: micro_batch * seq_len / cp"""
    dispatched: Column
    """tokens that this rank sends to experts: tokens / tp, since sequence parallelism has split them"""
    norm_split: Column
    """tp with sequence parallelism, else 1: what norms and residuals are divided by"""

    @classmethod
    def of(cls, problem: Problem, layouts: Layouts) -> Shape:
        tp = layouts.tp.astype(np.float64)
        cp = layouts.cp.astype(np.float64)
        micro_batch = layouts.micro_batch.astype(np.float64)
        tokens = micro_batch * float(problem.workload.seq_len) / cp
        split = layouts.sequence_parallel
        if split is not None:
            split = 1.0 + split.astype(np.float64) * (tp - 1.0)
        ep, etp = (column if column is None else column.astype(np.float64) for column in (layouts.ep, layouts.etp))
        return cls(tp, cp, ep, etp, micro_batch, tokens, tokens / tp, split)


def gemm_efficiency(table: GemmTable, m: Column, n: Column) -> Column:
    """Measured share of the peak at M rows and N columns, interpolated in logarithms.

    Constant above the table; below its first row it falls in proportion to M, as tiles stay empty.
    """
    rows, eta = np.log2(np.asarray(table.m)), [[math.log2(value) for value in row] for row in table.eta]
    at = np.log2(m)
    inside = bilinear(rows, np.log2(np.asarray(table.n)), eta, at, np.log2(n))
    efficiency: Column = np.exp2(inside + np.minimum(at - rows[0], 0.0))
    return efficiency


def gemm_seconds(problem: Problem, gemm: Gemm, *, wgrad: bool = False) -> Column:
    """Seconds of one GEMM (or one grouped GEMM) without the gap before it.

    The weight gradient reads and writes its fp32 accumulator, so it is bound by bandwidth when rows are few.
    """
    gpu, rates = problem.cluster.gpu, problem.profile.time
    low = problem.workload.precision in LOW_PRECISIONS
    recipe = problem.profile.fp8_recipe if "mxfp8" not in gpu.peak else "fp8_block"
    table = gpu.gemm.get(recipe if low else "bf16", gpu.gemm["bf16"])
    peak = gpu.peak[problem.workload.precision]
    share = getattr(rates, SHARES.get(problem.workload.precision, "gemm"))
    if low and problem.workload.fp8_scaling == "row":
        share = share * rates.fp8_rowwise
    if gemm.grouped:
        share = share * (rates.grouped_wgrad if wgrad else rates.grouped_gemm)
    flops = 2.0 * gemm.m * gemm.n * gemm.k * gemm.groups
    compute = flops / (peak * pace(problem) * np.minimum(share * gemm_efficiency(table, gemm.m, gemm.n), 1.0))
    operand = 1.0 if low else 2.0
    accumulator = 8.0 if wgrad else operand
    moved = operand * gemm.m * (gemm.k + gemm.n) + accumulator * gemm.k * gemm.n
    seconds: Column = np.maximum(compute, moved * gemm.groups / bandwidth(problem))
    return seconds


def linear(problem: Problem, gemms: Iterable[Gemm]) -> tuple[Column, Column, Column]:
    """Seconds of the forward, input-gradient and weight-gradient GEMMs of a chain of linears."""
    forward = dgrad = wgrad = np.zeros(1)
    for gemm in gemms:
        forward = forward + gemm_seconds(problem, gemm)
        dgrad = dgrad + gemm_seconds(problem, gemm._replace(n=gemm.k, k=gemm.n))
        wgrad = wgrad + gemm_seconds(problem, gemm, wgrad=True)
    return forward, dgrad, wgrad


def attention_gemms(problem: Problem, shape: Shape) -> list[Gemm]:
    """Projections of the attention block."""
    model, t = problem.model, shape.tokens
    one = np.ones_like(t)
    h, a = model.hidden * one, model.heads / shape.tp
    if model.attention != "mla":
        kv = np.maximum(model.kv_heads / shape.tp, 1.0)
        width = (a + 2.0 * kv) * model.head_dim
        return [Gemm(t, width, h), Gemm(t, h, a * model.head_dim)]
    up = a * (model.qk_nope_head_dim + model.v_head_dim)
    gemms = [
        Gemm(t, (model.kv_lora_rank + model.qk_rope_head_dim) * one, h),
        Gemm(t, up, model.kv_lora_rank * one),
    ]
    rank = model.q_lora_rank or model.hidden
    if model.q_lora_rank:
        gemms.append(Gemm(t, rank * one, h))
    gemms.append(Gemm(t, a * model.qk_head_dim, rank * one))
    return [*gemms, Gemm(t, h, a * model.v_head_dim)]


def mla_up_gemms(problem: Problem, shape: Shape) -> list[Gemm]:
    """The up-projections of the latent attention, which `mla_up_proj` recomputes."""
    model, t = problem.model, shape.tokens
    one, a = np.ones_like(t), model.heads / shape.tp
    query = Gemm(t, a * model.qk_head_dim, (model.q_lora_rank or model.hidden) * one)
    return [query, Gemm(t, a * (model.qk_nope_head_dim + model.v_head_dim), model.kv_lora_rank * one)]


def mlp_gemms(problem: Problem, shape: Shape, width: int) -> list[Gemm]:
    """A dense MLP of this width, split by TP."""
    h = problem.model.hidden * np.ones_like(shape.tokens)
    up = (2.0 if problem.model.gated_mlp else 1.0) * width / shape.tp
    return [Gemm(shape.tokens, up, h), Gemm(shape.tokens, h, width / shape.tp)]


def expert_gemms(problem: Problem, shape: Shape) -> list[Gemm]:
    """The routed experts of this rank: M rows per expert = the EP group's tokens * top-k / experts * load."""
    model = problem.model
    h = model.hidden * np.ones_like(shape.tokens)
    local = model.experts / shape.ep
    tokens = shape.dispatched * shape.ep * shape.etp
    rows = tokens * model.experts_per_token / model.experts * problem.workload.expert_load
    width = model.expert_ffn_hidden / shape.etp
    up = (2.0 if model.gated_mlp else 1.0) * width
    return [Gemm(rows, up, h, local, True), Gemm(rows, h, width, local, True)]


def bandwidth(problem: Problem) -> float:
    """B/s that bandwidth-bound operators reach, at most the HBM's."""
    gpu = problem.cluster.gpu
    share = min(gpu.memory_efficiency * problem.profile.time.memory_bandwidth, 1.0)
    return gpu.memory_bandwidth * share * pace(problem)


def pace(problem: Problem) -> float:
    """Speed of compute under the problem's software over that under the newest: older software is never faster."""
    return 1.0 / (1.0 + problem.profile.time.behind * problem.lag)
