"""A layout -> the worked-examples chapter's figures for it, by step and row name; `explain` puts them beside its own.

The formulas are napkin.py's, a mixture of experts is in napkin_experts.py.
"""

from __future__ import annotations

import math

from costmodel import napkin, napkin_experts, params
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.napkin import Figure, Figures
from costmodel.napkin_job import Job
from costmodel.problem import DTYPE_BYTES, Problem
from hardware.units import format_seconds

MEASURED_FSDP = (0.33, 0.45)
"""MFU of 7B to 13B under FSDP on H100: torchtitan 33-39 %, llm-foundry 38-45 % (their benchmark pages)."""
EXPECTED = {"node": (0.45, 0.55), "tensor": (0.40, 0.50), "pipeline": (0.35, 0.45)}
"""MFU that the chapter expects of FSDP on a node, of TP beside DP, and of TP with PP."""


def figures(problem: Problem, layout: Layouts) -> dict[str, Figures]:
    """The chapter's figures for the one row of `layout`: by step of `explain`, then by row; SI units.

    A row that is missing has no formula in the chapter.
    """
    job = Job.of(problem, layout)
    found = {"fit check": _fit(job), "TP": _tensor(job), "PP": _pipeline(job), "DP": _data(job)}
    found |= {"communication": {}, "memory verification": {}}
    more = napkin_experts.figures(job) if problem.model.is_moe else _dense(job)
    return {step: rows | more.get(step, {}) for step, rows in found.items()}


def _dense(job: Job) -> dict[str, Figures]:
    return {
        "DP": _states(job) | (_traffic(job) if job.ranks > 1 else {}),
        "communication": _exposed(job) | _mfu(job),
        "memory verification": _memory(job),
    }


def _fit(job: Job) -> Figures:
    n, ratio = job.n, napkin.weights(job.n) / job.memory
    found = {
        "parameters N": Figure(n, "N"),
        "all weights": Figure(napkin.weights(n), "2 N"),
        "states": Figure(napkin.static_memory(n), "16 N"),
        "optimizer states": Figure(napkin.optimizer(n), "12 N"),
        "states over all GPUs": Figure(napkin.static_memory(n) / job.gpus, "16 N / GPUs"),
        "usable memory": Figure(napkin.USABLE * job.memory, "0.7 H"),
        "weights over memory": Figure(ratio, "2 N / H"),
        "peak": Figure(job.problem.cluster.gpu.peak["bf16"] * job.gpus, "peak x GPUs"),
        "compute a step": Figure(
            napkin.step_flops(napkin.nominal_active(job.model), job.problem.tokens), "6 N b_global s"
        ),
    }
    if ratio > 1.0:
        layer = params.layer(job.model, moe=job.model.is_moe)
        least = (napkin.weights(n) / job.gpus + 2.0 * napkin.weights(layer)) / job.memory
        why = "no reason for TP or PP by itself: ZeRO-3 holds 1 / GPUs of the weights and two layers gathered"
        found["weights over memory"] = Figure(ratio, "2 N / H", least, why)
    return found


def _tensor(job: Job) -> Figures:
    argument = napkin.tensor_degree(job.n, job.memory)
    least, rounded = math.ceil(argument), napkin.next_power_of_two(math.ceil(argument))
    smallest, formula = Figure(rounded, "ceil(2 N / (0.7 H))"), "as sold"
    if least != rounded:
        why = f"ceil({argument:.3g}) is {least}; {rounded} is the next power of two, a step that goes unsaid"
        smallest = Figure(rounded, smallest.formula, least, why)
    reached = napkin.ACHIEVED * job.nvlink / 1e9
    why = f"the figure sold is the sum of both directions; rings of NCCL reach {reached:.0f} GB/s one way"
    found = {
        "TP argument": Figure(argument, "2 N / (0.7 H)"),
        "min TP": smallest,
        "weights at min TP": Figure(napkin.weights(job.n, rounded), "2 N / T_min"),
        "weights at this TP": Figure(napkin.weights(job.n, job.tp), "2 N / T"),
        "NVLink bandwidth": Figure(2.0 * job.nvlink, formula, job.nvlink, why),
    }
    return found | (_tensor_traffic(job) if job.tp > 1 else {})


