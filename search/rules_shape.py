"""Rules that come from the shape of the model and its sequences: what tensor, context and expert parallelism split."""

from __future__ import annotations

import numpy as np

from costmodel.layouts import RANK_ORDERS, Column
from costmodel.problem import Problem
from search.rule import Rule

INSIDE = RANK_ORDERS.index("tp-cp-pp-dp")

# -- tensor and context parallelism


def heads(problem: Problem) -> Rule:
    heads = problem.model.heads
    return Rule(
        "heads", ("tp",), lambda tp: heads % tp == 0, lambda tp: f"{heads} attention heads do not divide by tp {tp}"
    )


def kv_heads(problem: Problem) -> Rule:
    heads, replicate = problem.model.kv_heads, problem.profile.kv_replication

    def because(tp: int) -> str:
        if replicate:
            return f"{heads} KV heads neither divide by tp {tp} nor replicate evenly over it"
        return f"{heads} KV heads do not divide by tp {tp}, and profile {problem.profile.name} does not replicate them"

    return Rule("kv_heads", ("tp",), lambda tp: (heads % tp == 0) | (replicate & (tp % heads == 0)), because)


def hidden(problem: Problem) -> Rule:
    hidden = problem.model.hidden
    return Rule(
        "hidden", ("tp",), lambda tp: hidden % tp == 0, lambda tp: f"hidden {hidden} does not divide by tp {tp}"
    )


def ffn(problem: Problem) -> Rule:
    model = problem.model
    wide = {"MLP": model.ffn_hidden if model.dense_layers else 0, "shared expert": model.shared_ffn_hidden}

    def ok(tp: Column, etp: Column) -> Column:
        good = (wide["MLP"] % tp == 0) & (wide["shared expert"] % tp == 0)
        return np.asarray(good & (model.expert_ffn_hidden % etp == 0))

    def because(tp: int, etp: int) -> str:
        parts = [f"{name} width {width} by tp {tp}" for name, width in wide.items() if width % tp]
        if model.expert_ffn_hidden % etp:
            parts.append(f"expert width {model.expert_ffn_hidden} by etp {etp}")
        return f"does not divide: {', '.join(parts)}"

    return Rule("ffn", ("tp", "etp"), ok, because)


def tp_domain(problem: Problem, *, lifted: bool) -> Rule:
    cluster, gpus = problem.cluster, problem.workload.gpus
    domain, node = problem.links.fast_domain or gpus, min(cluster.gpus_per_node, gpus)

    def inside(group: Column) -> Column:
        return np.asarray((group <= domain) & ((node % group == 0) | ((group % node == 0) & (domain % group == 0))))

    def because(tp: int, etp: int) -> str:
        name, size = ("tp", tp) if not inside(np.asarray(tp)) else ("etp", etp)
        return (
            f"{name} {size} is neither a part of a node of {node} GPUs nor whole nodes that divide "
            f"{domain} GPUs on {cluster.levels[0].name}; --any-domain lets it leave them"
        )

    def ok(tp: Column, etp: Column) -> Column:
        return np.asarray((inside(tp) & inside(etp)) | lifted)

    return Rule("tp_domain", ("tp", "etp"), ok, because)


def sequence(problem: Problem) -> Rule:
    length = problem.workload.seq_len
    return Rule(
        "sequence",
        ("cp",),
        lambda cp: (cp == 1) | (length % (2 * cp) == 0),
        lambda cp: f"a sequence of {length} tokens does not divide into 2 x cp {cp} parts",
    )


def sequence_parallel(problem: Problem) -> Rule:
    required = problem.model.is_moe and problem.profile.sequence_parallel

    def ok(tp: Column, sequence_parallel: Column) -> Column:
        on = sequence_parallel == 1
        return np.asarray(np.where(tp == 1, ~on, on | (not required)))

    def because(tp: int, sequence_parallel: int) -> str:
        if sequence_parallel:
            return "sequence parallelism splits over the tensor-parallel group, and tp is 1"
        return f"experts with tp {tp} need sequence parallelism"

    return Rule("sequence_parallel", ("tp", "sequence_parallel"), ok, because)


