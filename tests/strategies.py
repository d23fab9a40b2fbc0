"""Hypothesis strategies and builders: small models, problems on shipped machines, candidate layouts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from costmodel.layouts import Layouts
from costmodel.model import Model, load_model
from costmodel.problem import PRECISIONS, Problem, Workload, default_global_batch
from costmodel.profile import load_profile, profile_names
from hardware.catalog import load_cluster
from search.possible import ALL_RANKS
from search.space import INNER_AXES, SearchSpace, load_space

USABLE = (2.2e9, 2.3e9, 2.6e9, 80e9)
"""Usable bytes of a GPU: with these, all, some and no layouts of the small models are too big."""

cluster = cache(load_cluster)
profile = cache(load_profile)


def problem(
    model: Model | str = "llama-3.1-8b",
    machine: str = "dgx-h100",
    gpus: int = 8,
    framework: str = "megatron",
    usable: float | None = None,
    **job: Any,
) -> Problem:
    """A problem of shipped parts with the command line's defaults; `job` are fields of Workload."""
    model = load_model(model) if isinstance(model, str) else model
    found = cluster(machine)
    rates = profile(framework).on(found.gpu)
    if usable is not None:
        found = replace(found, gpu=replace(found.gpu, usable_memory=usable))
    job = {"seq_len": model.seq_len, "grad_dtype": rates.grad_dtype, "moments_dtype": rates.moments_dtype} | job
    job.setdefault("global_batch", default_global_batch(gpus, job["seq_len"]))
    return Problem(model=model, cluster=found, profile=rates, workload=Workload(gpus=gpus, **job))


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Small models of every kind: GQA and MLA, dense and MoE, with leading dense layers, shared experts and MTP."""
    heads, head_dim = draw(st.sampled_from((4, 6, 8, 12))), draw(st.sampled_from((16, 64)))
    layers, mla, moe = draw(st.integers(1, 9)), draw(st.booleans()), draw(st.booleans())
    shape: dict[str, Any] = {"kv_heads": draw(st.sampled_from([n for n in (1, 2, 3, 4, heads) if heads % n == 0]))}
    if mla:
        shape = {"kv_heads": heads, "attention": "mla", "q_lora_rank": draw(st.sampled_from((0, 48)))}
        shape |= {"kv_lora_rank": 32, "qk_nope_head_dim": head_dim - 8, "qk_rope_head_dim": 8, "v_head_dim": head_dim}
    dense = draw(st.integers(0, min(2, layers - 1))) if moe else layers
    if moe:
        experts = draw(st.sampled_from((4, 6, 8, 16)))
        shape |= {"experts": experts, "experts_per_token": draw(st.integers(1, 4)), "first_dense_layers": dense}
        shape |= {"expert_ffn_hidden": draw(st.sampled_from((64, 96))), "shared_experts": draw(st.integers(0, 2))}
    return Model(
        name="small",
        source="drawn by a test",
        layers=layers,
        hidden=draw(st.sampled_from((128, 192, 1024))),
        heads=heads,
        head_dim=head_dim,
        ffn_hidden=draw(st.sampled_from((256, 480))) if dense else 0,
        vocab=draw(st.sampled_from((1000, 4096))),
        seq_len=256,
        mtp_layers=draw(st.integers(0, 1)),
        tied_embeddings=draw(st.booleans()),
        **shape,
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """A small model on up to 48 GPUs of a shipped machine, under any shipped profile and precision it has."""
    machine = draw(st.sampled_from(("dgx-h100", "gb200-nvl72")))
    return problem(
        draw(models()),
        machine,
        draw(st.sampled_from((1, 2, 4, 8, 16, 24, 48))),
        draw(st.sampled_from(profile_names())),
        draw(st.sampled_from(USABLE)),
        precision=draw(st.sampled_from([name for name in PRECISIONS if name in cluster(machine).gpu.peak])),
        seq_len=draw(st.sampled_from((64, 96, 1024))),
        global_batch=draw(st.sampled_from((12, 16, 48, 96))),
    )


def candidates(problem: Problem, space: SearchSpace | None = None, rows: int = 8) -> st.SearchStrategy[Layouts]:
    """Tables of candidates of a problem's space: tp * pp * cp * dp is right, rules may be broken."""
    space = space or load_space(problem)
    grid = space.grid(problem.workload.gpus)
    one = st.tuples(
        st.integers(0, len(grid["tp"]) - 1),
        st.fixed_dictionaries({a: st.sampled_from(space.axes[a]) for a in INNER_AXES}),
    )

    def table(drawn: list[tuple[int, dict[str, int]]]) -> Layouts:
        columns = {axis: values[[index for index, _ in drawn]] for axis, values in grid.items()}
        columns |= {axis: np.array([inner[axis] for _, inner in drawn]) for axis in INNER_AXES}
        shard = columns["dp_shard"]
        columns["dp_shard"] = np.where(shard == ALL_RANKS, columns["dp"] * columns["cp"], shard)
        return Layouts.from_columns(columns)

    return st.lists(one, min_size=1, max_size=rows).map(table)