def _tensor_traffic(job: Job) -> Figures:
    printed, inside = napkin.message(job.tokens, job.model.hidden), job.tp <= job.domain
    reached = napkin.ACHIEVED * job.nvlink if inside else job.nic
    each = napkin.tensor_seconds(printed, 2.0 * job.nvlink)
    right = napkin.tensor_seconds_corrected(job.volume, job.tp, reached)
    switched = napkin.tensor_seconds_corrected(job.volume, job.tp, napkin.SWITCHED * job.nvlink)
    why = f"two all-reduces forward and two backward, (T - 1) / T of 2 V each, at {reached / 1e9:.0f} GB/s"
    total = why + (f"; {1e3 * job.layers * switched:.1f} ms where the switch reduces" if inside else "")
    found = {
        "TP message": Figure(printed, "2 b s h", job.volume, "the chapter takes MiB for MB"),
        "all-reduces a layer": Figure(2, "attention, MLP", 4, "the backward pass has as many; 6 with full recompute"),
        "TP all-reduce a layer": Figure(each, "2 (2 V / NVLink)", right, why),
        "TP total": Figure(job.layers * each, "layers of a stage x the above", job.layers * right, total),
    }
    if job.pp > 1:
        layers, stage = job.model.layers, f"{1e3 * job.layers * each:.1f} ms is one stage of {job.layers:g}"
        why = f"the corrected time of a layer, {layers} times; what is printed for all layers, {stage}"
        found["TP total, all layers"] = Figure(layers * each, "all layers x the above", layers * right, why)
    return found


def _pipeline(job: Job) -> Figures:
    argument, formula = napkin.pipeline_degree(job.n, job.memory, job.tp), "2 N / (0.7 H T)"
    found = {
        "PP argument": Figure(argument, formula),
        "min PP": Figure(max(1, math.ceil(argument)), f"ceil({formula})"),
        "weights of a stage": Figure(job.stage_weights, "2 N / (T P)"),
    }
    if job.case and job.case.pipeline_argument:
        why = f"a slip: {napkin.weights(job.n) / 1e9:g} / {napkin.USABLE * job.memory * job.tp / 1e9:g}"
        found["PP argument"] = Figure(job.case.pipeline_argument, formula, argument, why)
    return found | (_bubble(job) if job.pp > 1 else {})


def _bubble(job: Job) -> Figures:
    ideal, schedule = napkin.bubble(job.pp, job.micro_batches), SCHEDULES[job.schedule]
    printed = napkin.message(job.tokens, job.model.hidden)
    why = "(P - 1) / m is relative to the time without a bubble; of the step it is (P - 1) / (V m + P - 1)"
    if schedule in ("zero-bubble", "dualpipe"):
        why = f"that is of the step, and 1F1B's: {schedule} has less"
    sent = f"{job.volume / 1e6:.1f} MB, not {printed / 1e6:g}"
    sent += "; with sequence parallelism each TP rank sends 1 / T" if job.sequence_parallel and job.tp > 1 else ""
    return {
        "bubble over ideal": Figure(ideal, "(P - 1) / m"),
        "bubble share": Figure(ideal, "(P - 1) / m", napkin.bubble_share(job.pp, job.micro_batches, job.vpp), why),
        "P2P a micro-batch": Figure(
            napkin.send_seconds(printed, job.nic), "2 b s h / NIC", napkin.send_seconds(job.volume, job.nic), sent
        ),
    }


def _data(job: Job) -> Figures:
    found = {"DP": Figure(job.gpus / (job.tp * job.pp * job.cp), "GPUs / (T P)")}
    right, node = job.data_bandwidth_corrected, job.problem.cluster.gpus_per_node
    if not job.local and right < job.data_bandwidth:
        why = f"a data-parallel group has {right / job.nic:.0f} of the {node} NICs; the rest serve the other groups"
        found["node bandwidth"] = Figure(job.data_bandwidth, "NICs of a node", right, why)
    return found


def _states(job: Job) -> Figures:
    stage, zero = job.stage_weights, job.zero_stage
    shard = [job.dp_shard if zero >= least else 1 for least in (1, 2, 3)]
    over = [" / D" if zero >= least else "" for least in (1, 2, 3)]
    held = Figure(stage / shard[2], "2 N / (T P)" + over[2])
    if zero == 3 and job.pp > 1:
        why = f"PP divides them too, as it does the gradients: {stage / 1e9:.1f} GB / {job.dp_shard}"
        held = Figure(napkin.weights(job.n, job.tp) / job.dp_shard, "2 N / T / D", stage / job.dp_shard, why)
    return {
        "optimizer unsharded": Figure(napkin.optimizer(job.n, job.tp, job.pp), "12 N / (T P)"),
        "parameters a GPU": held,
        "gradients a GPU": Figure(stage / shard[1], "2 N / (T P)" + over[1]),
        "optimizer a GPU": Figure(napkin.optimizer(job.n, job.tp, job.pp, shard[0]), "12 N / (T P)" + over[0]),
    }


