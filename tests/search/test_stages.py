"""Stages by CP-SAT: every layer once, no stage beyond its memory, as fast as the best of all assignments."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from costmodel.estimate import estimate
from costmodel.layer_counts import split_layers
from costmodel.layouts import SCHEDULES, Layouts
from costmodel.memory import memory
from costmodel.model import Model, load_model, model_names
from costmodel.passes import passes_of, unit_passes
from costmodel.problem import Problem
from costmodel.split import Contents, contents, given_table
from search.assignment import Assignment
from search.possible import recompute_choices
from search.stages import assign
from tests.strategies import models, problem

DUALPIPE = SCHEDULES.index("dualpipe")


@st.composite
def pipelines(draw: st.DrawFn, schedules: tuple[str, ...] = SCHEDULES) -> tuple[Problem, Layouts]:
    """A small model's layout on a GPU so small that some or all layers must be computed again, or nothing fits."""
    model = draw(models().filter(lambda model: 2 <= model.layers <= 6))
    case = problem(model, gpus=8, seq_len=draw(st.sampled_from((256, 4096))), global_batch=64)
    schedule = draw(st.sampled_from(schedules))
    pp = draw(st.sampled_from([n for n in (2, 4) if n <= model.layers]))
    vpp = 2 if schedule == "interleaved" and model.layers >= 2 * pp else 1
    schedule = "1f1b" if schedule == "interleaved" and vpp == 1 else schedule
    layout = Layouts.of(
        pp=pp, vpp=vpp, dp=8 // pp, zero_stage=1, recompute=draw(st.sampled_from((0, 2, 5))),
        schedule=SCHEDULES.index(schedule),
    )  # fmt: skip
    full = estimate(case, replace(layout, recompute=np.array([5]))).memory_total[0]
    none = estimate(case, replace(layout, recompute=np.array([0]))).memory_total[0]
    usable = float(full + draw(st.sampled_from((0.01, 0.3, 0.6, 0.9, 1.2))) * (none - full))
    return replace(case, cluster=replace(case.cluster, gpu=replace(case.cluster.gpu, usable_memory=usable))), layout


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_every_layer_lies_on_one_stage_and_no_stage_exceeds_its_memory(case: tuple[Problem, Layouts]) -> None:
    job, layout = case
    found = assign(job, layout)
    assume(found is not None)
    assert found is not None
    assert sum(found.chunks) == sum(found.layers) == job.model.layers
    assert [sum(counts) for counts in found.recompute] == list(found.layers)
    assert all(count >= 0 for counts in found.recompute for count in counts)
    assert sum(stage["mtp"] for stage in found.stages) == job.model.mtp_layers
    cost = estimate(job, layout, found.table)
    assert cost.memory_total[0] <= job.memory_limit
    own = passes_of(job, layout, found.table).own
    assert float(own[0, 0] + own[1, 0]) == pytest.approx(found.seconds, rel=1e-5)
    assert found.optimal
    assert found.gap < 1e-5


@settings(max_examples=25, deadline=None)
@given(pipelines(("1f1b", "zero-bubble")), st.sets(st.sampled_from(("norms", "selective", "mlp", "moe")), max_size=1))
def test_the_slowest_stage_is_as_fast_as_brute_force_finds(case: tuple[Problem, Layouts], more: set[str]) -> None:
    """Over the sets none, full and one more: all of them are too many for brute force."""
    job, layout = case
    sets = [replace(one, declared=one.name in {"none", "full", *more}) for one in job.profile.recompute]
    job = replace(job, profile=replace(job.profile, recompute=tuple(sets)))
    layout = replace(layout, recompute=np.array([0]))
    best, found = brute_force(job, layout), assign(job, layout)
    assert (found is None) == (best is None)
    if found is not None:
        assert found.seconds == pytest.approx(best, rel=1e-5)


def brute_force(job: Problem, layout: Layouts) -> float | None:
    """The fastest slowest stage over all splits and all mixes of the declared recompute sets."""
    pp, seen = int(layout.pp[0]), dict[tuple[int, tuple[int, ...]], float]()
    codes = recompute_choices(job, 0)[1:]
    best = np.inf
    for stages in pipelines_of(job.model, pp):
        slowest = 0.0
        for rank, stage in enumerate(stages):
            key = rank, tuple(stage.values())
            if key not in seen:
                seen[key] = min(
                    (cost(job, layout, stages, rank, mixed) for mixed in mixes(stage, codes)), default=np.inf
                )
            slowest = max(slowest, seen[key])
        best = min(best, slowest)
    return None if best == np.inf else float(best)


def pipelines_of(model: Model, pp: int) -> Iterator[list[Contents]]:
    """Every split, MTP on the last stage or, in Megatron's order, before the head on the last but one."""
    for full in range(pp, max(0, pp - 3) * bool(model.mtp_layers) + (pp - 1) * (not model.mtp_layers), -1):
        for cut in combinations(range(1, model.layers), full - 1):
            counts = [right - left for left, right in pairwise((0, *cut, model.layers))] + [0] * (pp - full)
            stages = [stage | {"mtp_head": 0} for stage in contents(model, counts)]
            if full < pp:
                stages[-1] |= {"mtp": 0, "mtp_head": model.mtp_layers}
                stages[-2] |= {"mtp": model.mtp_layers, "mtp_head": -model.mtp_layers}
            yield stages


