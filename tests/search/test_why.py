"""Why nothing fits: the right rules, as few as possible, and changes that really help."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from costmodel.estimate import estimate
from costmodel.layouts import AXES, Layouts
from costmodel.problem import Problem
from hardware.errors import InputError
from search.conflict import LAUNCHABLE, Candidates, conflict
from search.fixes import fixes, nearest_gpus
from search.possible import ALL_RANKS, divisors
from search.rule import violations
from search.rules import rules
from search.space import SearchSpace, load_space, no_world_size
from search.typed import command_line
from tests.commands import Outcome
from tests.strategies import problem, problems

ROOT = Path(__file__).parents[2]


# -- infeasible requests

V3 = "deepseek-v3 hgx-h800 --gpus"
SMALL = "llama-3.1-8b dgx-h100 --gpus 8"
LARGE = "llama-3.1-70b dgx-h100 --gpus 64"
REQUESTS = {
    "too few GPUs": ("llama-3.1-405b dgx-h100 --gpus 8", ["memory"], "optimizer 567 GiB"),
    "no recomputation": ("llama-3.1-70b dgx-h100 --gpus 16 --recompute none", ["memory"], "of 79.1 GiB"),
    "micro-batch": (f"{SMALL} --tp 1 --pp 1 --zero 1 --micro-batch 16 --recompute none", ["memory"], "micro-batch 16"),
    "long context": (f"{LARGE} --seq-len 1048576 --global-batch 8 --cp 1 --tp 8 --pp 8", ["memory"], "activations"),
    "TP beyond the node": (f"{LARGE} --tp 16", ["tp_domain"], "tp 16"),
    "heads": ("llama-3.1-70b dgx-h100 --gpus 24 --tp 3 --global-batch 48", ["heads"], "64 attention heads"),
    "experts": (f"{V3} 192 --ep 48 --global-batch 1920", ["experts"], "256 experts do not divide by ep 48"),
    "expert group": (f"{V3} 256 --ep 256 --pp 16", ["expert_group"], "ep 256 x etp 1 does not divide the 16 GPUs"),
    "batch": (f"{SMALL} --tp 1 --pp 1 --cp 1 --global-batch 8 --micro-batch 2", ["micro_batch"], "batch of 8"),
    "ZeRO with PP": (f"{LARGE} --zero 3 --pp 2,4", ["zero_with_pp"], "not 3 with pp 2"),
    "virtual stages": (f"{LARGE} --pp 16 --vpp 8", ["virtual_stages"], "80 layers allow vpp 5"),
    "stages": ("llama-3.1-8b dgx-h100 --gpus 64 --pp 64", ["pp_layers"], "32 layers cannot fill 64 stages"),
    "DualPipe": (
        f"{V3} 128 --profile deepseek --schedule dualpipe --pp 16 --tp 1 --cp 1 --global-batch 128 --grad-dtype bf16",
        ["micro_batches"],
        "at least 2 x pp 16",
    ),
    "order of the ranks": (
        "mixtral-8x7b dgx-h100 --gpus 64 --tp 2 --pp 4 --cp 1 --ep 8 --etp 1 --rank-order tp-cp-pp-dp",
        ["expert_order"],
        "ep 8 x etp 1 = 8, tp 2 x cp 1 = 2",
    ),
    "sequence": (f"{SMALL} --seq-len 4100 --cp 4", ["sequence"], "4100 tokens does not divide into 2 x cp 4"),
    "seven GPUs": (
        "llama-3.1-8b dgx-h100 --gpus 7 --tp 2 --global-batch 64",
        ["world_size"],
        "tp 2: does not divide 7 GPUs; nearest: tp 1",
    ),
    "odd TP": (f"{LARGE} --tp 3", ["world_size"], "tp 3: does not divide 64 GPUs; nearest: tp 2 or 4"),
    "TP beyond the GPUs": (f"{SMALL} --tp 16", ["world_size"], "tp 16: does not divide 8 GPUs; nearest: tp 8"),
    "odd PP": (f"{SMALL} --pp 5", ["world_size"], "pp 5: does not divide 8 GPUs; nearest: pp 4 or 8"),
    "a product": (f"{SMALL} --tp 4 --pp 4", ["world_size"], "makes 8 GPUs; nearest: tp 2; or pp 2"),
    "memory or ZeRO 3 with PP": (f"{LARGE} --tp 1 --pp 4 --zero 1,3", ["zero_with_pp", "memory"], "not 3 with pp 4"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_the_rules_in_conflict_are_named_and_the_fixes_fit(run: Callable[..., Outcome], name: str) -> None:
    request, named, because = REQUESTS[name]
    code, out, err = run("why", *request.split(), "--json")
    found = json.loads(out)
    assert (code, found["feasible"]) == (3, False)
    assert [part["rule"] for part in found["core"]] == named
    assert because in " ".join(part["because"] for part in found["core"])
    assert all(rule in err for rule in named)
    assert found["fixes"]
    for fix in found["fixes"]:
        assert set(fix) == {"change", "layout", "memory_headroom"}
        explained = run("explain", *explanation(request, fix), "--json")
        assert explained.code == 0, (fix, explained.err)
        assert json.loads(explained.out)["memory_headroom"] == fix["memory_headroom"]


def explanation(request: str, fix: dict[str, Any]) -> list[str]:
    """The arguments of `explain` for the layout of a fix: its inputs are those of the request, then the change."""
    model, cluster, *rest = request.split()
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    typed = {axis.replace("_", "-"): str(value).lower() for axis, value in fix["layout"].items()}
    typed["zero"] = typed.pop("zero-stage")
    inputs = {name: str(to) for name, (_, to) in fix["change"].items() if name not in fix["layout"]}
    if "gpus" in inputs and "--global-batch" not in options:
        inputs["global-batch"] = {"llama-3.1-8b": "512", "llama-3.1-70b": "512", "llama-3.1-405b": "512"}.get(
            model, "1024"
        )
    switch = ["--any-domain"] * (inputs.pop("any_domain", "False") == "True")
    options |= {f"--{name.replace('_', '-')}": value for name, value in (typed | inputs).items()}
    return [model, cluster, *switch, *(word for pair in options.items() for word in pair)]


def changes(run: Callable[..., Outcome], request: str) -> list[dict[str, list[Any]]]:
    return [fix["change"] for fix in json.loads(run("why", *request.split(), "--json").out)["fixes"]]


def test_the_smallest_number_of_gpus_is_named(run: Callable[..., Outcome]) -> None:
    """104 GPUs hold Llama 3.1 405B, and no smaller number of whole nodes does."""
    margin = ("--memory-margin", "0.5")
    assert changes(run, "llama-3.1-405b dgx-h100 --gpus 8 --memory-margin 0.5") == [{"gpus": [8, 104]}]
    for nodes in range(8, 13):
        job = ("llama-3.1-405b", "dgx-h100", "--gpus", str(8 * nodes), "--global-batch", "512")
        code = run("search", *job, *margin).code
        assert code == 3


def test_a_margin_that_rules_out_what_fits_as_predicted_may_be_given_up(run: Callable[..., Outcome]) -> None:
    tight = "llama-3.1-70b dgx-h100 --gpus 64 --tp 4 --pp 8 --micro-batch 1 --recompute none --vpp 1 --cp 1"
    told = run("why", *tight.split(), "--memory-margin", "0.99")
    [fixed] = [fix for fix in changes(run, f"{tight} --memory-margin 0.99") if "memory_margin" in fix]
    before, after = fixed["memory_margin"]
    assert f"memory-margin 0.99 -> {after}" in told.out
    assert 0.5 < after < before == 0.99
    assert run("search", *tight.split(), "--memory-margin", f"{after}").code == 0
    assert run("search", *tight.split(), "--memory-margin", f"{after + 0.01:.2f}").code == 3


def test_as_much_headroom_as_fits_is_kept_to_a_tenth_of_a_gib(run: Callable[..., Outcome]) -> None:
    job = f"{SMALL} --tp 1 --headroom"
    told = run("why", *job.split(), "78 GiB")
    found = re.search(r"headroom 78 GiB -> ([0-9.]+) GiB", told.out)
    assert found
    assert f"--headroom '{found[1]} GiB'" in told.err
    assert run("search", *job.split(), f"{found[1]} GiB").code == 0
    assert run("search", *job.split(), f"{float(found[1]) + 0.1:.1f} GiB").code == 3


def test_a_sequence_is_cut_no_further_than_it_must(run: Callable[..., Outcome]) -> None:
    """No multiple of 16 tokens above the length that is told has a layout."""
    tight = f"{LARGE} --tp 4 --pp 8 --micro-batch 1 --recompute none --vpp 1 --cp 1 --memory-margin 0.99"
    [fixed] = [fix for fix in changes(run, tight) if "seq_len" in fix]
    before, after = fixed["seq_len"]
    assert (before, after % 16) == (8192, 0)
    for length in range(after, before, 16):
        case = problem("llama-3.1-70b", gpus=64, seq_len=length, global_batch=512, memory_margin=0.99)
        limits = {"tp": (4,), "pp": (8,), "micro_batch": (1,), "recompute": ("none",), "vpp": (1,), "cp": (1,)}
        candidates = Candidates(case, load_space(case, limits=limits))
        leanest = candidates.leanest(candidates.legal)
        assert leanest
        assert (leanest.broken == 0) is (length == after)


def test_degrees_off_the_gpus_get_the_nearest_of_both(run: Callable[..., Outcome]) -> None:
    assert changes(run, "llama-3.1-8b dgx-h100 --gpus 6 --tp 4") == [{"tp": [4, 2]}, {"gpus": [6, 4]}]
    assert changes(run, "llama-3.1-8b dgx-h100 --gpus 8 --pp 5") == [{"pp": [5, 4]}, {"gpus": [8, 5]}]
    assert changes(run, "llama-3.1-8b dgx-h100 --gpus 1") == [{"gpus": [1, 2]}]
    assert changes(run, f"{LARGE} --tp 3") == [{"tp": [3, 2]}]


def test_the_gpus_are_those_of_all_degrees_that_were_typed(run: Callable[..., Outcome]) -> None:
    found = changes(run, f"{LARGE} --tp 8 --pp 16 --dp 4")
    assert {"gpus": [64, 512]} in found
    assert {"gpus": [64, 128], "dp": [3, 1]} in changes(run, f"{LARGE} --tp 8 --pp 16 --dp 3")


def test_the_layout_beside_a_change_is_not_called_the_best(run: Callable[..., Outcome]) -> None:
    out = run("why", *f"{LARGE} --tp 16".split()).out
    assert "a layout that fits" in out
    assert "search finds the best" in out


def test_a_layout_gets_the_nearest_layouts(run: Callable[..., Outcome]) -> None:
    layout = "--tp 8 --pp 4 --vpp 1 --dp 2 --cp 1 --ep 1 --etp 1 --zero 0 --micro-batch 4 --sequence-parallel on"
    found = changes(run, f"{LARGE} {layout} --recompute none --schedule 1f1b")
    assert {"micro_batch": [4, 1]} in found
    assert {"recompute": ["none", "mlp"]} in found
    assert all(len(change) == 1 for change in found)


def test_axes_that_follow_are_shown_and_a_list_stays_a_list(run: Callable[..., Outcome]) -> None:
    found = changes(run, f"{LARGE} --tp 4 --pp 1 --dp 16 --zero 0,1")
    assert [4, 8] in [change["tp"] for change in found if set(change) == {"tp", "dp"}]
    assert [1, 2] in [change["pp"] for change in found if set(change) == {"pp", "dp"}]
    assert {"zero_stage": [[0, 1], 2]} in found


def test_what_is_in_one_axis_has_no_fix_by_gpus(run: Callable[..., Outcome]) -> None:
    assert all("gpus" not in change for change in changes(run, REQUESTS["virtual stages"][0]))


def test_a_request_that_no_change_of_an_axis_helps_may_need_two(run: Callable[..., Outcome]) -> None:
    found = changes(run, f"{LARGE} --tp 16 --zero 3 --pp 4")
    axes = [set(change) for change in found if "any_domain" not in change and "gpus" not in change]
    assert axes
    assert all({"tp"} < names <= {"tp", "pp", "zero_stage"} and len(names) == 2 for names in axes)


def test_why_is_the_same_each_time_and_prints_a_command(run: Callable[..., Outcome]) -> None:
    one, two = (run("why", *f"{LARGE} --tp 16".split()) for _ in range(2))
    assert one == two
    assert "tp_domain: tp 16" in one.out
    assert "TP 16 -> 8" in one.out
    [line] = [line for line in one.err.splitlines() if "meshscout search" in line]
    assert run(*shlex.split(line[line.index("meshscout search") :])[1:]).code == 0


def test_a_feasible_request_is_said_to_be(run: Callable[..., Outcome]) -> None:
    code, out, err = run("why", *SMALL.split(), "--json")
    found, searched = json.loads(out), json.loads(run("search", *SMALL.split(), "--no-bounds", "--json").out)
    assert (code, err) == (0, "")
    assert (found["feasible"], found["core"], found["fixes"]) == (True, [], [])
    assert found["layouts"] == searched["space"]["feasible"]
    assert found["best"]["memory_headroom"] == searched["frontier"][0]["memory_headroom"]
    assert "candidates are feasible" in run("why", *SMALL.split()).out


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--global-batch 7 --dp 8", "nearest is 8"),
        ("--ep 2", "no experts"),
        ("--zero 4", "'4'"),
        ("--schedule dualpipe", "megatron"),
        ("--dp 0", "'0'"),
    ],
)
def test_what_is_no_request_is_wrong_input(run: Callable[..., Outcome], options: str, named: str) -> None:
    code, out, err = run("why", *SMALL.split(), *options.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert named in err


@pytest.mark.parametrize(
    "argv",
    [
        "search llama-3.1-405b dgx-h100 --gpus 8 --tp 4,8 --recompute none,full --threads 1 --any-domain",
        f"explain {LARGE} --tp 8 --pp 4 --micro-batch 8 --recompute none",
        f"explain {LARGE} --tp 8 --pp 2 --zero 3 --sequence-parallel false --dp-shard 2",
    ],
)
def test_search_and_explain_point_to_why(run: Callable[..., Outcome], argv: str) -> None:
    code, _, err = run(*argv.split())
    [line] = [line for line in err.splitlines() if "meshscout why" in line]
    words = shlex.split(line[line.index("meshscout why") :])[1:]
    assert (code, run(*words).code) == (3, 3)


def test_a_command_line_keeps_what_was_typed() -> None:
    given = {"model": "my model.toml", "cluster": "dgx-h100", "gpus": 8, "tp": (4, 8), "any_domain": True, "top": 3}
    given |= {"precision": "bf16", "profile": "deepseek", "zero": 0}
    line = "meshscout why 'my model.toml' dgx-h100 --gpus 8 --profile deepseek --tp 4,8 --zero 0 --any-domain"
    assert command_line("why", given) == line


# -- minimality


@st.composite
def requests(draw: st.DrawFn) -> tuple[Problem, SearchSpace]:
    """A small problem with a few values of each axis, possible or not."""
    case = draw(problems())
    gpus, space = divisors(case.workload.gpus), load_space(case)
    values: dict[str, Any] = {axis: space.axes[axis] for axis in AXES}
    values |= dict.fromkeys(("tp", "pp", "cp", "ep", "etp"), gpus) | {
        "vpp": (1, 2, 3),
        "micro_batch": (1, 2, 3, 16, 64),
    }
    values["dp_shard"] = (ALL_RANKS, 2, 3, 8)
    limits = {
        axis: draw(st.lists(st.sampled_from(values[axis]), min_size=1, max_size=2, unique=True))
        for axis in AXES
        if axis != "dp" and draw(st.booleans())
    }
    few = {axis: list(space.axes[axis][:2]) for axis in ("vpp", "micro_batch", "recompute")} | limits
    try:
        space = load_space(case, limits=few, strict=False)
    except InputError:
        reject()
    assume(not no_world_size(case, space))
    return case, space


def kept(case: Problem, space: SearchSpace) -> dict[str, np.ndarray]:
    """Whether each candidate keeps each rule, by the definition: every tuple, one after the other rule."""
    others = [axis for axis in AXES if axis not in ("tp", "pp", "cp", "dp")]
    rows = []
    for tp, pp, cp, dp in product(*(space.axes[axis] for axis in ("tp", "pp", "cp", "dp"))):
        if prod((tp, pp, cp, dp)) == case.workload.gpus:
            for values in product(*(space.axes[axis] for axis in others)):
                rows.append({"tp": tp, "pp": pp, "cp": cp, "dp": dp} | dict(zip(others, values, strict=True)))
    table = {axis: np.array([row[axis] for row in rows]) for axis in AXES}
    table["dp_shard"] = np.where(table["dp_shard"] == ALL_RANKS, table["dp"] * table["cp"], table["dp_shard"])
    *ordered, memory = rules(case, space)
    found = {rule.name: rule.mask(table) for rule in ordered}
    fits = np.all([found[name] for name in LAUNCHABLE], axis=0)
    if fits.any():
        fits[fits] = memory.mask(
            {"memory_headroom": estimate(case, Layouts.from_columns(table).take(fits)).memory_headroom}
        )
    del found["memory_floor"]
    return found | {"memory": fits}


@given(requests())
@settings(max_examples=60, deadline=None)
def test_the_core_is_infeasible_and_each_part_of_it_is_not(request: tuple[Problem, SearchSpace]) -> None:
    case, space = request
    ok = kept(case, space)
    candidates = Candidates(case, space)
    leanest = candidates.leanest(candidates.legal)
    feasible = bool(np.all(list(ok.values()), axis=0).any())
    assert feasible is (leanest is not None and leanest.broken == 0)
    if feasible:
        return
    core = [rule.name for rule, _ in conflict(candidates)]
    assert not np.all([ok[name] for name in core], axis=0).any()
    for name in core:
        assert np.all([ok[other] for other in core if other != name] or [np.ones_like(ok[name])], axis=0).any(), core


@given(requests())
@settings(max_examples=15, deadline=None)
def test_every_fix_keeps_the_rules_and_fits(request: tuple[Problem, SearchSpace]) -> None:
    case, space = request
    candidates = Candidates(case, space)
    leanest = candidates.leanest(candidates.legal)
    if leanest and leanest.broken == 0:
        return
    for fix in fixes(case, space, conflict(candidates)):
        free = load_space(fix.problem, tp_across_domains="any_domain" in fix.change)
        cost = estimate(fix.problem, fix.layout)
        assert (
            violations(rules(fix.problem, free), fix.layout.row(0) | {"memory_headroom": cost.memory_headroom[0]}) == []
        )
        assert cost.memory_headroom[0] == fix.memory_headroom >= 0
        assert fix.change


def test_without_the_limits_the_number_asked_for_is_the_nearest() -> None:
    case = problem("llama-3.1-8b", gpus=64)
    limited = load_space(case, limits={"vpp": (4,)}, strict=False)
    [fix] = nearest_gpus(case, load_space(case), limited)
    assert fix.problem.workload.gpus == 64
    assert "gpus" not in fix.change


# -- Ctrl-C

INTERRUPTED = """
import sys, search.engine, search.skeletons
module, name = (search.skeletons, "solve") if sys.argv[1] == "solve" else (search.engine.Work, "run")
real = getattr(module, name)
def started(*given):
    print("started", flush=True)
    return real(*given)
setattr(module, name, started)
from search.cli import main
sys.exit(main(["search", "deepseek-v3", "gb200-nvl72", "--gpus", "256"]))
"""


@pytest.mark.parametrize("phase", ["solve", "score"])
def test_ctrl_c_is_130_quiet_and_leaves_no_file(tmp_path: Path, phase: str) -> None:
    argv = [sys.executable, "-c", INTERRUPTED, phase]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert list(tmp_path.iterdir()) == []
