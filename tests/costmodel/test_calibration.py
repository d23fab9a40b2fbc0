"""Measured runs: read as they were stated, scored as documented, and rates that a user's own runs improve."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.calibration import architecture, frameworks, layout, machine, runs, software
from costmodel.calibration.by_gpu import calibrate, to_toml
from costmodel.calibration.cells import REQUIRED
from costmodel.calibration.fit import fit, fitted_at, refit
from costmodel.calibration.frameworks import profile_name
from costmodel.calibration.holdout import blocks, left_out
from costmodel.calibration.knobs import KNOWN_LIMITS
from costmodel.calibration.predict import predict
from costmodel.calibration.runs import read_runs, run_of, strangers
from costmodel.calibration.validate import validate
from costmodel.profile import load_profile
from costmodel.recompute import MODULES
from hardware.errors import InputError

SAMPLE = Path(__file__).parents[1] / "golden" / "runs_sample.csv"
RUNS, SKIPPED = read_runs(SAMPLE)
ROW = {
    "id": "a", "model": "llama-3.1-8b", "hidden": "4096", "layers": "32", "heads": "32", "kv_heads": "8",
    "ffn_hidden": "14336", "vocab": "128256", "gated_mlp": "1", "gpu": "H100-SXM", "gpus": "16", "precision": "bf16",
    "framework": "megatron-core 0.14", "tp": "2", "pp": "2", "mbs": "1", "gbs": "64", "seq": "8192", "sp": "1",
    "zero": "distopt", "step_time_s": "10", "trust": "ok", "recompute": "none",
}  # fmt: skip


def own(framework: str):
    return [run for run in RUNS if run.problem.profile.name == framework and not run.oom]


def test_a_row_is_the_job_that_ran():
    run = run_of(ROW)
    axes = run.layout.row(0)
    assert (axes["tp"], axes["pp"], axes["dp"], axes["zero_stage"], axes["sequence_parallel"]) == (2, 2, 4, 1, 1)
    assert run.problem.model.kv_heads == 8
    assert run.step_time == 10


@pytest.mark.parametrize(
    ("change", "gradients"),
    [
        ({"precision": "fp16"}, "fp16"),
        ({}, "fp32"),
        ({"framework": "megatron-bridge"}, "bf16"),
        ({"framework": "NeMo 24.12"}, "bf16"),
    ],
)
def test_gradients_are_of_the_type_that_ran(change, gradients):
    """Megatron-LM accumulates in fp32 only for bf16; the recipes of NeMo and Megatron-Bridge set grad_reduce_in_fp32
    to false."""
    assert run_of(ROW | change).problem.workload.grad_dtype == gradients


def test_a_row_of_no_stated_trust_counts():
    assert run_of(ROW | {"trust": ""}).trust == "ok"


def test_a_framework_that_is_not_listed_is_named():
    others = [run_of(ROW | {"framework": name}) for name in ("OLMo-core", "ColossalAI", "OLMo-core", "NeMo 24.12")]
    assert strangers(others) == {"ColossalAI": 1, "OLMo-core": 2}
    assert {run.problem.profile.name for run in others} == {"torchtitan", "megatron"}


def test_a_profile_takes_its_own_runs_and_those_that_no_profile_knows(tmp_path):
    """Its framework's, by the shipped profile that it starts from; any other row says why it is left out."""
    path = tmp_path / "mine.toml"
    path.write_text('base = "megatron"\n[time]\ngemm = 0.5\n')
    mine = load_profile(str(path))
    for framework in ("megatron-core 0.14", "NeMo 24.12", "home-made"):
        run = run_of(ROW | {"framework": framework}, mine)
        assert (run.problem.profile.name, run.problem.profile.time.gemm) == ("mine", 0.5)
    with pytest.raises(InputError, match="framework 'torchtitan' is not that of profile mine"):
        run_of(ROW | {"framework": "torchtitan"}, mine)


