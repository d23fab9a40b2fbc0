"""What is computed again: sets of free modules, and sets that hold for some layers of each stage."""

import json
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from costmodel.estimate import Estimate, estimate
from costmodel.layouts import Layouts
from costmodel.problem import Problem
from costmodel.profile import load_profile
from hardware.errors import InputError
from search.assignment import closed_form
from search.compare import changed
from search.engine import search
from search.frontier import read_frontier
from search.rule import violations
from search.rules import rules
from search.space import load_space
from tests.commands import Outcome
from tests.strategies import problem

JOB = ("llama-3.1-405b", "dgx-h100", "--gpus", "1024")


def layouts(case: Problem, name: str, layers: list[int], **axes: int) -> Layouts:
    """One row for each number of layers that the set holds for."""
    one = Layouts.of(recompute=case.profile.recompute_code(name), **axes).row(0)
    columns = {axis: np.full(len(layers), value) for axis, value in one.items()}
    return Layouts.from_columns(columns | {"recompute_layers": layers})


def of_405b(name: str, layers: list[int]) -> Estimate:
    case = problem("llama-3.1-405b", gpus=1024)
    table = layouts(case, name, layers, tp=8, pp=16, dp=8, zero_stage=1, sequence_parallel=1)
    return estimate(case, table)


def test_each_layer_more_takes_as_long_and_frees_as_much_on_full_stages() -> None:
    cost = of_405b("full", [1, 2, 3, 4, 5, 6])
    for column in (cost.time.recompute, cost.memory.activations):
        steps = np.diff(column)
        assert steps == pytest.approx(np.full(5, steps[0]))
    assert cost.time.recompute[5] == pytest.approx(6 * cost.time.recompute[0])
    assert (np.diff(cost.step_time) > 0).all()
    assert (np.diff(cost.memory_headroom) > 0).all()


def test_all_layers_one_by_one_are_the_whole_set() -> None:
    one, every = (of_405b("full", [layers]) for layers in (8, 0))
    assert one.step_time == pytest.approx(every.step_time, rel=1e-12)
    assert one.memory_total == pytest.approx(every.memory_total, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "machine", "gpus", "framework", "axes"),
    [
        ("llama-3.1-405b", "dgx-h100", 1024, "megatron", {"tp": 8, "pp": 16, "dp": 8, "sequence_parallel": 1}),
        ("deepseek-v3", "hgx-h800", 256, "deepseek", {"pp": 8, "dp": 32, "ep": 32, "schedule": 3}),
        ("deepseek-v3", "hgx-h800", 256, "megatron", {"pp": 8, "dp": 32, "ep": 32, "zero_stage": 1}),
    ],
)
@pytest.mark.parametrize("name", ["selective", "full"])
def test_some_layers_cost_what_they_cost_where_stages_are_given(
    model: str, machine: str, gpus: int, framework: str, axes: dict[str, int], name: str
) -> None:
    """A count of layers, and stages that name the set of each of their layers, are the same statement."""
    case = problem(model, machine, gpus, framework)
    for layers in (1, 3, 7):
        layout = layouts(case, name, [layers], **axes)
        found = closed_form(case, layout)
        assert [sum(stage[1:]) for stage in found.recompute] == [min(layers, count) for count in found.layers]
        assert astuple(estimate(case, layout)) == astuple(estimate(case, layout, found.table))


@pytest.mark.parametrize("inner", ["moe+moe_act", "moe+shared_experts", "shared_experts+moe+moe_act"])
def test_a_module_within_another_is_not_computed_again_twice(inner: str) -> None:
    case = problem("deepseek-v3", "hgx-h800", 256)
    axes = {"pp": 8, "dp": 32, "ep": 32, "zero_stage": 1}
    cost, alone = (estimate(case, layouts(case, name, [0], **axes)) for name in (inner, "moe-only"))
    assert astuple(cost) == astuple(alone)
    assert alone.time.recompute[0] > 0