def mixes(stage: Contents, codes: tuple[int, ...]) -> list[Contents]:
    """The stage with each number of its layers under each of the sets, which are others than that of no modules."""
    names = [f"{kind}:{code}" for code in codes for kind in ("dense", "moe")]
    ranges = [range(stage[name.split(":")[0]] + 1) for name in names]
    rows = (dict(zip(names, counts, strict=True)) for counts in product(*ranges))
    fits = lambda row, kind: sum(count for name, count in row.items() if name.startswith(kind)) <= stage[kind]  # noqa: E731
    return [stage | row for row in rows if fits(row, "dense") and fits(row, "moe")]


def cost(job: Problem, layout: Layouts, stages: list[Contents], rank: int, stage: Contents) -> float:
    """Seconds of a stage, infinite if it does not fit: the cost model's, of a pipeline with this stage alone mixed."""
    names = [
        name for name in stage if ":" in name and (job.model.dense_layers if "dense" in name else job.model.is_moe)
    ]
    kept = {name: count for name, count in stage.items() if ":" not in name or name in names}
    others = [dict.fromkeys(kept, 0) | one for one in stages]
    table = given_table([*others[:rank], kept, *others[rank + 1 :]], (1,) * len(stages))
    row = table.columns["rank"][0]
    kind = next(
        number for number in range(len(row))
        if all(table.columns[name][0, number] == count for name, count in kept.items()) and row[number] <= rank
    )  # fmt: skip
    alone = table.only(kind)
    alone.columns["rank"][:] = rank
    need = memory(job, layout, alone).total[0]
    own = passes_of(job, layout, alone).own
    return float(own[0, 0] + own[1, 0]) if need <= job.memory_limit else np.inf


def case(name: str, gpus: int, framework: str, batch: int, **axes: int | str) -> tuple[Problem, Layouts]:
    job = problem(name, "hgx-h800" if framework == "deepseek" else "dgx-h100", gpus, framework, global_batch=batch)
    row = {"zero_stage": 1} | axes
    row["recompute"] = job.profile.recompute_code(str(axes.get("recompute", "none")))
    row["schedule"] = SCHEDULES.index(str(axes.get("schedule", "1f1b")))
    return job, Layouts.of(**{name: int(value) for name, value in row.items()})


