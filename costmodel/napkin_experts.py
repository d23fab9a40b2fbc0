"""The worked-examples chapter's figures for a mixture of experts, which replace those of a dense model."""

from __future__ import annotations

import math

from costmodel import napkin, params
from costmodel.layouts import SCHEDULES
from costmodel.napkin import Figure, Figures
from costmodel.napkin_job import Job
from costmodel.problem import DTYPE_BYTES

MEASURED_V3 = {"MFU": 0.3894, "MFU, non-causal": 0.4373}
"""Of DeepSeek-V3 on 2,048 H800 (arXiv 2505.09343, Table 4)."""


def figures(job: Job) -> dict[str, Figures]:
    """Figures by step of `explain`, then by row."""
    return {
        "fit check": _counts(job),
        "TP": _tensor(job),
        "PP": _pipeline(job),
        "DP": _groups(job),
        "communication": _mfu(job),
        "memory verification": _memory(job),
    }


def _counts(job: Job) -> Figures:
    model, case = job.model, job.case
    wide = napkin.expert_as_printed(model) * model.experts * model.moe_layers
    why = f"experts of {napkin.expert_as_printed(model) / 1e6:.1f} M would make {wide / 1e12:.3g} T parameters"
    found = {
        "active parameters": Figure(napkin.nominal_active(model), "N that a token meets"),
        "routed parameters": Figure(wide, "2 h d_ff x E x layers", job.routed, why),
    }
    if case and case.experts_per_token:
        why = f"{model.experts_per_token} of {model.experts} routed experts, beside {model.shared_experts} shared"
        found["experts a token"] = Figure(case.experts_per_token, "top-k", model.experts_per_token, why)
    if case and case.not_routed:
        ends = (params.counts(model).embedding + params.counts(model).head) / 1e9
        why = f"all but the routed experts, {ends:.2f} G of it embedding and head"
        found["parameters not routed"] = Figure(case.not_routed, "about", job.not_routed, why)
    return found


def _left(job: Job) -> float:
    """Parameters that TP and PP have to divide once EP has divided the experts."""
    return job.not_routed + job.routed / job.ep


def _tensor(job: Job) -> Figures:
    model, matrices = job.model, 3 if job.model.gated_mlp else 2
    rounded = napkin.next_power_of_two(math.ceil(napkin.tensor_degree(job.n, job.memory)))
    least = math.ceil(napkin.tensor_degree(_left(job), job.memory))
    left = f"of {_left(job) / 1e9:.1f} G parameters; {rounded} is the next power of two, a step that goes unsaid"
    if job.ep > 1:
        left = f"EP {job.ep} divides the experts first and leaves {_left(job) / 1e9:.1f} G parameters"
    why = f"an expert has {matrices} matrices of {model.hidden} x {model.expert_ffn_hidden}"
    if model.dense_layers:
        why += f"; {model.ffn_hidden} is the width of the {model.dense_layers} dense layers"
    return {
        "min TP": _corrected(rounded, "ceil(2 N / (0.7 H))", least, left),
        "parameters an expert": Figure(
            napkin.expert_as_printed(model), "d_ff x h x 2", params.counts(model).expert, why
        ),
    }


def _pipeline(job: Job) -> Figures:
    printed, right = (max(1, math.ceil(napkin.pipeline_degree(n, job.memory, job.tp))) for n in (job.n, _left(job)))
    why = "the weights that EP leaves; gradients, optimizer and activations ask for more"
    return {"min PP": _corrected(printed, "ceil(2 N / (0.7 H T))", right, why)}


def _groups(job: Job) -> Figures:
    experts = job.tp * job.ranks / (job.ep * job.etp)
    why = f"EP {job.ep} lies inside of DP, so each expert is on {experts:g} ranks of a stage"
    if job.ep == 1:
        why = f"each expert is on {experts:g} ranks of a stage, TP, CP and DP together"
    return {
        "experts a GPU": Figure(napkin.experts_per_gpu(job.model.experts, job.ep), "E / EP"),
        "expert data parallel": _corrected(job.gpus / (job.tp * job.pp), "GPUs / (T P)", experts, why),
    }


def _corrected(hand: float, formula: str, right: float, why: str) -> Figure:
    """A figure that is corrected only where it differs."""
    return Figure(hand, formula) if math.isclose(hand, right) else Figure(hand, formula, right, why)


def _mfu(job: Job) -> Figures:
    if not job.case:
        return {}
    meant = {"MFU": "with the causal half of attention", "MFU, non-causal": "with the whole attention square"}
    return {
        name: Figure(job.case.mfu[0], "as reported", right, f"arXiv 2505.09343 reports it {meant[name]} counted")
        for name, right in MEASURED_V3.items()
    }


def _memory(job: Job) -> Figures:
    case, model, work = job.case, job.model, job.problem.workload
    shared = 2.0 * (case.not_routed if case and case.not_routed else job.not_routed)
    experts = napkin.experts_per_gpu(model.experts, job.ep) * napkin.expert_as_printed(model)
    routed, dense = job.routed / (job.pp * job.ep * job.etp), job.not_routed / (job.tp * job.pp)
    copies = max(1.0, job.tp * job.ranks / (job.ep * job.etp))
    held, moments = 2.0 + DTYPE_BYTES[work.grad_dtype], 4.0 + 2.0 * DTYPE_BYTES[work.moments_dtype]
    divided = (copies, float(job.ranks)) if job.zero_stage else (1.0, 1.0)
    states = routed * (held + moments / divided[0]) + dense * (held + moments / divided[1])
    printed = case.states if case and case.states else shared + 2.0 * experts
    why = _experts_said(job)
    copy = " and DualPipe's copy" if SCHEDULES[job.schedule] == "dualpipe" else ""
    kinds = f"{work.grad_dtype} gradients and {work.moments_dtype} moments counted, activations{copy} not"
    by = " and ".join([*["PP"] * (job.pp > 1), *["TP"] * (job.tp > 1)])
    shares = f"{by} {'divide' if ' ' in by else 'divides'} them" if by else "what is outside of the routed experts"
    return {
        "shared weights a GPU": _corrected(shared, "2 N_shared", 2.0 * dense, shares),
        "expert parameters a GPU": _corrected(experts, "experts x parameters", routed, why),
        "expert weights a GPU": _corrected(2.0 * experts, "2 bytes each", 2.0 * routed, why),
        "states a GPU": Figure(printed, "shared + experts + optimizer", states, kinds),
        "memory": Figure(
            printed, "shared + experts + optimizer", None, "no gradients and no activations, which dominate"
        ),
    }


def _experts_said(job: Job) -> str:
    """How the routed experts of a rank differ from E / EP of the chapter's size."""
    model, layers = job.model, job.model.moe_layers / job.pp
    right, printed = params.counts(model).expert, napkin.expert_as_printed(model)
    parts = [f"a stage has {layers:.3g} MoE layers, not one"] * (layers != 1)
    if right != printed:
        size = "smaller" if right < printed else "larger"
        parts.append(f"of {size} experts, {right / 1e6:.1f} M and not {printed / 1e6:.1f} M")
    parts += [f"ETP {job.etp} divides them"] * (job.etp > 1)
    return ", ".join(parts)
