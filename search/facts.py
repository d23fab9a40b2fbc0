"""What of a layout each of its terms of time and memory comes from, in words, and what of it differs from another's."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.layouts import SCHEDULES, Column, Layouts, usual_set
from costmodel.memory import neediest
from costmodel.passes import passes_of
from costmodel.problem import Problem
from search.assignment import Assignment, by_set, closed_form
from search.placement import spans

Facts = dict[str, str]
"""What of a layout a term comes from: a name and its value, in words."""
REST = "a share of"
WHICH = ("slowest stage", "neediest stage")


def because_of(before: Facts, after: Facts) -> str:
    """The facts that differ, "TP 8 -> 4, slowest stage now the one with the head"; what follows from the other terms
    says so."""
    if REST in after:
        return f"{REST} {after[REST]}"
    differ = {name: value for name, value in after.items() if before.get(name) != value}
    return ", ".join(
        f"{name} now {value}" if name in WHICH else f"{name} {before.get(name, '-')} -> {value}"
        for name, value in differ.items()
    )


def facts_of(problem: Problem, layout: Layouts, given: Assignment | None) -> tuple[dict[str, Facts], dict[str, Facts]]:
    """What each term of time and of memory of the one row of `layout` comes from."""
    stages = (given or closed_form(problem, layout)).table
    slowest = stages.only(int(passes_of(problem, layout, stages).slowest[0])).kind(0, stages.rows(layout))
    neediest_ = neediest(problem, layout, stages)
    how = {"stages": "balanced by CP-SAT" if given else "as the closed form has them"}
    base = 0 if given and not given.own else int(usual_set(layout)[0])
    return (
        _time_facts(problem, layout, _on_stage(problem, base, slowest, "slowest"), how),
        _memory_facts(problem, layout, _on_stage(problem, base, neediest_, "neediest")),
    )


def _on_stage(problem: Problem, base: int, stage: Mapping[str, Column], name: str) -> tuple[Facts, Facts]:
    """The layers of a stage, and the recompute sets that they have."""
    names = [part for part in stage if f"mirror_{part}" in stage]
    count = {part: int(stage[part][0] + stage[f"mirror_{part}"][0]) for part in names}
    counts = by_set(count, base, len(problem.profile.recompute))
    used = [(found, choice.name) for found, choice in zip(counts, problem.profile.recompute, strict=True) if found]
    again = used[0][1] if len(used) == 1 else ", ".join(f"{found} {choice}" for found, choice in used) or "no layer"
    layers = f"{count['dense'] + count['moe']}"
    if problem.model.dense_layers and problem.model.is_moe:
        layers = f"{count['dense']} dense + {count['moe']} MoE"
    return {f"layers of the {name} stage": layers, f"{name} stage": _which(stage)}, {"recompute": again}


def _which(stage: Mapping[str, Column]) -> str:
    """Which of the stages this is, by what it has beside layers."""
    ends = [end for end in ("embedding", "head") if stage[end][0] + stage[f"mirror_{end}"][0]]
    return f"the one with the {' and the '.join(ends)}" if ends else "one between the ends"


def _work(problem: Problem, layout: Layouts) -> tuple[Facts, Facts]:
    """How many micro-batches there are, and their size."""
    row = layout.row(0)
    tokens = row["micro_batch"] * problem.workload.seq_len // row["cp"]
    batches = {"micro-batches": f"{problem.workload.global_batch / (row['dp'] * row['micro_batch']):g}"}
    return batches, {"tokens of a micro-batch": f"{tokens:,}"}


def _experts(problem: Problem, layout: Layouts) -> Facts:
    """The degrees that divide the experts, and the rows of an expert's matrices; a group of EP x ETP ranks shares
    what each of them has after TP."""
    row, model = layout.row(0), problem.model
    if not model.is_moe:
        return {}
    tokens = row["micro_batch"] * problem.workload.seq_len / row["cp"] / row["tp"] * row["ep"] * row["etp"]
    rows = {"tokens of an expert": f"{tokens * model.experts_per_token / model.experts:,.0f}"}
    return {"EP": f"{row['ep']}", "ETP": f"{row['etp']}"} | rows


def _states(problem: Problem, layout: Layouts) -> Facts:
    row = layout.row(0)
    zero = {"ZeRO": f"{row['zero_stage']} over {row['dp_shard']} ranks"}
    return {axis.upper(): f"{row[axis]}" for axis in ("tp", "pp", "ep", "etp")[: 2 + 2 * problem.model.is_moe]} | zero


def _time_facts(problem: Problem, layout: Layouts, stage: tuple[Facts, Facts], how: Facts) -> dict[str, Facts]:
    row, first, links = layout.row(0), problem.links.levels[0].name, spans(problem, layout)
    (batches, size), (layers, again), states = _work(problem, layout), stage, _states(problem, layout)
    work = batches | size | layers | {"TP": f"{row['tp']}"}
    where = {axis: {span.axis: span.said(first)} for axis, span in links.items()}
    schedule = {"schedule": SCHEDULES[row["schedule"]], "PP": f"{row['pp']}", "VPP": f"{row['vpp']}"}
    experts, split = _experts(problem, layout), _parallel(row)
    return {
        "gemm": experts | work,
        "attention": work,
        "elementwise": experts | work | split,
        "kernel_gaps": experts | batches | layers | {"TP": f"{row['tp']}"},
        "recompute": again | experts | work | split,
        "tensor_parallel": where["tp"] | where.get("etp", {}) | again | batches | size | layers | split,
        "context_parallel": where["cp"] | again | batches | size | layers,
        "expert_parallel": where.get("ep", {}) | where.get("etp", {}) | again | batches | size | layers,
        "pipeline_send": where["pp"] | batches | {"VPP": f"{row['vpp']}"},
        "data_parallel": where["dp"] | states | layers,
        "bubble": schedule | batches | how | again | experts | size | {"TP": f"{row['tp']}"} | split,
        "optimizer": states | layers,
        "overhead": {REST: "the rest"},
    }


def _memory_facts(problem: Problem, layout: Layouts, stage: tuple[Facts, Facts]) -> dict[str, Facts]:
    row, (_, size), (layers, again) = layout.row(0), _work(problem, layout), stage
    schedule = {"schedule": SCHEDULES[row["schedule"]], "PP": f"{row['pp']}", "VPP": f"{row['vpp']}"}
    which = {"neediest stage": layers["neediest stage"]}
    parallel, split, experts = _parallel(row), {"TP": f"{row['tp']}"}, _experts(problem, layout)
    return dict.fromkeys(("weights", "gradients", "optimizer", "gathered"), _states(problem, layout) | layers) | {
        "activations": schedule | size | layers | again | parallel | split | experts,
        "recompute_buffer": size | again | split | experts | parallel | which,
        "logits": size | split | which,
        "buffers": size | split | parallel | experts | which | {"PP": f"{row['pp']}"},
        "fragmentation": {REST: "the rest"},
    }


def _parallel(row: Mapping[str, int]) -> Facts:
    return {"sequence parallelism": "on" if row["sequence_parallel"] else "off"}