def test_free_modules_make_every_set_that_differs_on_the_model() -> None:
    case = problem("llama-3.1-405b", gpus=1024)
    names = [case.profile.recompute[code].name for code in load_space(case, "wide").axes["recompute"]]
    assert names[:4] == ["none", "selective", "mlp", "full"]
    assert set(names[4:]) == {
        "core_attn",
        "mlp-only",
        "core_attn+mlp",
        "core_attn+layernorm",
        "core_attn+layernorm+mlp",
    }
    assert load_space(case).axes["recompute"] == load_space(case, "wide").axes["recompute"][:4]
    assert load_space(case).axes["recompute_layers"] == (0,)
    assert len(load_space(problem("deepseek-v3", gpus=256), "wide").axes["recompute"]) == 1 + 16 * 5


def test_modules_are_named_in_any_order() -> None:
    profile = problem("llama-3.1-8b").profile
    assert profile.recompute_code("mlp+layernorm") == profile.recompute_code("layernorm+mlp")
    assert profile.recompute_code("layernorm") == profile.recompute_code("norms")
    assert profile.recompute[profile.recompute_code("mlp-only")].modules == ("mlp",)
    with pytest.raises(
        InputError,
        match=r"recompute 'mpl'; did you mean 'mlp'\? .*, full, and any modules joined by \+: core_attn, moe_act,",
    ):
        profile.recompute_code("mpl")
    with pytest.raises(InputError, match=r"profile nanotron has none, full, selective \(= full\)$"):
        problem(framework="nanotron").profile.recompute_code("layernorm+mlp")


@pytest.mark.parametrize(
    ("name", "layers", "because"),
    [
        ("full", 7, None),
        ("full", 8, "recompute_layers 8 with pp 16: no stage has more than 8 layers, and 0 is all of them"),
        ("none", 1, "recompute none computes nothing again, in 1 layers as in none"),
    ],
)
def test_counts_that_say_nothing_new_are_rejected(name: str, layers: int, because: str | None) -> None:
    case = problem("llama-3.1-405b", gpus=1024)
    row = layouts(case, name, [layers], tp=8, pp=16, dp=8, zero_stage=1, sequence_parallel=1).row(0)
    broken = violations([rule for rule in rules(case, load_space(case)) if rule.name != "memory"], row)
    assert broken == ([("recompute_layers", because)] if because else [])


def test_the_wide_space_of_405b_on_16384_gpus_is_scored_whole() -> None:
    case = problem("llama-3.1-405b", gpus=16384)
    space = load_space(case, "wide")
    every, bounded = (search(case, space, bounds=bounds) for bounds in (False, True))
    account = every.account
    assert account.scored >= 20_000_000
    assert account.candidates == sum(account.pruned.values()) + account.feasible
    assert bounded.account.scored + bounded.account.bounded == account.scored
    assert astuple(bounded.frontier)[0].tolist() == astuple(every.frontier)[0].tolist()
    assert [bounded.frontier.row(place) for place in range(len(bounded.frontier))] == [
        every.frontier.row(place) for place in range(len(every.frontier))
    ]
    assert {0, 1} <= {int(layers > 0) for layers in every.frontier.recompute_layers}


def test_search_and_explain_take_modules_and_counts(run: Callable[..., Outcome]) -> None:
    given = ("--tp", "8", "--pp", "16", "--recompute", "mlp+core_attn,full", "--recompute-layers", "0,2,5")
    assert run("search", *JOB, *given).code == 0
    rows = read_frontier("frontier.parquet").rows
    partial = next(row for row in rows if row["recompute_layers"])
    assert {row["recompute"] for row in rows} <= {"core_attn+mlp", "full"}
    most = partial["recompute_layers"]
    assert partial["recompute_layers_per_stage"] == [min(most, layers) for layers in partial["layers_per_stage"]]
    assert f"{8 - most} none, {most} {partial['recompute']}" in partial["recompute_per_stage"]
    found = json.loads(run("explain", "frontier.parquet", "--rank", str(partial["rank"]), "--json").out)
    assert found["step_time"] == partial["step_time"]
    assert found["layout"]["recompute_layers"] == most
    said = run("explain", *JOB, "--tp", "8", "--pp", "16", "--recompute", "full", "--recompute-layers", "3").out
    assert "recompute full in 3 layers of each stage" in " ".join(said.split())