REAL = {
    "405B": case("llama-3.1-405b", 8192, "llama3-meta", 2048, tp=8, pp=16, dp=64, sequence_parallel=1),
    "405B recomputed": case(
        "llama-3.1-405b", 8192, "megatron", 2048, tp=8, pp=16, dp=64, sequence_parallel=1, recompute="full"
    ),
    "V3": case("deepseek-v3", 2048, "megatron", 8192, pp=16, dp=128, ep=64, recompute="full"),
    "235B": case(
        "qwen3-235b-a22b", 256, "megatron", 1024, tp=4, pp=8, dp=8, ep=8, vpp=3, sequence_parallel=1,
        schedule="interleaved", recompute="full",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_real_models_run_no_slower_than_under_the_closed_form_or_an_even_split(name: str) -> None:
    job, layout = REAL[name]
    found = assign(job, layout)
    assert found is not None
    assert found.optimal
    cost, usual = estimate(job, layout, found.table), estimate(job, layout)
    even = estimate(job, layout, job.split([int(layout.pp[0])], rule="even"))
    assert cost.memory_headroom[0] >= 0
    assert cost.step_time[0] <= min(usual.step_time[0], even.step_time[0])


@pytest.mark.parametrize(("name", "vpp"), [("235B", 3), ("235B", 5), ("405B recomputed", 4)])
def test_phases_take_as_long_as_the_fullest_stage(name: str, vpp: int) -> None:
    """The virtual stages that all ranks run at about the same time, and the slowest of which they wait for."""
    job, layout = REAL[name]
    interleaved = replace(layout, vpp=np.array([vpp]), schedule=np.array([SCHEDULES.index("interleaved")]))
    found, pp = assign(job, interleaved), int(layout.pp[0])
    assert found is not None
    phases = [max(found.chunks[first : first + pp]) for first in range(0, pp * vpp, pp)]
    assert sum(phases) == max(found.layers)


def test_405b_has_a_layer_less_on_either_end() -> None:
    """As it was trained (arXiv 2407.21783)."""
    found = assign(*REAL["405B"])
    assert found is not None
    assert found.layers == (7, *[8] * 14, 7)


def test_the_same_layout_gets_the_same_stages() -> None:
    assert assign(*REAL["V3"]) == assign(*REAL["V3"])


@pytest.mark.parametrize("recompute", ["none", "norms", "selective", "mlp", "full"])
def test_the_set_that_a_layout_starts_from_does_not_matter(recompute: str) -> None:
    """Stages choose from every declared set: some of 405B's layers are best under `mlp`, which nobody asked for."""
    job, layout = case("llama-3.1-405b", 1024, "megatron", 512, tp=8, pp=16, dp=8, sequence_parallel=1)
    found = assign(job, replace(layout, recompute=np.array([job.profile.recompute_code(recompute)])))
    assert found == assign(job, layout)
    assert found is not None
    assert any(counts[job.profile.recompute_code("mlp")] for counts in found.recompute)


@pytest.mark.parametrize(("recompute", "layers"), [("full", 0), ("full", 3), ("selective", 0), ("none", 0)])
def test_the_layers_alone_are_balanced_where_that_is_asked(recompute: str, layers: int) -> None:
    job, layout = case("deepseek-v3", 2048, "megatron", 8192, pp=16, dp=128, ep=64, recompute=recompute)
    layout = replace(layout, recompute_layers=np.array([layers]))
    found, usual = assign(job, layout, own=True), estimate(job, layout)
    if found is None:
        assert usual.memory_headroom[0] < 0
        return
    code = job.profile.recompute_code(recompute)
    assert [counts[code] for counts in found.recompute] == [min(layers or 61, n) for n in found.layers]
    own = passes_of(job, layout, found.table).own
    assert float(own[0, 0] + own[1, 0]) == pytest.approx(found.seconds, rel=1e-5)
    cost = estimate(job, layout, found.table)
    assert cost.memory_total[0] <= job.memory_limit
    closed = passes_of(job, layout, job.split([16])).own
    assert found.seconds <= float(closed[0, 0] + closed[1, 0]) * (1 + 1e-5) or usual.memory_headroom[0] < 0


def test_layers_under_another_set_cost_what_they_cost_as_the_layouts_own() -> None:
    job, layout = REAL["405B recomputed"]
    counts = job.split([16]).split(16)
    again = [stage | {"dense:5": stage["dense"]} for stage in contents(job.model, counts)]
    usual = estimate(job, layout)
    for each in (layout, replace(layout, recompute=np.array([0]))):
        found = estimate(job, each, given_table(again, counts))
        assert found.step_time[0] == pytest.approx(usual.step_time[0], rel=1e-9)
        assert found.memory_total[0] == pytest.approx(usual.memory_total[0], rel=1e-9)


@pytest.mark.parametrize(
    ("recompute", "most", "mean", "worst"), [("none", 0.001, 0.003, 0.15), ("full", 0.015, 0.005, 0.16)]
)
def test_the_closed_form_loses_little(recompute: str, most: float, mean: float, worst: float) -> None:
    """It weighs layers by FLOPs, once for all layouts. Llama 4 Maverick under tensor parallelism loses most: its layers
    with experts take three times as long as the dense ones, for as many FLOPs. Layers computed again outweigh the head.
    """
    cases = [(name, pp, tp) for name in model_names() for pp in (4, 8, 16) for tp in (1, 8)]
    losses = [loss(*case, recompute) for case in cases]
    known = np.array([one for one in losses if one is not None])
    assert known.min() > -1e-5
    assert np.median(known) < 1e-5
    assert np.quantile(known, 0.9) < most
    assert known.mean() < mean
    assert known.max() < worst


def loss(name: str, pp: int, tp: int, recompute: str) -> float | None:
    """What the closed form's slowest stage takes more than that of the best split, as a share."""
    model = load_model(name)
    if pp > model.layers or model.heads % tp or model.hidden % tp:
        return None
    ep = 8 if model.is_moe and model.experts % 8 == 0 else 1
    job = problem(name, gpus=1024, global_batch=4096)
    again = job.profile.recompute_code(recompute)
    axes = {"tp": tp, "pp": pp, "dp": 1024 // tp // pp, "ep": ep, "sequence_parallel": int(tp > 1), "zero_stage": 1}
    layout = Layouts.of(**axes, recompute=again)
    seconds = {name: forward + backward for name, (forward, backward, _) in unit_passes(job, layout, []).items()}
    tail = seconds["head"] + model.mtp_layers * seconds.get("mtp", 0.0)
    weights = tuple(round(1e3 * seconds["moe" if moe else "dense"], 6) for moe in model.layer_is_moe)
    slowest = [
        max(sum(seconds[part] * stage[part] for part in seconds) for stage in contents(model, counts))
        for counts in (job.split([pp]).split(pp), split_layers(weights, round(1e3 * tail, 6), pp))
    ]
    return slowest[0] / slowest[1] - 1.0


def test_what_fits_nowhere_has_no_stages() -> None:
    job, layout = REAL["405B"]
    small = replace(job.cluster, gpu=replace(job.cluster.gpu, usable_memory=20e9))
    assert assign(replace(job, cluster=small), layout) is None


def test_the_assignment_tells_its_own() -> None:
    found = Assignment(
        chunks=(1, 2, 3, 2), mtp=3, recompute=((4,), (4,)), stages=({}, {}), seconds=1.0, bound=0.9, optimal=False
    )
    assert found.layers == (4, 4)
    assert found.gap == pytest.approx(0.1)
