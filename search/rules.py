"""The rules of a search, in the order in which it applies them; here those of pipeline, batch and ZeRO.

The NumPy mask calls a rule on columns, CP-SAT on the product of its columns' domains, `because` on one row. A
rejected tuple is counted under the first rule that rejects it.
"""

from __future__ import annotations

import numpy as np

from costmodel.layouts import RANK_ORDERS, SCHEDULES, Column
from costmodel.problem import Problem
from search import rules_shape as shape
from search.possible import divisors
from search.rule import Rule
from search.rules_memory import memory_floor, memory_rule
from search.space import SearchSpace

INTERLEAVED, ZERO_BUBBLE, DUALPIPE = (SCHEDULES.index(name) for name in ("interleaved", "zero-bubble", "dualpipe"))


def rules(problem: Problem, space: SearchSpace) -> tuple[Rule, ...]:
    """All rules of a problem in the order of application: skeleton rules, those of the inner axes, memory."""
    return (*skeleton_rules(problem, space), *inner_rules(problem, space), memory_rule(problem))


def skeleton_rules(problem: Problem, space: SearchSpace) -> tuple[Rule, ...]:
    """Rules over tp, pp, cp, dp, ep and etp alone."""
    return (
        shape.heads(problem),
        shape.kv_heads(problem),
        shape.hidden(problem),
        shape.ffn(problem),
        shape.tp_domain(problem, lifted=space.tp_across_domains),
        _pp_layers(problem),
        shape.sequence(problem),
        shape.experts(problem),
        shape.expert_group(problem),
        shape.expert_tp(problem),
        shape.fp8_width(problem),
        _global_batch(problem),
        memory_floor(problem),
    )


def inner_rules(problem: Problem, space: SearchSpace) -> tuple[Rule, ...]:
    """Rules over the other axes, in the order in which the search expands these."""
    return (
        shape.sequence_parallel(problem),
        shape.sequence_split(problem),
        _schedule(),
        _virtual_stages(problem, space),
        _micro_batch(problem),
        _micro_batches(problem),
        shape.fp8_tokens(problem),
        _rank_order(problem, space),
        shape.expert_order(problem),
        _zero_with_pp(problem),
        _shard_group(problem),
        shape.expert_span(problem),
        shape.expert_hsdp(problem),
        _recompute_layers(problem, space),
    )


# -- pipeline and batch


def _pp_layers(problem: Problem) -> Rule:
    layers = problem.model.layers
    return Rule("pp_layers", ("pp",), lambda pp: pp <= layers, lambda pp: f"{layers} layers cannot fill {pp} stages")


def _schedule() -> Rule:
    def ok(pp: Column, vpp: Column, schedule: Column) -> Column:
        good = (schedule == INTERLEAVED) == (vpp > 1)
        good &= (schedule == 0) | (pp > 1)
        return np.asarray(good & ((schedule != DUALPIPE) | (pp % 2 == 0)))

    def because(pp: int, vpp: int, schedule: int) -> str:
        name = SCHEDULES[schedule]
        if (schedule == INTERLEAVED) != (vpp > 1):
            change = "raise vpp to 2 or more" if vpp == 1 else "take the schedule interleaved, or vpp 1"
            return f"vpp {vpp} with {name}: virtual stages and the interleaved schedule go together; {change}"
        if pp == 1:
            return f"{name} needs a pipeline, and pp is 1"
        return f"dualpipe needs an even number of stages, and pp is {pp}"

    return Rule("schedule", ("pp", "vpp", "schedule"), ok, because)


def _rank_order(problem: Problem, space: SearchSpace) -> Rule:
    """One order of the ranks is left where all are the same layout: the default, or the first of the space."""
    known, usual = space.axes["rank_order"], problem.profile.rank_order
    first = usual if usual in known else known[0]

    def because(pp: int, dp: int, rank_order: int) -> str:
        one = f"pp {pp}" if pp == 1 else f"dp {dp}"
        return f"with {one}, {RANK_ORDERS[rank_order]} is the same layout as {RANK_ORDERS[first]}"

    return Rule(
        "rank_order",
        ("pp", "dp", "rank_order"),
        lambda pp, dp, rank_order: (rank_order == first) | ((pp > 1) & (dp > 1)),
        because,
    )


def _legal_stages(problem: Problem, space: SearchSpace) -> list[int]:
    """Numbers of stages that the layers can fill, rising."""
    stages = {*space.axes["pp"], *divisors(problem.workload.gpus)}
    return sorted(pp for pp in stages if pp <= problem.model.layers)


def _virtual_stages(problem: Problem, space: SearchSpace) -> Rule:
    legal = _legal_stages(problem, space)
    table, most = problem.split(legal), np.zeros(max(*space.axes["pp"], problem.workload.gpus) + 1, dtype=np.int64)
    most[legal] = [table.most_virtual(pp) for pp in legal]
    ends = ", embedding and loss counted" * problem.profile.embedding_loss_as_layers
    return Rule(
        "virtual_stages",
        ("pp", "vpp"),
        lambda pp, vpp: vpp <= most[pp],
        lambda pp, vpp: (
            f"vpp {vpp} with pp {pp} needs a layer on each of {pp * vpp} virtual stages{ends}; "
            f"{problem.model.layers} layers allow vpp {most[pp]}"
        ),
    )


