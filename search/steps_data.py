"""The fourth step of `explain`, data parallelism: the states that a rank holds and what the replicas exchange."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from costmodel import traffic
from costmodel.layouts import Layouts, shard_groups
from costmodel.problem import DTYPE_BYTES
from search.formulas import Stage, divided, state_formulas
from search.scored import Row, Scored

Made = tuple[str, Iterator[Row]]
"""A step's verdict and rows."""
FORMULAS = {
    "tensor_parallel": "collectives of 2 b s h / CP bytes in each layer",
    "context_parallel": "CP - 1 hops with the keys and values of b s / CP tokens",
    "expert_parallel": "b s / (CP TP) tokens to k experts and back in each MoE layer",
    "pipeline_send": "2 b s h / CP bytes a stage boundary and micro-batch",
    "data_parallel": "gradients and weights of the stage over the shard group",
    "optimizer": "bytes of the states / memory bandwidth",
}


def data_step(it: Scored) -> Made:
    """Step 4: what data parallelism and ZeRO hold and send."""
    stage, dp, shard = it.axis("zero_stage"), it.axis("dp"), it.axis("dp_shard")
    verdict = f"{dp} replicas, ZeRO {stage} over {shard} ranks" if stage else f"{dp} replicas, states not sharded"
    if dp * it.axis("cp") == 1:
        verdict = "one replica, nothing to reduce"
    return verdict, _data_rows(it)


def _data_rows(it: Scored) -> Iterator[Row]:
    model, dp, shard, groups = it.problem.model, it.axis("dp"), it.axis("dp_shard"), it.axis("ep") * it.axis("etp")
    ranks, tp, states = dp * it.axis("cp"), it.axis("tp"), it.problem.workload
    each = 4.0 + 2.0 * DTYPE_BYTES[states.moments_dtype]
    mean = "((N - routed) / (TP PP) + routed / (EP ETP PP))" if model.is_moe else "N / (TP PP)"
    yield Row("DP", "GPUs / (TP x PP x CP)", dp, "1", "what the other degrees leave")
    if model.is_moe:
        yield Row("experts a GPU", "", model.experts / it.axis("ep"), "1", "of each MoE layer")
        yield Row(
            "expert data parallel", "TP DP CP / (EP ETP)", tp * ranks / groups, "1", "ranks that hold the same experts"
        )
    yield Row("shard group S", "DP x CP or a part of it", shard, "1", "ranks over which ZeRO divides the states")
    unsharded = each * sum(it.held)
    yield Row("optimizer unsharded", f"{each:g} {mean}", unsharded, "B", "the mean over the stages, without ZeRO")
    yield from _state_rows(it)
    if ranks > 1:
        domain, levels = it.problem.cluster.fast_domain, it.problem.cluster.levels
        if domain and tp * ranks > domain:
            seen = levels[1].bandwidth * max(1, domain // tp)
            yield Row("node bandwidth", "NICs of a group in a node", seen, "B/s", "what one data-parallel group sees")
        yield Row("DP all-reduce", "2 (D - 1) / D of the gradients", _reduced(it), "s", "before overlap, once a step")
        if it.axis("zero_stage") == 3:
            yield Row("ZeRO-3 volumes", "gather, gather, scatter", 3, "1", "gather, gather, scatter")
            yield Row(
                "ZeRO-3 traffic",
                "two gathers of the weights, a scatter of the gradients",
                _gathered(it),
                "s",
                "before overlap, for every micro-batch",
            )
            yield Row("states without ZeRO-3", "", None, "B")
    yield time_row(it, "data_parallel")
    yield replace(time_row(it, "optimizer"), name="optimizer step")


def _state_rows(it: Scored) -> Iterator[Row]:
    """What a rank of the neediest stage holds, and the bytes of it."""
    stage, (formulas, said) = Stage.of(it.problem, it.layout, it.stages), states_said(it)
    held, group = stage.held, shard_groups(it.layout)
    what = f"a rank's parameters of {stage.name} ({stage.parts})"
    yield Row("held n", what, float(held.dense[0]), "1", "before ZeRO divides them")
    if it.problem.model.is_moe:
        yield Row("held e", "those in routed experts", float(held.expert[0]), "1", "before ZeRO divides them")
        yield Row("expert shard group R", "S TP / (EP ETP)", float(group[1][0]), "1", "ranks that divide e")
    if "w" in formulas["weights"]:
        yield Row("matrices w", "the part of n with fp8 copies", float(held.matrices[0]), "1", "without norms and ends")
    for name, state in (("parameters", "weights"), ("gradients", "gradients"), ("optimizer", "optimizer")):
        yield Row(f"{name} a GPU", formulas[state], it.memory(state), "B", said[state])


def states_said(it: Scored) -> tuple[dict[str, str], dict[str, str]]:
    """The formulas of weights, gradients and optimizer, and whether ZeRO divides them."""
    return state_formulas(it.problem, it.layout), divided(it.problem, it.layout)


def _reduced(it: Scored) -> float:
    """Seconds of a plain all-reduce of a rank's gradients."""
    plain = replace(it.layout, zero_stage=it.layout.zero_stage * 0)
    return float(_sent(it, plain).reduce_last[0])


def _gathered(it: Scored) -> float:
    """Seconds of what ZeRO-3 moves for one micro-batch."""
    sent = _sent(it, it.layout)
    return float((sent.gather_forward + sent.gather_backward + sent.reduce_each + sent.reduce_last)[0])


def _sent(it: Scored, layout: Layouts) -> traffic.DataTraffic:
    one = layout.tp * 1.0
    dense, expert = (one / one * part for part in it.held)
    return traffic.data_parallel(it.problem, layout, dense, expert)


def time_row(it: Scored, term: str) -> Row:
    """The row of a term of the step time."""
    meaning = next(part.metadata["meaning"] for part in fields(it.cost.time) if part.name == term)
    return Row(term.replace("_", " "), FORMULAS[term], it.time(term), "s", meaning)