def _traffic(job: Job) -> Figures:
    bandwidth, link = job.data_bandwidth_corrected, "NVLink" if job.local else "node bandwidth"
    at = f"at {bandwidth / 1e9:.0f} GB/s, " + ("which rings reach one way" if job.local else "a group's NICs in a node")
    printed, formula = napkin.data_seconds(job.stage_weights, job.data_bandwidth), f"2 (2 N / (T P)) / {link}"
    right = napkin.data_seconds_corrected(job.stage_weights, job.ranks, bandwidth)
    twice = "; fp32 gradients take twice that" if job.problem.workload.grad_dtype == "fp32" else ""
    found = {"DP all-reduce": Figure(printed, formula, right, f"(D - 1) / D of two volumes {at}{twice}")}
    if job.zero_stage < 3:
        return found
    three = napkin.fsdp_seconds_corrected(job.n / (job.tp * job.pp), job.ranks, bandwidth)
    why = f"three volumes for every micro-batch, not two a step, {at}"
    found["ZeRO-3 volumes"] = Figure(2, "gather, scatter", 3, "the backward pass gathers the weights again")
    found["ZeRO-3 traffic"] = Figure(printed, formula, three, why)
    return found | (_without_sharding(job) if job.pp > 1 else {})


def _without_sharding(job: Job) -> Figures:
    """The pipeline that makes parameter sharding needless: ZeRO-1 states within 0.7 H on the same GPUs."""
    grad, pp = DTYPE_BYTES[job.problem.workload.grad_dtype], job.pp
    while job.gpus % (2 * pp * job.tp) == 0 and 2 * pp <= job.model.layers:
        pp *= 2
        dp = job.gpus / (job.tp * pp)
        states = job.n / (job.tp * pp) * (2.0 + grad + 12.0 / dp)
        if states <= napkin.USABLE * job.memory:
            why = f"ZeRO-3 is not mandatory: TP {job.tp}, PP {pp}, DP {dp:g} with ZeRO-1 holds all states"
            return {"states without ZeRO-3": Figure(2.0 * job.stage_weights, "4 N / (T P)", states, why)}
    return {}


def _exposed(job: Job) -> Figures:
    """Exposed communication of a micro-batch against its backward pass."""
    tokens, peak = job.tokens * job.cp, job.problem.cluster.gpu.peak["bf16"]
    right = napkin.backward_seconds(job.n, tokens, 0.5 * peak * job.tp * job.pp * job.cp)
    backward = job.case.backward if job.case and job.case.backward else right
    rows: Figures = {"backward a micro-batch": Figure(backward, "4 N b s at half of the peak")}
    if backward != right:
        why = f"4 N b s FLOPs of {tokens:.0f} tokens at half of the peak; the estimate names no batch"
        rows = {"backward a micro-batch": Figure(backward, "estimated", right, why)}
    parts = [_tensor_traffic(job)["TP total"]] if job.tp > 1 else []
    parts += [_bubble(job)["P2P a micro-batch"]] if job.pp > 1 else []
    if not parts:
        return rows
    exposed = math.fsum(part.hand or 0.0 for part in parts)
    more = math.fsum(part.corrected or 0.0 for part in parts)
    why = "as corrected above; what a step's all-reduce exposes comes on top"
    rows["exposed a micro-batch"] = Figure(exposed, "TP total" + " + P2P" * (job.pp > 1), more, why)
    return rows | _overhead(job, (backward, exposed), (right, more))


def _overhead(job: Job, hand: tuple[float, float], right: tuple[float, float]) -> Figures:
    """Efficiency and overhead from (backward, exposed) seconds of a micro-batch, as printed and as corrected."""
    share, kept = napkin.efficiency(*hand), napkin.efficiency(*right)
    why = f"from the corrected times, {format_seconds(right[0])} of backward and {format_seconds(right[1])} exposed"
    efficiency = Figure(share, "backward / (backward + exposed)", kept, why)
    if job.pp > 1:
        bubble = napkin.bubble_share(job.pp, job.micro_batches, job.vpp)
        why += f": {1.0 - kept:.1%}; with the bubble, {bubble:.1%} of the step, which the sum leaves out"
        kept *= 1.0 - bubble
    lost = Figure(1.0 - share, "exposed / (backward + exposed)", 1.0 - kept, why)
    return {"efficiency": efficiency, "communication overhead": lost}


def _mfu(job: Job) -> Figures:
    node = job.tp == job.pp == 1 and job.gpus <= job.domain
    low, high = job.case.mfu if job.case else EXPECTED["pipeline" if job.pp > 1 else "node" if node else "tensor"]
    if not node:
        return {"MFU, at least": Figure(low, "expected"), "MFU, at most": Figure(high, "expected")}
    why = "7B to 13B under FSDP on H100: torchtitan reports 33-39 %, llm-foundry 38-45 %"
    return {
        "MFU, at least": Figure(low, "expected", MEASURED_FSDP[0], why),
        "MFU, at most": Figure(high, "expected", MEASURED_FSDP[1], why),
    }