def test_a_users_profile_measures_the_ranks_that_its_base_does(tmp_path):
    """nanotron logs the first stage's memory, and splits layers by cost; its own name must not change that."""
    path = tmp_path / "mine.toml"
    path.write_text('base = "nanotron"\n')
    rows = [ROW | {"framework": "nanotron", "id": str(pp), "pp": str(pp), "peak_mem_gib": "9"} for pp in (1, 4)]
    as_shipped = predict([run_of(row) for row in rows])
    as_mine = predict([run_of(row, load_profile(str(path))) for row in rows])
    assert [it.memory for it in as_mine] == [it.memory for it in as_shipped]
    assert [it.step_time for it in as_mine] == [it.step_time for it in as_shipped]


def test_every_column_that_is_missing_is_named(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("id,model,hidden,layers,heads,vocab,gpu,framework,gbs,seq\n")
    with pytest.raises(InputError, match=r"columns 'gpus', 'mbs' are missing; docs/runs_format\.md"):
        read_runs(path)


def test_every_column_that_is_read_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "runs_format.md").read_text()
    readers = (architecture, frameworks, layout, machine, runs, software)
    source = "".join(Path(it.__file__).read_text() for it in readers)
    read = set(re.findall(r'row(?:\.get\(|\[)"(\w+)"', source)) | set(re.findall(r'\(row, "(\w+)"', source))
    assert read >= {"precision", "kv_heads", "peak_mem_gib"}
    for name in {*read, *REQUIRED, "tp", "pp", "vpp", "cp", *(module for module in MODULES)}:
        assert re.search(rf"\b{name}\b", text), name
    for begins, profile in frameworks.FRAMEWORKS:
        assert f"| {begins} | {profile} |" in text


def test_cells_as_other_programs_write_them_mean_the_same():
    """A frame with empty cells writes 1 as 1.0; a spreadsheet TRUE."""
    plain = run_of(ROW | {"oom": "1", "gated_mlp": "0", "tied_embeddings": "1", "recompute": "full"})
    other = {"oom": "TRUE", "gated_mlp": "0.0", "tied_embeddings": "1.0", "sp": "True", "recompute": "Full"}
    typed = run_of(ROW | other | {"precision": "BF16", "gpus": "16.0"})
    assert (typed.oom, typed.problem) == (plain.oom, plain.problem)
    assert typed.layout.row(0) == plain.layout.row(0)
    assert (typed.oom, typed.problem.model.gated_mlp, typed.problem.model.tied_embeddings) == (True, False, True)


