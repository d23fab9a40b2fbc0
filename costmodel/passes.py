"""The passes of a micro-batch: layers and ends of the pipeline -> seconds of each stage, of the slowest and of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel import compute, schedule, traffic
from costmodel.compute import DENSE_AXES, WORK_AXES, Work
from costmodel.layouts import Column, Layouts, gather, is_partial, usual_set
from costmodel.problem import Problem
from costmodel.split import MOVED, SET, StageTable, own_set
from costmodel.traffic import LayerTraffic

LAYER_AXES = (*WORK_AXES, "recompute", "schedule")
"""Axes that a layer's time depends on (of the schedule, whether it is DualPipe)."""
END_AXES = (*DENSE_AXES, "sequence_parallel")
"""Axes that the embedding, the head and a multi-token prediction's projection depend on."""
HEAD = ("mtp", "head", MOVED)
"""What lies behind the last stage's layers."""
SEND_AXES = (*DENSE_AXES, "pp", "dp", "rank_order")
"""Axes that a hop of the pipeline depends on."""


@dataclass(frozen=True, slots=True)
class Part:
    """One layer, or one end of the pipeline, per micro-batch: rows of seconds by column."""

    passes: Column
    """forward, backward, and the weight-gradient part of the backward pass; shape (3, N)"""
    terms: Column
    """estimate.PASSES, shape (8, N); (0, N) if they are not asked for"""

    def whole(self) -> Part:
        """Without the terms."""
        return Part(self.passes, self.terms[:0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """A micro-batch on the stages of a pipeline, seconds; needs neither vpp, zero_stage nor dp_shard."""

    micro_batches: Column
    slowest: Column
    """kind of the slowest stage"""
    own: Column
    """on it: forward, backward, and the weight-gradient part of the backward pass; shape (3, N)"""
    waits: schedule.Waits
    """of a step"""
    work: Column
    """all micro-batches on the slowest stage"""
    terms: Column
    """estimate.PASSES, which these add up to, shape (8, N); (0, N) if they are not asked for"""
    send: Column
    """activations handed to the next stage"""


def passes_of(
    problem: Problem,
    layouts: Layouts,
    stages: StageTable,
    parts: dict[str, Part] | None = None,
    schedules: Column | None = None,
) -> Passes:
    """The passes of one micro-batch on the slowest stage, and what it waits for; `parts` if they are known, and the
    `schedules` to look for if they are not the rows' own."""
    layouts = stages.told(layouts)
    dual, some = schedule.is_dual(layouts), layouts.recompute_layers
    rows = stages.rows(layouts)
    parts = parts or gather(*distinct_parts(problem, layouts, stages))
    partial = any(name.endswith(SET) for name in parts)
    ranks = (layouts.micro_batch * layouts.dp).astype(np.float64)
    seen = _Stages(len(layouts))
    for number in stages.present(layouts):
        kind = stages.kind(number, rows) | (stages.some(number, rows, some) if partial else {})
        seen.add(number, _held(parts, kind, dual), kind, dual)
    place = rows * stages.kinds + seen.slowest
    stage = {name: values.take(place) for name, values in stages.columns.items()}
    if partial:
        stage |= stages.some(seen.slowest, rows, some)
    micro_batches = float(problem.workload.global_batch) / ranks
    work = micro_batches * (seen.own[0] + seen.own[1])
    kinds = (np.stack(part) for part in (seen.each, seen.through, seen.later))
    path = schedule.Path(micro_batches, layouts.pp.astype(np.float64), *kinds)
    beside = {name: parts[name].passes for name in HEAD if name in parts}
    head = _weighted({name: kind[name] for name in beside}, beside)
    return Passes(
        micro_batches=micro_batches,
        slowest=seen.slowest,
        own=seen.own,
        waits=path.waits(layouts.schedule if schedules is None else schedules, work, head[0] + head[1]),
        work=work,
        terms=micro_batches * _on_rank(parts, stage, dual, "terms"),
        send=layouts.once(SEND_AXES, lambda few: traffic.pipeline_send(problem, few)),
    )


class _Stages:
    """The kinds of stage in their order, the slowest of them, and the sums over the stages; seconds per micro-batch."""

    def __init__(self, rows: int) -> None:
        self.own, self.whole = np.zeros((3, rows)), np.zeros(1)
        self.busy: Column = np.full(rows, -1.0)
        self.slowest: Column = np.zeros(rows, dtype=np.int64)
        self.each, self.through, self.later = list[Column](), list[Column](), list[Column]()

    def add(self, number: int, held: Column, kind: dict[str, Column], dual: Column) -> None:
        """Account for the next kind of stage; a DualPipe rank gives each of its two half of the micro-batches."""
        passes = held if len(held) == 3 else (held[:3] + held[3:]) * (1.0 - 0.5 * dual)
        busy = passes[0] + passes[1]
        self.whole = self.whole + kind["count"] * held
        self.each.append(held)
        self.through.append(self.whole)
        self.later.append(np.broadcast_to(kind["later"], busy.shape))
        slower = busy > self.busy
        self.slowest = np.where(slower, number, self.slowest)
        self.busy = np.maximum(self.busy, busy)
        self.own = np.where(slower, passes, self.own)


def unit_passes(problem: Problem, layout: Layouts, extras: Sequence[str]) -> dict[str, tuple[float, float, float]]:
    """Seconds of a micro-batch's forward, backward and weight-gradient pass through a unit of what stages hold, by its
    name in OWN or `extras`, for the one row of `layout`."""
    parts = parts_of(problem, layout, extras)
    return {name: tuple(part.passes[:, 0].tolist()) for name, part in parts.items()}


def distinct_parts(problem: Problem, layouts: Layouts, stages: StageTable) -> tuple[dict[str, Part], Column]:
    """What `parts_of` gives for each combination of what it needs, and each row's place among these."""
    some = is_partial(layouts)
    first, at = layouts.distinct(LAYER_AXES, some.astype(np.int64))
    few = layouts.take(first).only((*LAYER_AXES, "recompute_layers"))
    return parts_of(problem, few, (*stages.extras, *own_set(problem.model, some))), at


def parts_of(problem: Problem, layouts: Layouts, extras: Sequence[str]) -> dict[str, Part]:
    """Layers, ends and `extras` by their name in a StageTable; needs LAYER_AXES, and whether recompute_layers is 0."""
    model, kinds = problem.model, {"dense": problem.model.dense_layers > 0, "moe": problem.model.is_moe}
    usual = replace(layouts, recompute=usual_set(layouts))
    parts = {kind: _layer(problem, usual, moe=kind == "moe") for kind, present in kinds.items() if present}
    parts |= layouts.once(END_AXES, lambda few: _ends(problem, few))
    if model.mtp_layers:
        last = parts["moe" if model.layer_is_moe[-1] else "dense"]
        head, projection = parts["head"], parts.pop("projection")
        parts["mtp"] = Part(last.passes + head.passes + projection.passes, last.terms + head.terms + projection.terms)
    for name in extras:
        parts[name] = parts["head"] if name == MOVED else _instead(problem, layouts, parts, name)
    return parts


def _instead(problem: Problem, layouts: Layouts, parts: dict[str, Part], name: str) -> Part:
    """What a layer that another recompute set computes again (`KIND:CODE`, `KIND:set`) takes more than a usual one."""
    kind, code = name.split(":")
    codes = layouts.recompute if code == SET else np.full_like(layouts.recompute, int(code))
    other = _layer(problem, replace(layouts, recompute=codes), moe=kind == "moe")
    return Part(other.passes - parts[kind].passes, other.terms - parts[kind].terms)


def _ends(problem: Problem, layouts: Layouts) -> dict[str, Part]:
    """What a pipeline's first and last stage have beside layers; needs END_AXES."""
    nothing = traffic.no_traffic(layouts)
    parts = {
        "head": _part(compute.head_work(problem, layouts), traffic.head_traffic(problem, layouts)),
        "embedding": _part(compute.embedding_work(problem, layouts), nothing),
    }
    if problem.model.mtp_layers:
        parts["projection"] = _part(compute.mtp_projection(problem, layouts), nothing)
    return parts


def _layer(problem: Problem, layouts: Layouts, *, moe: bool) -> Part:
    work = compute.layer_work(problem, layouts, moe=moe)
    sent = traffic.layer_traffic(problem, layouts, work, moe=moe)
    return _part(compute.wait_for_host(problem, layouts, work, sent.forward, sent.backward), sent)


def _part(work: Work, sent: LayerTraffic) -> Part:
    forward = work.forward_total + sent.forward
    backward = work.backward_total + sent.backward
    terms = (
        work.forward + work.dgrad + work.wgrad,
        work.attention_forward + work.attention_backward,
        work.elementwise_forward + work.elementwise_backward,
        work.gaps_forward + work.gaps_backward,
        work.recompute,
        sent.tp_forward + sent.tp_backward,
        sent.cp_forward + sent.cp_backward,
        sent.ep_forward + sent.ep_backward,
    )
    return Part(np.stack([forward, backward, work.wgrad]), np.stack(terms))


def _on_rank(parts: dict[str, Part], kind: dict[str, Column], dual: Column, field_name: str) -> Column:
    """Seconds of one micro-batch on a rank; a DualPipe rank gives each of its two stages half of the micro-batches."""
    share = 1.0 - 0.5 * dual if dual.any() else np.ones(1)
    counts = {name: (kind[name] + kind[f"mirror_{name}"]) * share for name in parts}
    return _weighted(counts, {name: getattr(part, field_name) for name, part in parts.items()})


def _held(parts: dict[str, Part], kind: dict[str, Column], dual: Column) -> Column:
    """Seconds of one micro-batch on a stage, shape (3, N), and behind it on its rank's second where a rank has one."""
    passes = {name: part.passes for name, part in parts.items()}
    own = _weighted({name: kind[name] for name in parts}, passes)
    if not dual.any():
        return own
    return np.concatenate([own, _weighted({name: kind[f"mirror_{name}"] for name in parts}, passes)])


def _weighted(counts: dict[str, Column], columns: dict[str, Column]) -> Column:
    """The sum of columns (K, N), each so many times; in passing over what counts 0 nothing is lost."""
    total: Column = np.zeros(1)
    for name, column in columns.items():
        if column.size and counts[name].any():
            total = total + counts[name] * column
    return total if total.ndim > 1 else np.zeros_like(next(iter(columns.values())))