def sequence_split(problem: Problem) -> Rule:
    length = problem.workload.seq_len
    return Rule(
        "sequence_split",
        ("tp", "cp", "sequence_parallel"),
        lambda tp, cp, on: (on == 0) | ((length // cp) % tp == 0),
        lambda tp, cp, on: (
            f"{length // cp} tokens (sequence / cp {cp}) do not divide by tp {tp} for sequence parallelism"
        ),
    )


# -- experts


def experts(problem: Problem) -> Rule:
    experts = problem.model.experts
    return Rule(
        "experts", ("ep",), lambda ep: experts % ep == 0, lambda ep: f"{experts} experts do not divide by ep {ep}"
    )


def expert_group(problem: Problem) -> Rule:
    gpus = problem.workload.gpus
    return Rule(
        "expert_group",
        ("pp", "ep", "etp"),
        lambda pp, ep, etp: (gpus // pp) % (ep * etp) == 0,
        lambda pp, ep, etp: (
            f"ep {ep} x etp {etp} does not divide the {gpus // pp} GPUs of a pipeline stage (tp x cp x dp)"
        ),
    )


def expert_tp(problem: Problem) -> Rule:
    """Which degrees inside an expert go with tp, where the profile builds expert groups from whole tensor groups."""
    bound = problem.model.is_moe and problem.profile.ep_spans_cp_tp

    def ok(tp: Column, ep: Column, etp: Column) -> Column:
        return np.asarray((etp == tp) | ((etp == 1) & (ep > 1)) | (not bound))

    def because(tp: int, ep: int, etp: int) -> str:
        choice = f"1 or tp {tp}" if ep > 1 else f"tp {tp} where ep is 1"
        return f"profile {problem.profile.name} splits an expert over {choice}, not over etp {etp}"

    return Rule("expert_tp", ("tp", "ep", "etp"), ok, because)


def expert_order(problem: Problem) -> Rule:
    """Stages between data-parallel ranks go with experts that have as many data-parallel ranks as the rest.

    Megatron-Core asserts it, as the ranks of a stage then are no neighbours beyond tp x cp (parallel_state.py).
    """
    bound = problem.model.is_moe

    def ok(tp: Column, pp: Column, cp: Column, ep: Column, etp: Column, rank_order: Column) -> Column:
        return np.asarray((rank_order != INSIDE) | (pp == 1) | (ep * etp == tp * cp) | (not bound))

    def because(tp: int, pp: int, cp: int, ep: int, etp: int, rank_order: int) -> str:
        return (
            f"{RANK_ORDERS[rank_order]} needs experts over as many ranks as the rest of a layer: "
            f"ep {ep} x etp {etp} = {ep * etp}, tp {tp} x cp {cp} = {tp * cp}"
        )

    return Rule("expert_order", ("tp", "pp", "cp", "ep", "etp", "rank_order"), ok, because)


def expert_span(problem: Problem) -> Rule:
    """Expert groups of whole tp x cp groups within a shard group, where the profile builds them so."""
    name, bound = problem.profile.name, problem.model.is_moe and problem.profile.ep_spans_cp_tp

    def ok(tp: Column, cp: Column, ep: Column, etp: Column, dp_shard: Column) -> Column:
        whole = (ep * etp % (cp * tp) == 0) & (dp_shard * tp % (ep * etp) == 0)
        return np.asarray(whole | (ep == 1) | (not bound))

    def because(tp: int, cp: int, ep: int, etp: int, dp_shard: int) -> str:
        group = f"profile {name}: ep {ep} x etp {etp} = {ep * etp}"
        if ep * etp % (cp * tp):
            return f"{group} is not a multiple of cp {cp} x tp {tp} = {cp * tp}"
        return f"{group} does not divide dp_shard {dp_shard} x tp {tp} = {dp_shard * tp}"

    return Rule("expert_span", ("tp", "cp", "ep", "etp", "dp_shard"), ok, because)


def expert_hsdp(problem: Problem) -> Rule:
    """Shard groups below dp x cp beside experts and tensor parallelism, where the profile cannot launch them."""
    name, allowed = problem.profile.name, problem.profile.hsdp_with_ep_and_tp

    def ok(tp: Column, dp: Column, cp: Column, ep: Column, dp_shard: Column) -> Column:
        return np.asarray((dp_shard == dp * cp) | (ep == 1) | (tp == 1) | allowed)

    def because(tp: int, dp: int, cp: int, ep: int, dp_shard: int) -> str:
        return (
            f"profile {name} runs no shard groups (dp_shard {dp_shard} of {dp * cp} ranks) "
            f"with ep {ep} and tp {tp} together"
        )

    return Rule("expert_hsdp", ("tp", "dp", "cp", "ep", "dp_shard"), ok, because)


# -- fp8


def fp8_width(problem: Problem) -> Rule:
    model, on = problem.model, problem.workload.precision in ("fp8", "mxfp8", "nvfp4")
    split = {
        "attention": model.heads * model.value_head_dim,
        "MLP": model.ffn_hidden if model.dense_layers else 0,
        "shared expert": model.shared_ffn_hidden,
    }

    def ok(tp: Column, etp: Column) -> Column:
        good = (model.expert_ffn_hidden // etp) % 16 == 0
        for width in split.values():
            good = good & ((width // tp) % 16 == 0)
        return np.asarray(good | (not on))

    def because(tp: int, etp: int) -> str:
        parts = [f"{name} {width} / tp {tp} = {width // tp}" for name, width in split.items() if width // tp % 16]
        if model.expert_ffn_hidden // etp % 16:
            parts.append(f"expert {model.expert_ffn_hidden} / etp {etp} = {model.expert_ffn_hidden // etp}")
        return f"fp8 GEMMs need widths in multiples of 16: {', '.join(parts)}"

    return Rule("fp8_width", ("tp", "etp"), ok, because)


def fp8_tokens(problem: Problem) -> Rule:
    length, on = problem.workload.seq_len, problem.workload.precision in ("fp8", "mxfp8", "nvfp4")
    return Rule(
        "fp8_tokens",
        ("cp", "micro_batch"),
        lambda cp, micro_batch: (length // cp * micro_batch % 16 == 0) | (not on),
        lambda cp, micro_batch: (
            f"fp8 GEMMs need tokens in multiples of 16: {length} / cp {cp} x {micro_batch} sequences "
            f"= {length // cp * micro_batch}"
        ),
    )