def _global_batch(problem: Problem) -> Rule:
    batch = problem.workload.global_batch
    return Rule(
        "global_batch",
        ("dp",),
        lambda dp: batch % dp == 0,
        lambda dp: f"a global batch of {batch} does not divide by dp {dp}",
    )


def _micro_batch(problem: Problem) -> Rule:
    batch = problem.workload.global_batch
    return Rule(
        "micro_batch",
        ("dp", "micro_batch"),
        lambda dp, micro_batch: batch % (dp * micro_batch) == 0,
        lambda dp, micro_batch: (
            f"a global batch of {batch} does not divide by dp {dp} x micro-batch {micro_batch} = {dp * micro_batch}"
        ),
    )


def _micro_batches(problem: Problem) -> Rule:
    batch, whole = problem.workload.global_batch, problem.profile.microbatches_divide_pp

    def ok(pp: Column, schedule: Column, dp: Column, micro_batch: Column) -> Column:
        count = batch // (dp * micro_batch)
        interleaved = (count >= pp) & ((count % pp == 0) | (not whole))
        good = (schedule != INTERLEAVED) | interleaved
        return np.asarray(good & ((schedule != DUALPIPE) | ((count >= 2 * pp) & (count % 2 == 0))))

    def because(pp: int, schedule: int, dp: int, micro_batch: int) -> str:
        count = batch // (dp * micro_batch)
        if schedule == DUALPIPE:
            return f"dualpipe needs an even number of micro-batches, at least 2 x pp {pp}; there are {count}"
        need = "a multiple of" if whole else "at least"
        return f"interleaving needs {need} pp {pp} micro-batches; there are {count}"

    return Rule("micro_batches", ("pp", "schedule", "dp", "micro_batch"), ok, because)


# -- recomputation


def _recompute_layers(problem: Problem, space: SearchSpace) -> Rule:
    legal = _legal_stages(problem, space)
    table, name = problem.split(legal), [choice.name for choice in problem.profile.recompute]
    fullest = (table.columns["dense"] + table.columns["moe"]).max(axis=1).astype(np.int64)
    something = np.array([bool(choice.modules) or choice.full for choice in problem.profile.recompute])

    def most(pp: Column, vpp: Column) -> Column:
        return np.asarray(fullest[table.places(np.minimum(pp, legal[-1]), vpp, np.zeros_like(pp))])

    def because(pp: int, vpp: int, recompute: int, recompute_layers: int) -> str:
        if not something[recompute]:
            return f"recompute {name[recompute]} computes nothing again, in {recompute_layers} layers as in none"
        layers = most(np.array(pp), np.array(vpp))
        least = f"recompute_layers {recompute_layers} with pp {pp}: no stage has more than {layers} layers"
        return f"{least}, and 0 is all of them"

    return Rule(
        "recompute_layers",
        ("pp", "vpp", "recompute", "recompute_layers"),
        lambda pp, vpp, recompute, layers: (layers == 0) | (something[recompute] & (layers < most(pp, vpp))),
        because,
    )


# -- ZeRO


def _zero_with_pp(problem: Problem) -> Rule:
    profile = problem.profile
    allowed = np.isin(np.arange(4), profile.zero_stages_with_pp)
    stages = ", ".join(map(str, profile.zero_stages_with_pp))
    return Rule(
        "zero_with_pp",
        ("pp", "zero_stage"),
        lambda pp, zero_stage: (pp == 1) | allowed[zero_stage],
        lambda pp, zero_stage: (
            f"profile {profile.name} runs ZeRO {stages} with pipelines, not {zero_stage} with pp {pp}"
        ),
    )


def _shard_group(problem: Problem) -> Rule:
    def ok(dp: Column, cp: Column, zero_stage: Column, dp_shard: Column) -> Column:
        ranks = dp * cp
        part = problem.profile.shard_groups & (zero_stage > 0) & (dp_shard > 1)
        return np.asarray((ranks % dp_shard == 0) & ((dp_shard == ranks) | part))

    def because(dp: int, cp: int, zero_stage: int, dp_shard: int) -> str:
        if dp * cp % dp_shard:
            return f"dp x cp = {dp * cp} ranks do not divide into groups of dp_shard {dp_shard}"
        if not problem.profile.shard_groups:
            return f"profile {problem.profile.name} shards over all {dp * cp} ranks, not groups of {dp_shard}"
        return f"zero_stage {zero_stage} with dp_shard {dp_shard} shards nothing: that is zero_stage 0 over {dp * cp}"

    return Rule("shard_group", ("dp", "cp", "zero_stage", "dp_shard"), ok, because)
