"""One layout in six steps: fit check, TP, PP, DP, communication, memory verification."""

from __future__ import annotations

from dataclasses import dataclass, fields

from costmodel import params
from costmodel.estimate import Estimate, estimate
from costmodel.layouts import SCHEDULES, Column, Layouts
from costmodel.problem import DTYPE_BYTES, Problem
from hardware.units import format_bytes
from search.rule import violations
from search.rules import rules
from search.space import SearchSpace

TRAFFIC = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_send", "data_parallel")
FORMULAS = {
    "tensor_parallel": "collectives of 2 b s h / CP bytes in each layer",
    "context_parallel": "CP - 1 hops with the keys and values of b s / CP tokens",
    "expert_parallel": "b s / (CP TP) tokens to k experts and back in each MoE layer",
    "pipeline_send": "2 b s h / CP bytes a stage boundary and micro-batch",
    "data_parallel": "gradients and weights of the stage over the shard group",
    "optimizer": "bytes of the states / memory bandwidth",
}
BUBBLE = {
    "1f1b": "(PP - 1)(F + B)",
    "interleaved": "(PP - 1)(F + B) / VPP",
    "zero-bubble": "(PP - 1)(F + B - 2 W)",
    "dualpipe": "(PP / 2 - 1)(F&B + B - 3 W)",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure in `unit` (SI): the estimate's, and the hand formula's beside it where there is one."""

    name: str
    formula: str
    model: float
    unit: str
    why: str
    hand: float | None = None
    corrected: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One of the six steps, with its verdict in one line."""

    name: str
    verdict: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A layout (a table of one row), its estimate, the rules it breaks and the six steps."""

    problem: Problem
    layout: Layouts
    cost: Estimate
    layers: tuple[int, ...]
    broken: tuple[tuple[str, str], ...]
    place: tuple[int, int] | None = None

    @property
    def feasible(self) -> bool:
        """Whether the layout keeps every rule, memory included."""
        return not self.broken

    @property
    def steps(self) -> tuple[Step, ...]:
        """The six steps in order."""
        return (_fit(self), _tensor(self), _pipeline(self), _data(self), _communication(self), _memory(self))

    def axis(self, name: str) -> int:
        """The value of an axis."""
        return int(getattr(self.layout, name)[0])

    def memory(self, term: str) -> float:
        """A term of memory in bytes."""
        return float(getattr(self.cost.memory, term)[0])

    def time(self, term: str) -> float:
        """A term of the step time in seconds."""
        return float(getattr(self.cost.time, term)[0])


def explain(problem: Problem, layout: Layouts, space: SearchSpace, place: tuple[int, int] | None = None) -> Explanation:
    """Explain the one row of `layout`; `space` gives the rules, `place` its rank and among how many."""
    cost = estimate(problem, layout)
    pp = int(layout.pp[0])
    row: dict[str, int] = layout.row(0) | {"memory_headroom": cost.memory_headroom[0]}
    return Explanation(
        problem=problem,
        layout=layout,
        cost=cost,
        layers=problem.split([pp]).layers[pp],
        broken=tuple(violations(rules(problem, space), row)),
        place=place,
    )


def to_json(it: Explanation) -> dict[str, object]:
    """The documented object of `explain --json`, in SI units."""
    model, cost = it.problem.model, it.cost
    return {
        "model": {"parameters": params.total(model), "active_parameters": params.active(model)},
        "feasible": it.feasible,
        "violations": [{"rule": rule, "because": because} for rule, because in it.broken],
        "place": it.place and dict(zip(("rank", "of"), it.place, strict=True)),
        "layers_per_stage": list(it.layers),
        **{name: float(column[0]) for name, column in headline(cost).items()},
        "memory_terms": {term.name: it.memory(term.name) for term in fields(cost.memory)},
        "time_terms": {term.name: it.time(term.name) for term in fields(cost.time)},
        "steps": [_step_json(step) for step in it.steps],
    }


def _step_json(step: Step) -> dict[str, object]:
    keys = ("name", "formula", "hand", "corrected", "model", "unit", "why")
    rows = [{key: getattr(row, key) for key in keys} for row in step.rows]
    return {"name": step.name, "verdict": step.verdict, "rows": rows}


def headline(cost: Estimate) -> dict[str, Column]:
    """The results that stand above the terms, under the names of the Parquet columns."""
    return {
        "step_time": cost.step_time,
        "mfu": cost.mfu,
        "tokens_per_second_per_gpu": cost.tokens_per_second_per_gpu,
        "communication_overhead": cost.communication_overhead,
        "memory": cost.memory_total,
        "memory_headroom": cost.memory_headroom,
    }


def _fit(it: Explanation) -> Step:
    work, gpu = it.problem.workload, it.problem.cluster.gpu
    count = float(params.total(it.problem.model))
    each = 2.0 + DTYPE_BYTES[work.grad_dtype] + 4.0 + 2.0 * DTYPE_BYTES[work.moments_dtype]
    needed = each * count / gpu.usable_memory
    kinds = f"{work.grad_dtype} gradients, fp32 master weights, two {work.moments_dtype} moments"
    if needed <= 1.0:
        verdict = f"the states fill {needed:.0%} of one GPU, so dividing them is a choice"
    else:
        verdict = f"the states fill {needed:.1f} GPUs, so they must be divided"
    rows = (
        Row("parameters N", "sum over all tensors", count, "1", "what the checkpoint holds"),
        Row("weights", "2 N", 2.0 * count, "B", "two bytes a parameter"),
        Row("states", f"{each:g} N", each * count, "B", f"2-byte weights, {kinds}"),
        Row("usable memory", "memory less the driver's", gpu.usable_memory, "B", f"what a job gets on {gpu.name}"),
    )
    return Step("fit check", verdict, rows)


def _tensor(it: Explanation) -> Step:
    model, level, tp = it.problem.model, it.problem.cluster.levels[0], it.axis("tp")
    if tp == 1:
        verdict = "no tensor parallelism"
    elif level.size == 0 or tp <= level.size:
        verdict = f"TP {tp} stays inside the {level.name} domain of {level.size} GPUs"
    else:
        verdict = f"TP {tp} leaves the {level.name} domain of {level.size} GPUs, collectives cross the network"
    kv_heads, stage = max(1.0, model.kv_heads / tp), "on the stage that needs most memory, after ZeRO and EP"
    rows = (
        Row("heads a GPU", "a / TP", model.heads / tp, "1", f"{model.heads} query heads are split"),
        Row("KV heads a GPU", "max(1, a_kv / TP)", kv_heads, "1", "below one a GPU they are replicated"),
        Row("weights a GPU", "2 N_stage / TP", it.memory("weights"), "B", stage),
        _time_row(it, "tensor_parallel"),
    )
    return Step("TP", verdict, rows)


def _pipeline(it: Explanation) -> Step:
    batches = it.problem.workload.global_batch / (it.axis("dp") * it.axis("micro_batch"))
    pp, vpp, bubble = it.axis("pp"), it.axis("vpp"), it.time("bubble")
    share, schedule = bubble / float(it.cost.step_time[0]), SCHEDULES[it.axis("schedule")]
    verdict = "no pipeline, no bubble"
    if pp > 1:
        virtual = f" of {vpp} virtual stages each" if vpp > 1 else ""
        verdict = f"{pp} stages{virtual}, {schedule}: the bubble takes {share:.1%} of the step"
    split = "min-max split of the layers' FLOPs"
    rows = (
        Row("layers, fewest", split, min(it.layers), "1", "a stage with embedding or head gets fewer"),
        Row("layers, most", split, max(it.layers), "1", "the slowest stage sets the pace"),
        Row("micro-batches m", "global batch / (DP x b)", batches, "1", "more of them hide more of the bubble"),
        Row("bubble", BUBBLE[schedule], bubble, "s", "F, B, W: forward, backward, its weight part, on a stage"),
        Row("bubble share", "bubble / step time", share, "1", "of the whole step"),
    )
    return Step("PP", verdict, rows)


def _data(it: Explanation) -> Step:
    stage, dp, shard = it.axis("zero_stage"), it.axis("dp"), it.axis("dp_shard")
    verdict = f"{dp} replicas, ZeRO {stage} over {shard} ranks" if stage else f"{dp} replicas, states not sharded"
    if dp * it.axis("cp") == 1:
        verdict = "one replica, nothing to reduce"
    gradients, optimizer = it.memory("gradients"), it.memory("optimizer")
    rows = (
        Row("DP", "GPUs / (TP x PP x CP)", dp, "1", "what the other degrees leave"),
        Row("shard group", "DP x CP or a part of it", shard, "1", "ranks over which ZeRO divides the states"),
        Row("gradients a GPU", "of the stage / group", gradients, "B", "divided from ZeRO 2 on"),
        Row("optimizer a GPU", "of the stage / group", optimizer, "B", "divided from ZeRO 1 on"),
        _time_row(it, "data_parallel"),
        _time_row(it, "optimizer"),
    )
    return Step("DP", verdict, rows)


def _communication(it: Explanation) -> Step:
    total, share = float(it.cost.time.communication[0]), float(it.cost.communication_overhead[0])
    most = max(TRAFFIC, key=it.time).replace("_", " ")
    verdict = f"{share:.1%} of the step is exposed communication" + f", most of it {most}" * (total > 0)
    rows = (
        *(_time_row(it, term) for term in TRAFFIC),
        Row("exposed", "sum of the above", total, "s", "what overlap does not hide"),
        Row("overhead", "exposed / step time", share, "1", "communication overhead"),
    )
    return Step("communication", verdict, rows)


def _memory(it: Explanation) -> Step:
    usable, need = it.problem.cluster.gpu.usable_memory, float(it.cost.memory_total[0])
    verdict = f"needs {format_bytes(need)} of {format_bytes(usable)}: "
    verdict += "it fits" if need <= usable else f"{format_bytes(need - usable)} too much"
    why = "on the stage that needs most"
    rows = (
        *(
            Row(term.name.replace("_", " "), term.metadata["meaning"], it.memory(term.name), "B", why)
            for term in fields(it.cost.memory)
        ),
        Row("memory", "sum of the above", need, "B", "what must fit"),
        Row("headroom", "usable memory - memory", usable - need, "B", "negative when it does not fit"),
    )
    return Step("memory verification", verdict, rows)


def _time_row(it: Explanation, term: str) -> Row:
    meaning = next(part.metadata["meaning"] for part in fields(it.cost.time) if part.name == term)
    return Row(term.replace("_", " "), FORMULAS[term], it.time(term), "s", meaning)