def test_why_asks_for_counts_only_where_the_user_did(run: Callable[..., Outcome]) -> None:
    job = ("why", "llama-3.1-405b", "dgx-h100", "--gpus", "512", "--tp", "8", "--pp", "16", "--space", "wide", "--json")
    given = (*job, "--micro-batch", "4", "--recompute", "full", "--recompute-layers", "1")
    found = json.loads(run(*given).out)
    assert [rule["rule"] for rule in found["core"]] == ["memory"]
    changes = [fix["change"]["recompute_layers"] for fix in found["fixes"] if "recompute_layers" in fix["change"]]
    assert changes == [[1, 0]]


def test_a_neighbour_without_recomputation_has_no_count_of_layers() -> None:
    case = problem("llama-3.1-405b", gpus=1024)
    layout = layouts(case, "full", [3], tp=8, pp=16, dp=8, zero_stage=1, sequence_parallel=1)
    assert changed(case, layout, {"recompute": 0}).row(0)["recompute_layers"] == 0
    assert changed(case, layout, {"pp": 64}).row(0)["recompute_layers"] == 0
    assert changed(case, layout, {"pp": 32}).row(0)["recompute_layers"] == 3


def test_a_module_named_twice_is_refused() -> None:
    profile = problem().profile
    for name in ("mlp+mlp", "layernorm+mlp+layernorm"):
        with pytest.raises(InputError, match="is named twice"):
            profile.recompute_code(name)


def test_a_name_means_the_declared_set_in_any_order_and_no_two_sets_share_one(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    sets = {"none": (), "mlp": ("mlp", "layernorm"), "mlp-only": ("core_attn",), "core_attn+mlp": ("layernorm",)}
    text = "".join(
        f'[[recompute]]\nname = "{name}"\n' + f"modules = {list(own)}\n" * bool(own) for name, own in sets.items()
    )
    free = (
        'base = "megatron"\nrecompute_modules = ["mlp", "core_attn"]\nselective = "mlp"\ndefault_recompute = "none"\n'
    )
    file.write_text(f'{free}{text}[[recompute]]\nname = "full"\nfull = true\n')
    profile = load_profile(str(file))
    names = [choice.name for choice in profile.recompute]
    assert len(set(names)) == len(names)
    assert [profile.recompute_code(name) for name in names] == list(range(len(names)))
    assert profile.recompute_code("mlp+core_attn") == names.index("core_attn+mlp")


@pytest.mark.parametrize(("layers", "pp", "said"), [(2, 1, "is 1"), (1, 1, "is 0 (all)"), (32, 4, "is 7")])
def test_the_nearest_count_of_layers_can_be_used(
    run: Callable[..., Outcome], tmp_path: Path, layers: int, pp: int, said: str
) -> None:
    (tmp_path / "own.toml").write_text(f'base = "llama-3.1-8b"\nlayers = {layers}\n')
    code, _, err = run("search", "own.toml", "dgx-h100", "--gpus", "8", "--pp", str(pp), "--recompute-layers", "33")
    assert code == 2
    assert err.endswith(f"nearest {said}\n")


def test_sets_that_come_to_the_same_are_searched_once() -> None:
    limits = {"recompute": ("core_attn+moe_act", "core_attn", "full")}
    for model, names in (("llama-3.1-8b", ("core_attn+moe_act", "full")), ("mixtral-8x7b", limits["recompute"])):
        case = problem(model, gpus=8)
        codes = sorted(map(case.profile.recompute_code, names))
        assert list(load_space(case, limits=limits).axes["recompute"]) == codes
