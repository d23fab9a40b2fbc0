"""The values of each axis that do not contradict a problem by themselves."""

from __future__ import annotations

from costmodel.layouts import RANK_ORDERS, SCHEDULES
from costmodel.problem import Problem
from costmodel.recompute import RecomputeSet

ALL_RANKS = 0
"""In `dp_shard`: all dp * cp ranks, whatever their number."""


def possible_values(problem: Problem) -> dict[str, tuple[int, ...]]:
    """For each axis, every value that does not contradict the problem by itself; rising."""
    model, profile, workload = problem.model, problem.profile, problem.workload
    gpus = divisors(workload.gpus)
    interleaved = "interleaved" in profile.schedules
    cp = [n for n in gpus if n == 1 or workload.seq_len % (2 * n) == 0]
    experts = set(divisors(model.experts)) if model.is_moe else {1}
    etp = [n for n in gpus if model.expert_ffn_hidden % n == 0]
    split = model.is_moe and profile.tensor_parallel and profile.expert_tensor_parallel
    return {
        "tp": tuple(n for n in gpus if model.heads % n == 0) if profile.tensor_parallel else (1,),
        "pp": tuple(n for n in gpus if n <= model.layers) if profile.pipeline_parallel else (1,),
        "vpp": tuple(range(1, model.layers + 1)) if interleaved else (1,),
        "dp": gpus,
        "dp_shard": (ALL_RANKS, *gpus) if profile.shard_groups else (ALL_RANKS,),
        "cp": tuple(cp) if profile.context_parallel else (1,),
        "ep": tuple(n for n in gpus if n in experts),
        "etp": tuple(etp) if split else (1,),
        "zero_stage": tuple(sorted(profile.zero_stages)),
        "micro_batch": divisors(workload.global_batch),
        "recompute": recompute_codes(problem, free=True),
        "recompute_layers": tuple(range(model.layers + 1)),
        "sequence_parallel": (0, 1) if profile.sequence_parallel else (0,),
        "schedule": tuple(code for code, known in enumerate(SCHEDULES) if known in profile.schedules),
        "rank_order": tuple(code for code, known in enumerate(RANK_ORDERS) if known in profile.rank_orders),
    }


def recompute_codes(problem: Problem, *, free: bool = False) -> tuple[int, ...]:
    """Codes of the profile's recompute sets that differ on this model, with `free` also of those that its free modules
    make; of equal sets the recommended one stays, else the first."""
    chosen: dict[tuple[str, ...], int] = {}
    for code, choice in enumerate(problem.profile.recompute):
        if not (choice.declared or free):
            continue
        key = recomputes(problem, code)
        if key not in chosen or (key and choice.name == problem.profile.selective):
            chosen[key] = code
    return tuple(sorted(chosen.values()))


def recompute_choices(problem: Problem, own: int) -> tuple[int, ...]:
    """Codes of the sets that a stage may choose from: the declared ones that differ on this model, and a layout's own
    where it differs from all of these."""
    known = recompute_codes(problem)
    made = [recomputes(problem, code) for code in (*known, own)]
    return known if made[-1] in made[:-1] else tuple(sorted((*known, own)))


def recomputes(problem: Problem, code: int) -> tuple[str, ...]:
    """What a recompute set comes to on this model: equal sets recompute the same."""
    choice = problem.profile.recompute[code]
    return ("full",) if choice.full else applicable(problem, choice)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, rising."""
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*low, *(number // n for n in low)}))


def applicable(problem: Problem, choice: RecomputeSet) -> tuple[str, ...]:
    """The modules of a recompute set that the model has, those left out that others hold."""
    model = problem.model
    has = {
        "mla_up_proj": model.attention == "mla",
        "moe_act": model.is_moe,
        "moe": model.is_moe,
        "shared_experts": model.shared_experts > 0,
        "mlp": model.dense_layers > 0,
    }
    return tuple(sorted(module for module in choice.outermost if has.get(module, True)))
