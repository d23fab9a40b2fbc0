"""The speed of light: a bound of every term, and exactly the peak where a term is nothing but work."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import flops
from costmodel.estimate import Time, step_time
from costmodel.layouts import Layouts
from costmodel.light import speed_of_light
from tests.strategies import candidates, problem, problems


@settings(max_examples=40, deadline=None)
@given(data=st.data(), job=problems())
def test_no_term_is_faster_than_light(data, job):
    """Whatever the layout, precision, profile and machine; a rate that a file may hold makes none faster either."""
    rates = job.profile.time
    fast = {name: rates.__dataclass_fields__[name].metadata["within"][1] for name in ("gemm", "memory_bandwidth")}
    boast = replace(job, profile=replace(job.profile, time=replace(rates, **fast)))
    layout = data.draw(candidates(job, rows=1))
    for each in (job, boast):
        stages = each.split([int(layout.pp[0])])
        modelled, light = step_time(each, layout, stages), speed_of_light(each, layout, stages)
        for term, seconds in light.items():
            assert 0.0 <= seconds <= getattr(modelled, term)[0] * (1.0 + 1e-12), term


def test_gemms_at_the_speed_of_light_are_their_flops_over_the_peak():
    """An 8B model's GEMMs on one GPU: 6 FLOPs a parameter and token, but for the embedding, at 989 TFLOP/s."""
    job = problem("llama-3.1-8b", gpus=1, global_batch=1)
    layout = Layouts.of(tp=1)
    light = speed_of_light(job, layout, job.split([1]))
    model = job.model
    per_token = sum(flops.layer(model, 0, moe=False) for _ in range(model.layers)) + flops.head(model)
    assert light["gemm"] == pytest.approx(3.0 * per_token * job.tokens / 989e12, rel=1e-3)
    assert light["kernel_gaps"] == light["bubble"] == light["overhead"] == 0.0


def test_an_exposed_all_reduce_at_the_speed_of_light_is_its_bytes_over_the_link():
    """TP 2 without overlap: two all-reduces a layer and pass of 2 s h bytes, q = 1, at NVLink's 450 GB/s."""
    job = problem("llama-3.1-8b", gpus=2, global_batch=1)
    job = replace(job, profile=replace(job.profile, time=replace(job.profile.time, tp_overlap=0.0)))
    layout = Layouts.of(tp=2)
    light = speed_of_light(job, layout, job.split([1]))
    volume = 2.0 * job.workload.seq_len * job.model.hidden
    head = 1.0
    assert light["tensor_parallel"] == pytest.approx((4 * job.model.layers + head) * volume / 450e9, rel=1e-9)


def test_every_term_says_what_bounds_it():
    assert {term.metadata["light"] for term in fields(Time)} == {"gpu", "links", None}
    assert np.all([term.metadata["light"] for term in fields(Time) if "parallel" in term.name])
