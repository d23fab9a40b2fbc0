"""What may be searched: words and lists of a space file, limits, and the message when a value cannot be meant."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.layouts import AXES, SCHEDULES
from costmodel.problem import Problem
from costmodel.recompute import RecomputeSet
from hardware.errors import InputError
from search.possible import ALL_RANKS, divisors
from search.space import SKELETON_AXES, SearchSpace, describe_spaces, load_space, space_names
from tests.strategies import problem, problems

SPACE = """
[axes]
tp = [1, 2, 4, 8, 16]
pp = "divisors"
vpp = [1, 2]
dp = "divisors"
dp_shard = ["all", 8, 32]
cp = [1]
ep = [1]
etp = [1]
zero_stage = "profile"
micro_batch = [1, 3]
recompute = ["none", "selective"]
sequence_parallel = [0, 1]
schedule = ["1f1b", "interleaved", "zero-bubble"]

[at_most]
pp = 4
"""


@given(problems(), st.sampled_from(("default", "wide")))
@settings(max_examples=40, deadline=None)
def test_the_grid_holds_each_product_once(problem: Problem, name: str) -> None:
    space, gpus = load_space(problem, name), problem.workload.gpus
    grid = space.grid(gpus)
    rows = list(zip(*(grid[axis].tolist() for axis in SKELETON_AXES), strict=True))
    assert rows == sorted(set(rows))
    assert all(tp * pp * cp * dp == gpus for tp, pp, cp, dp, _, _ in rows)
    assert {row[:4] for row in rows} == {
        (tp, pp, cp, dp)
        for tp in space.axes["tp"]
        for pp in space.axes["pp"]
        for cp in space.axes["cp"]
        for dp in space.axes["dp"]
        if tp * pp * cp * dp == gpus
    }
    assert list(space.axes) == list(AXES)
    assert all(values == tuple(sorted(set(values))) for values in space.axes.values())


@given(st.lists(st.integers(1, 9), min_size=1), st.sets(st.integers(0, 9), min_size=1))
def test_shard_choices_count_different_groups(ranks: list[int], values: set[int]) -> None:
    space = SearchSpace(name="", axes={"dp_shard": tuple(sorted(values))})
    expected = [len({group if group != ALL_RANKS else rank for group in values}) for rank in ranks]
    assert space.shard_choices(np.array(ranks)).tolist() == expected


def test_default_space_of_a_dense_model() -> None:
    space = load_space(problem("llama-3.1-70b", gpus=64))
    assert space.axes["tp"] == (1, 2, 4, 8, 16, 32, 64)
    assert space.axes["ep"] == space.axes["etp"] == (1,)
    assert space.axes["dp_shard"] == (ALL_RANKS, 8, 16, 32, 64)
    assert {SCHEDULES[code] for code in space.axes["schedule"]} == {"1f1b", "interleaved"}


def test_expert_degrees_divide_the_experts() -> None:
    assert load_space(problem("mixtral-8x7b", gpus=128)).axes["ep"] == (1, 2, 4, 8)


def test_what_the_profile_cannot_launch_is_no_candidate() -> None:
    case = problem("deepseek-v3", gpus=64)
    can_not = {"schedules": ("1f1b", "zero-bubble"), "shard_groups": False, "context_parallel": False}
    can_not |= {"sequence_parallel": False, "expert_tensor_parallel": False, "zero_stages": (0, 1)}
    can_not |= {"rank_orders": ("tp-cp-pp-dp",)}
    axes = load_space(replace(case, profile=replace(case.profile, **can_not))).axes
    assert axes["schedule"] == (SCHEDULES.index("1f1b"), SCHEDULES.index("zero-bubble"))
    assert axes["vpp"] == axes["cp"] == axes["etp"] == (1,)
    assert axes["sequence_parallel"] == (0,)
    assert axes["dp_shard"] == (ALL_RANKS,)
    assert axes["zero_stage"] == (0, 1)
    assert axes["rank_order"] == (1,)


def test_recompute_sets_without_effect_are_left_out() -> None:
    def names(model: str) -> list[str]:
        case = problem(model, gpus=8)
        return [case.profile.recompute[code].name for code in load_space(case).axes["recompute"]]

    assert names("llama-3.1-8b") == ["none", "selective", "mlp", "full"]
    assert names("mixtral-8x7b") == ["none", "norms", "selective", "moe", "full"]
    assert names("deepseek-v3") == ["none", "norms", "selective", "mlp", "moe", "full"]


def test_limits_restrict_one_axis_and_leave_the_others() -> None:
    case = problem("llama-3.1-70b", gpus=64)
    space = load_space(case, limits={"tp": [8, 4, 8], "recompute": ["full", "none"], "dp_shard": ["all", 8]})
    assert space.axes["tp"] == (4, 8)
    assert space.axes["recompute"] == (0, case.profile.recompute_code("full"))
    assert space.axes["dp_shard"] == (ALL_RANKS, 8)
    assert space.axes["pp"] == load_space(case).axes["pp"]
    assert set(space.limits) == {"tp", "recompute", "dp_shard"}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"tp": [3]}, "tp 3: not possible on 64 GPUs with 64 heads; nearest are 2 and 4"),
        ({"tp": [3], "pp": [16]}, "tp 3: not possible on 64 GPUs with 64 heads; nearest with pp 16 are 2 and 4"),
        ({"tp": [6], "pp": [16]}, "tp 6: not possible on 64 GPUs with 64 heads; nearest with pp 16 is 4"),
        ({"tp": [128]}, "tp 128: not possible on 64 GPUs with 64 heads; nearest is 64"),
        ({"pp": [5]}, "pp 5: not possible on 64 GPUs with 80 layers; nearest are 4 and 8"),
        ({"dp": [0]}, "dp 0: not possible on 64 GPUs; nearest is 1"),
        ({"vpp": [81]}, "vpp 81: not possible on 80 layers; nearest is 80"),
        ({"micro_batch": [3]}, "micro_batch 3: not possible on a global batch of 512; nearest are 2 and 4"),
        ({"dp_shard": [12]}, "dp_shard 12: not possible on 64 GPUs; nearest are 8 and 16"),
        ({"ep": [2]}, "ep 2: llama-3.1-70b (no experts) has 1"),
        ({"zero_stage": [4]}, "zero_stage 4: profile megatron has 0, 1, 2, 3"),
        ({"schedule": ["dualpipe"]}, "schedule dualpipe: profile megatron has 1f1b, interleaved"),
        ({"rank_order": ["dp"]}, "unknown rank_order 'dp'; known: tp-cp-dp-pp, tp-cp-pp-dp"),
        ({"schedule": ["1fb1"]}, "unknown schedule '1fb1'; did you mean '1f1b'? known: "),
        ({"recompute": ["everything"]}, "recompute 'everything': profile megatron has none, "),
        ({"tp": [8], "pp": [8], "cp": [1], "dp": [8]}, "tp 8 x pp 8 x cp 1 x dp 8: no tp x pp x cp x dp makes 64 GPUs"),
        ({"tp": [32], "pp": [8]}, "tp 32 x pp 8: no tp x pp x cp x dp makes 64 GPUs; nearest: tp 8; or pp 2"),
        ({"tp": []}, "tp: no value is given"),
        ({"tp": ["two"]}, "tp 'two': expected whole numbers"),
        ({"tpp": [2]}, "unknown axis 'tpp'; did you mean 'tp'? known: "),
    ],
)
def test_values_that_no_candidate_can_have(limits: dict[str, list[int | str]], message: str) -> None:
    case = problem("llama-3.1-70b", gpus=64)
    with pytest.raises(InputError) as caught:
        load_space(case, limits=limits)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_number_of_gpus_that_leaves_one_degree_is_not_laid_on_the_profile() -> None:
    with pytest.raises(InputError, match="tp 2: not possible on 7 GPUs with 32 heads; nearest is 1"):
        load_space(problem("llama-3.1-8b", gpus=7), limits={"tp": [2]})


def test_expert_values_name_the_experts() -> None:
    with pytest.raises(InputError, match="ep 3: not possible on 64 GPUs with 8 experts; nearest are 2 and 4"):
        load_space(problem("mixtral-8x7b", gpus=64), limits={"ep": [3]})


def test_only_values_that_can_be_used_are_offered() -> None:
    """32 divides 288 GPUs and the experts, but not the 72 GPUs of each of 4 stages."""
    job = problem("deepseek-v3", gpus=288)
    with pytest.raises(InputError, match=r"ep 36: not possible on 288 GPUs with 256 experts; nearest is 32$"):
        load_space(job, limits={"ep": [36]})
    with pytest.raises(InputError, match=r"nearest with pp 4 is 8$"):
        load_space(job, limits={"ep": [36], "pp": [4], "tp": [2], "etp": [1]})


def test_recompute_of_modules_that_the_model_lacks() -> None:
    case = problem("llama-3.1-8b", gpus=8)
    sets = (*case.profile.recompute, RecomputeSet(name="mla", modules=("mla_up_proj",)))
    case = replace(case, profile=replace(case.profile, recompute=sets))
    with pytest.raises(InputError, match=r"recompute mla: llama-3.1-8b has no mla_up_proj"):
        load_space(case, limits={"recompute": ["mla"]})


def test_a_space_file_gives_lists_words_and_ceilings(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(SPACE)
    space = load_space(problem("llama-3.1-70b", gpus=16), str(path))
    assert space.axes["tp"] == (1, 2, 4, 8, 16)
    assert space.axes["pp"] == (1, 2, 4)
    assert space.axes["dp_shard"] == (ALL_RANKS, 8)
    assert space.axes["micro_batch"] == (1,)
    assert {SCHEDULES[code] for code in space.axes["schedule"]} == {"1f1b", "interleaved"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[axes]", "[axes]\ntq = [1]", "own.toml: unknown key 'axes.tq'"),
        ("[axes]", "axes = 3\n[other]", "own.toml: axes = 3: expected a table"),
        ('pp = "divisors"', 'pp = "all"', "own.toml: axes.pp: pp 'all': expected whole numbers (words: divisors)"),
        ("tp = [1, 2, 4, 8, 16]", "tp = [3, 5]", "own.toml: axes.tp: no value fits the problem; possible are 1, 2, 4"),
        ("tp = [1, 2, 4, 8, 16]", "tp = [1.5]", "own.toml: axes.tp: tp 1.5: expected whole numbers"),
        ('"zero-bubble"', '"gpipe"', "own.toml: axes.schedule: unknown schedule 'gpipe'"),
        ("pp = 4", "pp = 0", "own.toml: at_most.pp = 0: must be at least 1"),
        ("[at_most]", "[atmost]", "own.toml: unknown key 'atmost'"),
    ],
)
def test_a_wrong_space_file_names_the_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "own.toml"
    assert old in SPACE
    path.write_text(SPACE.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_space(problem("llama-3.1-70b", gpus=16), str(path))
    assert message in str(caught.value)


def test_axes_that_a_file_leaves_out_are_those_of_the_default_space(tmp_path: Path) -> None:
    """With their ceilings: all of cp would be 2,048 ranks."""
    case, path = problem("llama-3.1-70b", gpus=2048, seq_len=131072), tmp_path / "own.toml"
    default = load_space(case).axes
    path.write_text("[axes]\ntp = [2, 4]\n")
    assert load_space(case, str(path)).axes == {**default, "tp": (2, 4)}
    path.write_text("[at_most]\ncp = 4\n")
    assert load_space(case, str(path)).axes == {**default, "cp": (1, 2, 4)}
    path.write_text('[axes]\ncp = "divisors"\n')
    assert max(load_space(case, str(path)).axes["cp"]) > max(default["cp"]) == 64


def test_unknown_spaces_are_named() -> None:
    with pytest.raises(InputError, match="unknown space 'defualt'; did you mean 'default'"):
        load_space(problem(), "defualt")
    with pytest.raises(InputError, match=r"nowhere\.toml: no such file"):
        load_space(problem(), "nowhere.toml")


def test_wide_holds_default() -> None:
    case = problem("mixtral-8x7b", gpus=64)
    default, wide = load_space(case), load_space(case, "wide")
    assert set(describe_spaces()) == set(space_names()) >= {"default", "wide"}
    assert all(set(default.axes[axis]) <= set(wide.axes[axis]) for axis in AXES)


@given(st.integers(1, 5000))
def test_divisors(number: int) -> None:
    assert divisors(number) == tuple(n for n in range(1, number + 1) if number % n == 0)