def _memory(job: Job) -> Figures:
    """The chapter's table, its sum, and what it leaves out: logits, and the gathered layer outside of TP and PP."""
    states = _states(job)
    rows = {name: states[f"{held} a GPU"] for name, held in (("weights", "parameters"), ("gradients", "gradients"))}
    rows |= {"optimizer": states["optimizer a GPU"], "buffers": Figure(napkin.BUFFERS, "3 GB")}
    if job.full:
        rows["activations"] = _activations(job)
    layer = napkin.gathered_layer(params.layer(job.model, moe=False), job.tp)
    if job.zero_stage == 3 and job.tp * job.pp > 1:
        rows["gathered"] = Figure(layer, "2 P_layer / T")
    elif job.zero_stage == 3:
        rows["gathered"] = Figure(
            None, "2 P_layer / T", layer, "one layer is gathered at a time; the sum leaves it out"
        )
    logits = napkin.FUSED_LOGIT * job.tokens * job.model.vocab / job.tp
    return rows | _sums(job, rows, logits) | _logits(job, logits)


def _sums(job: Job, rows: Figures, logits: float) -> Figures:
    """The sum of the rows as printed and as corrected, and what fp32 gradients make of both."""
    total, gradients = math.fsum(row.hand or 0.0 for row in rows.values()), rows["gradients"].hand or 0.0
    printed = job.full and job.case and job.case.micro_batch == job.micro_batch and job.case.keeps_activations
    kept = ("activations",) if printed else ()
    changed = {name: row.corrected for name, row in rows.items() if row.corrected is not None and name not in kept}
    right = total + math.fsum(value - (rows[name].hand or 0.0) for name, value in changed.items())
    parts = [f"{name} {value / 1e9:.3g} GB" for name, value in changed.items()]
    if job.pp == 1 and not kept:
        right, parts = right + logits, [*parts, f"logits {logits / 1e9:.3g} GB"]
    wide = job.problem.workload.grad_dtype == "fp32"
    if whole := wide and job.zero_stage < 2:
        right, parts = right + gradients, [*parts, f"fp32 gradients {2.0 * gradients / 1e9:.3g} GB"]
    why = "with " + ", ".join(parts) + "; the other rows as printed"
    if kept:
        why += f", also the activations of about {(rows['activations'].hand or 0.0) / 1e9:g} GB"
    formula = "parameters + gradients + optimizer" + " + activations" * job.full + " + buffers"
    found = {"memory": _corrected(total, formula, right, why)}
    if wide:
        widened = right if whole else right + gradients
        formula, why = "4 bytes a gradient, not 2", "the corrected sum with them"
        found["memory, fp32 gradients"] = _corrected(total + gradients, formula, widened, why)
    return found


def _corrected(hand: float, formula: str, right: float, why: str) -> Figure:
    """A figure that is corrected where the right one is more than 1 % off."""
    return Figure(hand, formula, right, why) if abs(right / hand - 1.0) > 0.01 else Figure(hand, formula)


def _activations(job: Job) -> Figure:
    whole, flight = napkin.activations(job.tokens, job.model.hidden, job.layers), min(job.pp, job.micro_batches)
    right = whole * flight / (job.tp if job.sequence_parallel else 1)
    case = job.case if job.case and job.case.micro_batch == job.micro_batch else None
    hand, formula = (case.activations, "about") if case and case.activations else (whole, "2 b s h L / P")
    parts = [f"2 b s h L / P is {whole / 1e9:.2f} GB a micro-batch of {job.tokens:.0f} tokens"]
    parts += [f"{flight:g} are in flight, {whole * flight / 1e9:.2f} GB"] * (flight > 1)
    parts += ["sequence parallelism divides it by T"] * (job.sequence_parallel > 0 and job.tp > 1)
    return Figure(hand, formula) if right == hand else Figure(hand, formula, right, ", ".join(parts))


def _logits(job: Job, fused: float) -> Figures:
    eager = fused * napkin.EAGER_LOGIT / napkin.FUSED_LOGIT
    rows = {
        "logits": Figure(None, "2 b s v / T", fused, "left out of the sum: bf16 logits of a fused cross entropy"),
        "logits, eager loss": Figure(
            None, "14 b s v / T", eager, "left out of the sum: bf16 logits, fp32 copy, softmax and gradient"
        ),
    }
    if job.case and job.case.largest_micro_batch:
        most = job.case.largest_micro_batch
        sizes = [f"{part * most / job.micro_batch / 1e9:.1f} GB" for part in (fused, eager)]
        why = f"the logits decide: at {most} they take {sizes[0]} with a fused loss, {sizes[1]} with an eager one"
        rows["largest micro-batch"] = Figure(most, "as printed", None, why)
    return rows
