"""The six steps of `explain`: fit check, TP, PP, DP, communication, memory verification, each with its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from costmodel import flops, napkin_rows, params, traffic
from costmodel.layouts import SCHEDULES
from costmodel.napkin import Figures
from costmodel.problem import DTYPE_BYTES
from hardware.units import format_bytes
from search.fitting import fewest, largest_micro_batch
from search.formulas import BUBBLE, Stage
from search.rules_memory import kept_free
from search.scored import Row, Scored, Step
from search.steps_data import Made, data_step, states_said, time_row

TRAFFIC = ("tensor_parallel", "context_parallel", "expert_parallel", "pipeline_send", "data_parallel")
MICRO = "of a micro-batch, on the slowest stage"


def steps(it: Scored) -> tuple[Step, ...]:
    """The six steps in order; rows that nothing has a figure for are left out."""
    hand = napkin_rows.figures(it.problem, it.layout)
    made = (_fit, _tensor, _pipeline, data_step, _communication, _memory)
    return tuple(
        Step(name, verdict, tuple(_joined(rows, hand[name])))
        for name, (verdict, rows) in zip(hand, (step(it) for step in made), strict=True)
    )


def _joined(rows: Iterator[Row], hand: Figures) -> Iterator[Row]:
    """The rows with the hand figures of their name beside them."""
    for row in rows:
        figure = hand.get(row.name)
        if figure:
            found = replace(row, hand=figure.hand, corrected=figure.corrected, formula=figure.formula)
            found = replace(found, model_formula=row.formula if row.model is not None else "")
            yield replace(found, why=figure.why or row.why, noted=bool(figure.why))
        elif row.model is not None:
            yield replace(row, model_formula=row.formula)


def _fit(it: Scored) -> Made:
    work, gpu = it.problem.workload, it.problem.cluster.gpu
    count = float(params.total(it.problem.model))
    each = 2.0 + DTYPE_BYTES[work.grad_dtype] + 4.0 + 2.0 * DTYPE_BYTES[work.moments_dtype]
    needed = each * count / gpu.usable_memory
    verdict = f"the states fill {needed:.1f} GPUs, so they must be divided"
    if needed <= 1.0:
        verdict = f"the states fill {needed:.0%} of one GPU, so dividing them is a choice"
    return verdict, _fit_rows(it, count, each)


def _fit_rows(it: Scored, count: float, each: float) -> Iterator[Row]:
    problem, work, gpu = it.problem, it.problem.workload, it.problem.cluster.gpu
    model, active = problem.model, float(params.active(problem.model))
    kinds = f"{work.grad_dtype} gradients, fp32 master weights, two {work.moments_dtype} moments"
    yield Row("parameters N", "sum over all tensors", count, "1", "what the checkpoint holds")
    if model.mtp_layers:
        mtp, what = float(params.mtp(model)), "counted in memory and time, and in the FLOPs of MFU; not in N"
        yield Row("MTP parameters", "each depth: a layer, a projection, norms", mtp, "1", what)
    if model.is_moe:
        yield Row("active parameters", "", active, "1", "with the input embedding")
        yield Row(
            "routed parameters", f"{3 if model.gated_mlp else 2} h f E x MoE layers", it.routed, "1", "of all experts"
        )
        yield Row("parameters not routed", "N - routed", count - it.routed, "1", "on every expert rank")
        yield Row("experts a token", "k", model.experts_per_token, "1", "that the router chooses")
    yield Row("all weights", "2 N", 2.0 * count, "B", "two bytes a parameter")
    adam = each - 2.0 - DTYPE_BYTES[work.grad_dtype]
    yield Row("optimizer states", f"{adam:g} N", adam * count, "B", "master and moments")
    yield Row("states", f"{each:g} N", each * count, "B", f"2-byte weights, {kinds}")
    yield Row(
        "states over all GPUs",
        f"{each:g} N / GPUs",
        each * count / work.gpus,
        "B",
        "if every state were sharded over all",
    )
    yield Row("usable memory", "memory less the driver's", gpu.usable_memory, "B", f"what a job gets on {gpu.name}")
    yield Row(
        "weights over memory",
        "2 N / usable memory",
        2.0 * count / gpu.usable_memory,
        "1",
        "GPUs that the weights alone fill",
    )
    yield from _compute_rows(it, active)


def _compute_rows(it: Scored, active: float) -> Iterator[Row]:
    problem, work, model = it.problem, it.problem.workload, it.problem.model
    per_token = flops.step_flops_per_token(model, work.seq_len, work.flops_convention, active)
    yield Row("peak", "", problem.peak * work.gpus, "FLOP/s", "dense")
    yield Row(
        "compute a step",
        f"{work.flops_convention} FLOPs of a token x tokens",
        per_token * problem.tokens,
        "FLOP",
        "attention included, recomputation not",
    )


def _tensor(it: Scored) -> Made:
    level, tp = it.problem.cluster.levels[0], it.axis("tp")
    if tp == 1:
        return "no tensor parallelism", _tensor_rows(it)
    if level.size == 0 or tp <= level.size:
        return f"TP {tp} stays inside the {level.name} domain of {level.size} GPUs", _tensor_rows(it)
    return f"TP {tp} leaves the {level.name} domain of {level.size} GPUs, collectives cross the network", _tensor_rows(
        it
    )


def _tensor_rows(it: Scored) -> Iterator[Row]:
    model, tp, layers = it.problem.model, it.axis("tp"), max(it.layers)
    least, weights = fewest(it, "tp"), 2.0 * params.total(model)
    once = it.time("tensor_parallel") / it.micro_batches
    yield Row("heads a GPU", "a / TP", model.heads / tp, "1", f"{model.heads} query heads are split")
    yield Row(
        "KV heads a GPU", "max(1, a_kv / TP)", max(1.0, model.kv_heads / tp), "1", "below one they are replicated"
    )
    yield Row("TP argument", "", None, "1", "GPUs that the weights fill to 0.7")
    yield Row("min TP", "", least, "1", "the fewest at which this layout fits, DP taking up the rest")
    yield Row("weights at min TP", "2 N / T_min", weights / least if least else None, "B")
    yield Row("weights at this TP", "2 N / T", weights / tp, "B", "before PP, EP and ZeRO divide them")
    if model.is_moe:
        yield Row(
            "parameters an expert",
            f"{3 if model.gated_mlp else 2} h f",
            params.counts(model).expert,
            "1",
            "of one layer",
        )
    yield Row("NVLink bandwidth", "", it.problem.cluster.levels[0].bandwidth, "B/s", "one way")
    if tp > 1:
        tokens = it.axis("micro_batch") * it.problem.workload.seq_len / it.axis("cp")
        count = 6 if it.problem.profile.recompute[it.axis("recompute")].full and not it.axis("recompute_layers") else 4
        yield Row("TP message", "", 2.0 * tokens * model.hidden, "B", MICRO)
        yield Row("all-reduces a layer", "", count, "1", "or as many pairs of gather and scatter")
        yield Row("TP all-reduce a layer", "TP total / layers of the stage, exposed", once / layers, "s", MICRO)
        yield Row("TP total", "tensor parallel / m, exposed", once, "s", MICRO)
        yield Row("TP total, all layers", "", once / layers * model.layers if it.axis("pp") > 1 else None, "s", MICRO)
        yield time_row(it, "tensor_parallel")


def _pipeline(it: Scored) -> Made:
    pp, vpp, schedule = it.axis("pp"), it.axis("vpp"), SCHEDULES[it.axis("schedule")]
    share = it.time("bubble") / float(it.cost.step_time[0])
    verdict = "no pipeline, no bubble"
    if pp > 1:
        virtual = f" of {vpp} virtual stages each" if vpp > 1 else ""
        verdict = f"{pp} stages{virtual}, {schedule}"
        verdict += f": the bubble takes {share:.1%} of the step" if it.fits else ""
    return verdict, _pipeline_rows(it, share, schedule)


def _pipeline_rows(it: Scored, share: float, schedule: str) -> Iterator[Row]:
    pp, bubble, split = it.axis("pp"), it.time("bubble"), _split(it)
    weights = 2.0 * params.total(it.problem.model) / (it.axis("tp") * pp)
    least = fewest(it, "pp")
    yield Row("PP argument", "", None, "1", "stages that the weights fill to 0.7")
    yield Row("min PP", "", least, "1", "the fewest at which this layout fits, DP taking up the rest")
    yield Row("weights of a stage", "2 N / (T P)", weights, "B", "the mean, before EP and ZeRO divide them")
    yield Row("layers, fewest", split, min(it.layers), "1", "a stage with embedding or head gets fewer")
    yield Row("layers, most", split, max(it.layers), "1", "the slowest stage sets the pace")
    yield Row("micro-batches m", "global batch / (DP x b)", it.micro_batches, "1", "more hide more of the bubble")
    if pp > 1:
        send = float(traffic.pipeline_send(it.problem, it.layout)[0])
        yield Row("bubble", BUBBLE[schedule], bubble, "s", "F, B, W: forward, backward, its weight part")
        yield Row(
            "bubble over ideal",
            "bubble / (step time - bubble)",
            share / (1.0 - share),
            "1",
            "of the time without a bubble",
        )
        yield Row("bubble share", "bubble / step time", share, "1", "of the whole step")
        sent = "2 b s h / CP" + " / TP" * it.axis("sequence_parallel") + " over the link between stages"
        yield Row("P2P a micro-batch", sent, send, "s", "one way, what overlap hides included")


def _split(it: Scored) -> str:
    """Where the layers of each stage come from."""
    return "as balanced by CP-SAT" if it.given else "min-max split of the layers' FLOPs"


def _communication(it: Scored) -> Made:
    total, share = float(it.cost.time.communication[0]), float(it.cost.communication_overhead[0])
    most = max(TRAFFIC, key=it.time).replace("_", " ")
    verdict = f"{share:.1%} of the step is exposed communication" + f", most of it {most}" * (total > 0)
    verdict = verdict if it.fits else "what it would cost is not said of a layout that does not fit"
    return verdict, _communication_rows(it, total, share)


def _communication_rows(it: Scored, total: float, share: float) -> Iterator[Row]:
    busy = (it.time("gemm") + it.time("attention") + it.time("elementwise")) * 2.0 / 3.0 + it.time("recompute")
    exposed = it.time("tensor_parallel") + it.time("pipeline_send")
    model, work, mfu = it.problem.model, it.problem.workload, float(it.cost.mfu[0])
    yield from (time_row(it, term) for term in TRAFFIC)
    yield Row("exposed", "sum of the above", total, "s", "what overlap does not hide")
    if not model.is_moe:
        yield Row(
            "backward a micro-batch",
            "(2 / 3 compute + recompute) / m",
            busy / it.micro_batches,
            "s",
            "two thirds of compute, and recomputation",
        )
        if exposed:
            yield Row(
                "exposed a micro-batch",
                "(tensor parallel + pipeline send) / m",
                exposed / it.micro_batches,
                "s",
                "TP and P2P",
            )
            yield Row("efficiency", "1 - exposed / step time", 1.0 - share, "1", "of the whole step")
    yield Row("communication overhead", "exposed / step time", share, "1", "communication overhead")
    yield Row("MFU", "model FLOPs / (step time x peak)", mfu, "1", f"FLOPs by the convention {work.flops_convention}")
    if not model.is_moe:
        yield Row("MFU, at least", "", mfu, "1", "of the model FLOPs")
        yield Row("MFU, at most", "", mfu, "1", "of the model FLOPs")
    else:
        active = float(params.active(model))
        counted, whole = (
            flops.step_flops_per_token(model, work.seq_len, convention, active)
            for convention in (work.flops_convention, "full")
        )
        yield Row("MFU, non-causal", "the whole attention square", mfu * whole / counted, "1", "as PaLM counts")


def _memory(it: Scored) -> Made:
    usable, need = it.problem.cluster.gpu.usable_memory, float(it.cost.memory_total[0])
    stage = Stage.of(it.problem, it.layout, it.stages).name
    limit, free = it.problem.memory_limit, usable - it.problem.workload.headroom
    verdict = f"needs {format_bytes(need)} of {format_bytes(usable)}{kept_free(it.problem, need)} on {stage}: "
    verdict += "it fits" if need <= limit else f"{format_bytes(need - (limit if need <= free else free))} too much"
    return verdict, _memory_rows(it, need, usable, f"on {stage}")


def _memory_rows(it: Scored, need: float, usable: float, why: str) -> Iterator[Row]:
    states, (formulas, said) = sum(map(it.memory, ("weights", "gradients", "optimizer"))), states_said(it)
    for term in fields(it.cost.memory):
        formula, reason = formulas.get(term.name, term.metadata["meaning"]), said.get(term.name, why)
        yield Row(term.name.replace("_", " "), formula, it.memory(term.name), "B", reason)
        if term.name == "logits":
            yield Row("logits, eager loss", "", None, "B")
    yield Row("memory", "sum of the above", need, "B", "what must fit")
    yield Row("memory, fp32 gradients", "", None, "B", "as the model has them")
    yield Row("headroom", "usable memory - memory", usable - need, "B", "negative when it does not fit")
    if it.problem.model.is_moe:
        dense, expert = it.held
        yield Row("shared weights a GPU", "2 (N - routed) / (TP PP)", 2.0 * dense, "B", "the mean over the stages")
        yield Row("expert parameters a GPU", "routed / (EP ETP PP)", expert, "1", "the mean over the stages")
        yield Row("expert weights a GPU", "2 routed / (EP ETP PP)", 2.0 * expert, "B", "the mean over the stages")
    yield Row("states a GPU", "weights + gradients + optimizer", states, "B", why)
    largest = largest_micro_batch(it)
    yield Row("largest micro-batch", "a power of two, at most 64", largest, "1", "that fits, all else equal")