def test_a_table_that_is_separated_by_semicolons_is_told_so(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("id;model;hidden\na;b;1\n")
    with pytest.raises(InputError, match="missing; is it separated by commas"):
        read_runs(path)


def test_step_time_comes_from_tokens_where_it_is_not_stated():
    run = run_of(ROW | {"step_time_s": "", "tokens_per_s_per_gpu": "8192"})
    assert run.step_time == pytest.approx(64 * 8192 / (16 * 8192))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mbs": ""}, "mbs not stated"),
        ({"layers": ""}, "layers not stated"),
        ({"tp": "3"}, "does not divide 16 GPUs"),
        ({"gbs": "63"}, "does not divide global batch 63"),
        ({"pp": "16", "tp": "1", "layers": "8"}, "more than 8 layers"),
        ({"mbs": "one"}, "not a number"),
        ({"mbs": "0"}, "mbs = 0 is out of range"),
        ({"heads": "0"}, "heads = 0 is out of range"),
        ({"vpp": "1e30"}, r"vpp = 1e\+30 is out of range"),
        ({"gpus": "16.5"}, "not a whole number"),
        ({"oom": "maybe"}, "oom = 'maybe' is neither 1 nor 0"),
        ({"gated_mlp": "swiglu"}, "gated_mlp = 'swiglu' is neither 1 nor 0"),
        ({"trust": "high"}, "trust = 'high' is none of ok, medium, low"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(change, says):
    with pytest.raises(InputError, match=says):
        run_of(ROW | change)


def test_rows_are_skipped_with_their_reason_and_never_guessed():
    assert all("not stated" in it.why for it in SKIPPED)
    assert SKIPPED
    assert len(RUNS) + len(SKIPPED) == len(SAMPLE.read_text().splitlines()) - 1


def test_next_to_no_trusted_row_of_the_shipped_runs_is_skipped():
    read, skipped = read_runs(runs.RUNS)
    count = {name: sum(it.trust == "ok" for it in rows) for name, rows in (("read", read), ("skipped", skipped))}
    assert count["read"] > 1100
    assert count["skipped"] < 0.02 * count["read"]


@pytest.mark.parametrize(
    ("framework", "profile"),
    [
        ("megatron-bridge", "megatron"),
        ("Megatron-DeepSpeed", "megatron-2021"),
        ("nemo", "megatron"),
        ("nanotron v0.5", "nanotron"),
        ("llm-foundry (Composer, PyTorch FSDP)", "llm-foundry"),
        ("HAI-LLM (DualPipe)", "deepseek"),
        ("something new", "torchtitan"),
    ],
)
def test_frameworks_map_to_profiles(framework, profile):
    assert profile_name(framework) == profile


@pytest.mark.parametrize(
    ("text", "per_gpu"),
    [
        ("1600 Gbps RoCE between nodes", 25e9),
        ("NVLink in node; 4x100 Gb RoCE between nodes", 6.25e9),
        ("NVLink 3; 4 x HDR InfiniBand (800 Gb/s a node) as the tool states", 12.5e9),
        ("NVLink 4 links per GPU pair; 4x Omni-Path links per node", 6.25e9),
        ("NVLink in node; RDMA 400 Gb/s per GPU", 50e9),
        ("NVLink + 8x IB HDR per node (Selene)", 25e9),
        ("", 50e9),
    ],
)
def test_the_network_is_the_one_that_the_row_states(text, per_gpu):
    cluster = run_of(ROW | {"interconnect": text}).problem.cluster
    assert cluster.levels[1].bandwidth == pytest.approx(per_gpu)


def test_any_set_of_recomputed_modules_can_be_predicted():
    run = run_of(ROW | {"recompute": "selective:mlp+core_attn"})
    chosen = run.problem.profile.recompute[run.layout.row(0)["recompute"]]
    assert set(chosen.modules) == {"mlp", "core_attn"}


def test_scores_are_the_documented_figures():
    found = [replace(it, step_time=(it.run.step_time or 1.0) * 1.1) for it in predict(own("llm-foundry"))]
    found[0] = replace(found[0], step_time=(found[0].run.step_time or 1.0) * 0.5)
    score = validate(found, [])["step_time"]
    n = len(found)
    assert score["n"] == n
    assert score["mape"] == pytest.approx((0.1 * (n - 1) + 0.5) / n)
    assert score["median_ape"] == pytest.approx(0.1)
    assert score["bias"] == pytest.approx(((n - 1) * math.log(1.1) + math.log(0.5)) / n)


def test_a_perfect_prediction_ranks_perfectly_and_a_reversed_one_does_not():
    sweep = [it for it in predict(RUNS) if it.run.problem.profile.name.startswith("nanotron") and not it.run.oom]
    key = max({it.run.sweep for it in sweep}, key=lambda name: sum(it.run.sweep == name for it in sweep))
    rows = [it for it in sweep if it.run.sweep == key]
    twice = [replace(it, run=replace(it.run, sweep=name)) for name in ("a", "b") for it in rows]
    exact = [replace(it, step_time=it.run.step_time) for it in twice]
    ranking = validate(exact, [])["ranking"]
    assert (ranking["sweeps"], ranking["mean_regret"], ranking["mean_kendall_tau"]) == (2, 0.0, 1.0)
    reversed_ = [replace(it, step_time=1.0 / it.run.step_time) for it in twice]
    assert validate(reversed_, [])["ranking"]["mean_kendall_tau"] == -1.0


def test_predictions_lie_near_published_runs():
    """The shipped rates on a sample of the runs: no row may be off by half, the mean by more than 15 %."""
    found = [it for it in predict(RUNS) if it.run.step_time and not it.run.oom and it.run.trust == "ok"]
    off = [abs(it.step_time / it.run.step_time - 1) for it in found]
    assert np.mean(off) < 0.15
    assert np.median(off) < 0.08


@pytest.fixture(scope="module")
def sweep():
    """Runs of one model and machine with different layouts: fast to fit, as they are one table."""
    groups = {}
    for run in RUNS:
        if run.problem.profile.name.startswith("nanotron") and not run.oom:
            groups.setdefault((run.sweep, run.problem.profile.name), []).append(run)
    return max(groups.values(), key=len)


@pytest.fixture(scope="module")
def start(sweep):
    return load_profile(sweep[0].problem.profile.name, fitted=False)


@pytest.fixture(scope="module")
def fitted(sweep, start):
    return calibrate(sweep, start)


def test_runs_of_a_new_cluster_improve_a_profile(sweep, start):
    """A user's machine runs at other rates: a fit to its runs predicts them, and moves the rates the right way."""
    truth = replace(start.time, gemm=0.4, layer_floor=4 * start.time.layer_floor, step_fixed=0.5)
    as_true = [replace(r, problem=replace(r.problem, profile=replace(start, time=truth))) for r in sweep]
    measured = [replace(r, step_time=it.step_time) for r, it in zip(sweep, predict(as_true), strict=True)]
    found = fit(measured, start.time)
    assert np.abs(np.expm1(found.after)).mean() < 0.25 * np.abs(np.expm1(found.before)).mean()
    assert found.rates.layer_floor > 1.5 * start.time.layer_floor


def test_rates_stay_within_physics(fitted):
    assert fitted
    for it in fitted:
        for part in (it.time, it.memory):
            for name in part.moved if part else ():
                low, high = KNOWN_LIMITS[name]
                assert low <= getattr(part.rates, name) <= high


def test_a_fitted_profile_reads_back(tmp_path, sweep, start, fitted):
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(start.name, fitted, "runs.csv"))
    mine = load_profile(str(path)).on(sweep[0].problem.cluster.gpu)
    assert fitted[0].time is not None
    assert mine.time.gemm == pytest.approx(fitted[0].time.rates.gemm, rel=1e-3)
    assert mine.rates_of == "hopper"
    assert mine.provenance["time.gemm"].tag == "fitted"


def test_a_fit_to_fewer_runs_is_found_from_the_fit_to_all(sweep, start):
    """What makes leaving out affordable: a few evaluations by known slopes end where a whole fit ends."""
    whole, part = fit(sweep, start.time), sweep[::2]
    exact, quick = fit(part, start.time), refit(part, start.time, whole)
    assert quick.after == pytest.approx(exact.after, abs=0.02)
    assert not np.allclose(quick.after, whole.after[::2], atol=1e-4)
    again = fitted_at(sweep, start.time, whole.rates, whole.moved)
    assert again.rates.gemm == pytest.approx(whole.rates.gemm)
    assert refit(part, start.time, again).after == pytest.approx(quick.after, abs=0.01)


def test_what_is_left_out_is_a_source_or_else_a_model_on_some_gpus_or_else_a_run():
    some = [replace(run, source=f"{i % 3}") for i, run in enumerate(RUNS)]
    what, groups = blocks(some)
    assert (what, len(groups), sum(map(len, groups))) == ("source", 3, len(RUNS))
    assert blocks([replace(run, source="one") for run in RUNS])[0] == "model and number of GPUs"
    what, groups = blocks([replace(RUNS[0], id=name) for name in "ab"])
    assert (what, len(groups)) == ("run", 2)


def test_a_run_does_not_help_to_predict_itself(sweep, start):
    """A run that is twice as slow as its like moves the fit to all runs, not its own prediction."""
    odd = [replace(sweep[0], step_time=2 * sweep[0].step_time), *sweep[1:]]
    wholes = [fit(rows, start.time) for rows in (sweep, odd)]
    assert abs(wholes[0].after[0] - wholes[1].after[0] - math.log(2)) > 0.05
    usual, other = (refit(sweep[1:], start.time, whole) for whole in wholes)
    assert other.after == pytest.approx(usual.after, abs=0.01)


def test_every_run_is_predicted_once(sweep, start):
    found = left_out(sweep, start, calibrate(sweep, start))
    assert sorted(it.run.id for it in found) == sorted(run.id for run in sweep)
