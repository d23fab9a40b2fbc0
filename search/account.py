"""The account of a search: where every candidate went, what each rule demands, and which limit of the user's it met."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from costmodel.layouts import Column
from search.engine import SearchResult
from search.possible import ALL_RANKS
from search.rule import Rule
from search.rules import inner_rules, skeleton_rules
from search.rules_memory import floors, memory_budget, memory_floor

DEMANDS = {
    "heads": "attention heads divide by tp",
    "kv_heads": "KV heads divide by tp, or are replicated over it",
    "hidden": "the hidden size divides by tp",
    "ffn": "MLP widths divide by tp, expert widths by etp",
    "tp_domain": "tp and etp stay within the fast links",
    "pp_layers": "a layer for every stage",
    "sequence": "a sequence divides into 2 x cp parts",
    "experts": "experts divide by ep",
    "expert_group": "ep x etp divides tp x cp x dp",
    "expert_tp": "etp that the profile can launch beside tp",
    "fp8_width": "fp8 widths are multiples of 16 on every rank",
    "global_batch": "the global batch divides by dp",
    "memory_floor": "a lower bound of memory fits",
    "sequence_parallel": "on or off as tp and experts ask",
    "sequence_split": "tokens divide by tp for sequence parallelism",
    "schedule": "interleaved with vpp > 1 and a pipeline, else vpp 1",
    "virtual_stages": "a layer for every virtual stage",
    "micro_batch": "the global batch divides by dp x micro-batch",
    "micro_batches": "as many micro-batches as the schedule needs",
    "fp8_tokens": "fp8 tokens are a multiple of 16",
    "rank_order": "one order of the ranks where both are the same layout",
    "expert_order": "experts over tp x cp ranks where pp lies before dp",
    "zero_with_pp": "a ZeRO stage that the profile runs with pp",
    "shard_group": "dp_shard divides dp x cp and shards something",
    "expert_span": "expert groups of whole tp x cp groups",
    "expert_hsdp": "no part of dp x cp as dp_shard beside ep and tp",
    "recompute_layers": "a part of a stage's layers, and a set of modules for them",
    "memory": "a layout needs no more than the usable memory",
    "bounded": "a proven bound leaves them out",
}
"""What each rule demands, in a few words."""

MOST = 0.5
"""Share of the candidates above which a rule is explained by one of them."""
TRIED = 1_000_000


def account(result: SearchResult) -> str:
    """The candidates, and the rule under which each one that is not feasible was counted."""
    count = result.account
    lines = [
        f"{count.candidates:,} candidates: {count.feasible:,} {'or more ' * bool(count.bounded)}feasible, "
        f"{len(result.frontier):,} on the frontier; "
        f"{count.scored:,} scored, {result.solver.skeletons:,} skeletons by CP-SAT ({result.solver.status})"
    ]
    counted = {rule: number for rule, number in count.pruned.items() if number} | {"bounded": count.bounded}
    numbers, names = (max(map(len, texts)) for texts in ([f"{n:,}" for n in counted.values()], counted))
    lines += [
        f"  {number:>{numbers},}  {rule:<{names}}  {DEMANDS.get(rule, '')}".rstrip()
        for rule, number in counted.items()
        if number
    ]
    return "\n".join([*lines, *_limited(result)])


def _limited(result: SearchResult) -> Iterator[str]:
    """The rule that rejects most of what the user's limits leave, with the numbers of one candidate."""
    count, limits = result.account, result.space.limits
    for rule in (*skeleton_rules(result.problem, result.space), *inner_rules(result.problem, result.space)):
        met = set(rule.columns) & set(limits)
        if met and rule.name != "memory_floor" and count.pruned.get(rule.name, 0) > MOST * count.candidates:
            row = _rejected(result, rule)
            if row is not None:
                yield f"{rule.name}, for example: {rule.explain(row)}"


def _rejected(result: SearchResult, rule: Rule) -> dict[str, int] | None:
    """The first combination of a rule's columns that the rule rejects; None if there is none, or too many to try."""
    grid = result.space.grid(result.problem.workload.gpus)
    inner = [name for name in rule.columns if name not in grid]
    axes = [result.space.axes[name] for name in inner]
    outer = np.unique(np.stack([grid[name] for name in rule.columns if name in grid], axis=1), axis=0)
    relative = "dp_shard" in inner and ALL_RANKS in result.space.axes["dp_shard"]
    if relative or prod(map(len, axes)) * len(outer) > TRIED:
        return None
    more = np.array(list(product(*axes)), dtype=np.int64).reshape(prod(map(len, axes)), len(inner))
    whole = np.hstack([np.repeat(outer, len(more), axis=0), np.tile(more, (len(outer), 1))])
    names = [*(name for name in rule.columns if name in grid), *inner]
    table: dict[str, Column] = {name: whole[:, i] for i, name in enumerate(names)}
    bad = np.flatnonzero(~np.broadcast_to(rule.mask(table), len(whole)))
    return {name: int(column[bad[0]]) for name, column in table.items()} if len(bad) else None


def least_memory(result: SearchResult) -> Iterator[str]:
    """The least memory that any skeleton needs, if it is more than there is."""
    problem = result.problem
    if result.account.pruned.get("memory_floor"):
        grid = result.space.grid(problem.workload.gpus)
        need = sum(part.megabytes(*(grid[axis] for axis in part.columns)) for part in floors(problem))
        least = {axis: int(column[np.argmin(need)]) for axis, column in grid.items()}
        if np.min(need) <= memory_budget(problem):
            return
        degrees = " ".join(f"{axis} {value}" for axis, value in least.items())
        yield f"memory_floor: even {degrees} {memory_floor(problem).explain(least)}"
