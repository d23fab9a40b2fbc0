"""What terms rest on: rates that move a term are listed under it and others are not, and the weakest gives its tag."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.basis import UNKNOWN, Basis, basis
from costmodel.estimate import estimate
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.problem import Problem
from costmodel.rates import TimeRates
from hardware.catalog import cluster_names, load_cluster
from hardware.provenance import Provenance
from tests.strategies import candidates, problem, problems


def grounds(job: Problem, **axes: int) -> dict[str, Basis]:
    layout = Layouts.of(**axes)
    return basis(job, layout, job.split([int(layout.pp[0])]))


def names(found: dict[str, Basis], term: str) -> set[str]:
    return {rate.name for rate in found[term].rates}


def every(found: dict[str, Basis]) -> set[str]:
    return set().union(*(names(found, term) for term in found))


@settings(max_examples=20, deadline=None)
@given(data=st.data(), job=problems())
def test_a_rate_that_no_term_lists_moves_nothing(data, job):
    """Half of the step at which rates are listed leaves the whole estimate as it is, bit for bit."""
    layout = data.draw(candidates(job, rows=1))
    listed = every(basis(job, layout, job.split([int(layout.pp[0])])))
    time, before = job.profile.time, estimate(job, layout)
    for rate in fields(TimeRates):
        value = getattr(time, rate.name)
        if f"time.{rate.name}" not in listed and value * 0.95 != value:
            other = replace(job, profile=replace(job.profile, time=replace(time, **{rate.name: value * 0.95})))
            assert estimate(other, layout).step_time[0] == pytest.approx(before.step_time[0], rel=1e-9), rate.name


@pytest.mark.parametrize(
    ("precision", "kind", "used", "unused"),
    [
        ("bf16", "bf16", "gemm", "gemm_fp8"),
        ("fp8", "fp8_block", "gemm_fp8", "gemm"),
        ("mxfp8", "fp8_block", "gemm_mxfp8", "gemm_fp8"),
        ("nvfp4", "fp8_block", "gemm_fp4", "gemm_fp8"),
    ],
)
def test_gemms_rest_on_the_rate_of_their_precision(precision, kind, used, unused):
    found = grounds(problem(machine="gb200-nvl72", gpus=4, precision=precision), dp=4)
    assert {f"time.{used}", f"gpu.gemm.{kind}.eta", f"gpu.peak.{precision}"} <= names(found, "time_gemm")
    assert f"time.{unused}" not in every(found)
    assert not {"time.grouped_gemm", "time.ep_overlap"} & every(found)


def test_communication_rests_on_the_links_that_it_uses():
    """TP inside a node on NVLink alone; DP across nodes on the NICs and on what a run gets of the network."""
    found = grounds(problem("llama-3.1-70b", gpus=16), tp=8, dp=2, zero_stage=1)
    nvlink, leaf = "cluster.levels.nvlink.bandwidth", "cluster.levels.leaf.bandwidth"
    assert {nvlink, "time.tp_overlap"} <= names(found, "time_tensor_parallel")
    assert not {leaf, "time.network"} & names(found, "time_tensor_parallel")
    assert {leaf, "time.network"} <= names(found, "time_data_parallel")
    assert "cluster.levels.spine.bandwidth" not in every(found)


def test_experts_rest_on_their_dispatch_and_on_switches():
    job = problem("deepseek-v3", "hgx-h800", 256, "deepseek", precision="fp8")
    axes = {"pp": 8, "dp": 32, "ep": 32, "zero_stage": 1}
    job = replace(job, profile=replace(job.profile, time=replace(job.profile.time, ep_overlap_dualpipe=0.2)))
    plain = grounds(job, **axes)
    dual = grounds(job, schedule=SCHEDULES.index("dualpipe"), **axes)
    assert {"time.dispatch_bytes", "time.node_dedup", "time.ep_overlap"} <= names(plain, "time_expert_parallel")
    assert {"time.grouped_gemm", "time.grouped_wgrad"} <= names(plain, "time_gemm")
    assert "time.ep_overlap_dualpipe" in names(dual, "time_expert_parallel") - names(plain, "time_expert_parallel")


def test_memory_rests_on_what_the_framework_keeps():
    found = grounds(problem(framework="torchtitan"), dp=8, zero_stage=3)
    assert "memory.reserved_ratio" in names(found, "memory_fragmentation")
    assert names(found, "memory_overhead") == {"memory.overhead"}
    assert "memory.mlp_saved" in names(found, "memory_activations")
    assert (found["memory_optimizer"].tag, found["memory_optimizer"].rates) == (None, ())
    assert found["memory_overhead"].speed_of_light is None


def test_the_weakest_rate_that_counts_gives_the_tag():
    """Of attention: all fitted, then one forward rate assumed; a rate that moves next to nothing does not count."""
    job = problem()
    assert grounds(job, dp=8)["time_attention"].tag == "fitted"
    weak = {**job.profile.provenance, "time.attention_backward": Provenance("assumed", "a guess")}
    assumed = grounds(replace(job, profile=replace(job.profile, provenance=weak)), dp=8)["time_attention"]
    assert assumed.weakest is not None
    assert (assumed.tag, assumed.weakest.name, assumed.weakest.provenance.source) == (
        "assumed", "time.attention_backward", "a guess",
    )  # fmt: skip
    assert assumed.weakest.value == job.profile.time.attention_backward
    little = {**job.profile.provenance, "time.loss_bandwidth": Provenance("assumed", "a guess")}
    assert grounds(replace(job, profile=replace(job.profile, provenance=little)), dp=8)["time_gemm"].tag == "fitted"


def test_a_share_of_a_share_is_as_well_known_as_their_product():
    """HBM's elementwise share is assumed, but runs show its product with the profile's, if that is fitted."""
    job = problem()
    found = grounds(job, dp=8)["time_elementwise"]
    assert {"gpu.memory_efficiency": "assumed", "time.memory_bandwidth": "fitted"}.items() <= {
        rate.name: rate.provenance.tag for rate in found.rates
    }.items()
    assert found.tag == "fitted"
    for tag in ("inherited", "assumed"):
        weak = {**job.profile.provenance, "time.memory_bandwidth": Provenance(tag, "hopper")}
        other = grounds(replace(job, profile=replace(job.profile, provenance=weak)), dp=8)["time_elementwise"]
        assert other.tag == tag
        assert other.weakest is not None
        assert other.weakest.name == "time.memory_bandwidth"


@pytest.mark.parametrize("machine", cluster_names())
def test_every_number_of_every_machine_that_moves_a_term_has_a_source(machine):
    gpus = 2 * load_cluster(machine).gpus_per_node
    found = grounds(problem(machine=machine, gpus=gpus), tp=2, dp=gpus // 2, zero_stage=1)
    assert any(rate.name.startswith("cluster.") for rate in found["time_data_parallel"].rates)
    for term in found.values():
        for rate in term.rates:
            assert rate.provenance != UNKNOWN, rate.name
