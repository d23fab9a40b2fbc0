"""Profiles: what is shipped loads, what a user writes is checked, a base gives what is left out."""

from dataclasses import fields, replace

import pytest

from costmodel.profile import load_profile, profile_names
from costmodel.rates import Interval, MemoryRates, TimeRates
from hardware.catalog import gpu_names, load_gpu
from hardware.errors import InputError


def test_shipped_profiles_load_with_a_source_for_every_rate():
    for name in profile_names():
        profile = load_profile(name)
        rates = [key for key in profile.provenance if key.startswith(("time.", "memory."))]
        assert len(rates) >= 28
        assert all(profile.provenance[key].source for key in rates)


def test_a_profile_starts_from_its_base(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text('base = "megatron"\n[time]\nstep_fixed = "1 s"\n[gpu.H100-SXM.time]\nkernel = "9 us"\n')
    mine, base = load_profile(str(own)), load_profile("megatron")
    assert (mine.name, mine.time.step_fixed, mine.time.gemm) == ("mine", 1.0, base.time.gemm)
    assert mine.on(load_gpu("H100-SXM")).time.kernel == 9e-6
    assert mine.on(load_gpu("A100-SXM-80G")).time.kernel == base.time.kernel


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base = "megatron"\n[time]\ngem = 1', "time.gem"),
        ('base = "megatron"\n[time]\ngemm = -1', "time.gemm"),
        ('base = "megatron"\nschedules = ["gpipe"]', "gpipe"),
        ('base = "megatron"\n[[recompute]]\nname = "none"\n[[recompute]]\nname = "x"\nmodules = ["mpl"]', "mpl"),
        ('base = "megatron"\n[[recompute]]\nname = "none"', "recompute"),
        ('base = "megatron"\n[time]\ntp_overlap = 2', "time.tp_overlap"),
        ('base = "megatron"\n[time]\ngemm = 0', "time.gemm"),
        ('base = "megatron"\n[time]\nnetwork = 0.0', "time.network"),
        ('base = "megatron"\n[memory]\nreserved_ratio = 0', "memory.reserved_ratio"),
        ('base = "megatron"\n[memory]\nlogit_bytes = 1e300', "memory.logit_bytes"),
        ('base = "megatron"\ndefault_schedule = "dualpipe"', "dualpipe"),
        ('base = "megatron"\nzero_stages = [1.5]', "zero_stages"),
        ('base = "megatron"\nrank_orders = ["tp-pp-cp-dp"]', "rank_orders"),
        ('base = "megatron"\nrank_orders = []', "rank_orders = []: expected a list that is not empty"),
        ('base = "megatron"\ndefault_zero_stage = 9', "default_zero_stage"),
        ('base = "megatron"\n[[recompute]]\nname = "a"\n[[recompute]]\nname = "a"\nfull = true', "same name"),
        ('base = "megatorn"', "megatorn"),
        (
            'base = "megatron"\n[memory]\noverhead = 3',
            "memory.overhead = 3: 3 B is too little; write an amount of memory",
        ),
        ('base = "megatron"\n[time]\nkernel = 2', 'time.kernel = 2: 2 s is too much; write a time, for example "3 us"'),
        ("summary = 3", "framework"),
    ],
)
def test_a_wrong_profile_is_one_line_that_names_the_key(tmp_path, text, says):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_profile(str(path))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(InputError, match="megatron"):
        load_profile("megatorn")
    with pytest.raises(InputError, match="no_such"):
        load_profile("no_such.toml")


def test_selective_is_the_recommended_set():
    profile = load_profile("megatron")
    assert profile.recompute[profile.recompute_code("selective")].modules == ("layernorm", "moe_act", "mla_up_proj")
    with pytest.raises(InputError, match="recompute 'selectivly'; did you mean 'selective'") as caught:
        profile.recompute_code("selectivly")
    assert "profile megatron has none, norms, selective, mlp, moe, full, and any modules joined by +" in str(
        caught.value
    )
    with pytest.raises(InputError, match=r"nanotron has none, full, selective \(= full\)$"):
        load_profile("nanotron").recompute_code("foo")


def test_every_rate_has_a_range():
    """A rate without one lets a file ask for 160 % MFU or a model that fits anywhere."""
    for kind in (TimeRates, MemoryRates, Interval):
        for rate in fields(kind):
            least, most = rate.metadata["within"]
            assert 0 <= least < most


def test_a_users_file_keeps_the_rates_fitted_for_its_base_but_for_what_it_says(tmp_path):
    """A file that changes one rate must not fall back to assumed ones in all others."""
    own, gpu = tmp_path / "mine.toml", load_gpu("H100-SXM")
    fitted = load_profile("megatron").on(gpu)
    own.write_text('base = "megatron"\n')
    assert load_profile(str(own)).on(gpu).time == fitted.time
    own.write_text('base = "megatron"\n[time]\ngemm = 0.5\n')
    mine = load_profile(str(own)).on(gpu).time
    assert (mine.gemm, mine.attention_forward) == (0.5, fitted.time.attention_forward)


def test_a_users_table_of_a_gpu_stands_over_the_rates_fitted_for_it_and_for_it_alone(tmp_path):
    own, gpu, other = tmp_path / "mine.toml", load_gpu("H100-SXM"), load_gpu("B200")
    shipped = load_profile("megatron")
    own.write_text('base = "megatron"\n[gpu.H100-SXM.time]\ngemm = 0.5\n')
    mine = load_profile(str(own))
    assert mine.on(gpu).time == replace(shipped.on(gpu).time, gemm=0.5)
    assert mine.on(other).time == shipped.on(other).time
    own.write_text('base = "megatron"\n[gpu.blackwell.time]\ngemm = 0.5\n')
    mine = load_profile(str(own))
    assert mine.on(other).time.gemm == 0.5
    assert mine.on(gpu).time == shipped.on(gpu).time


def test_a_rate_carries_its_tag_to_the_gpu_that_takes_it(tmp_path):
    """Fitted is what runs on this GPU gave; what stands in for a GPU, an architecture or a profile is inherited."""
    megatron = load_profile("megatron")
    h100, h200 = (megatron.on(load_gpu(gpu)).provenance["time.gemm"] for gpu in ("H100-SXM", "H200"))
    assert (h100.tag, h200.tag) == ("fitted", "inherited")
    assert " runs of " in h100.source
    assert h200.source == f"hopper, fitted: {h100.source}"
    assert megatron.on(load_gpu("H200")).provenance["time.tp_floor"].tag == "assumed"
    other = load_profile("torchtitan").on(load_gpu("H100-SXM")).provenance
    assert other["time.gemm"].tag == "fitted"
    assert other["time.node_dedup"].source.startswith("profile megatron, spec: DeepEP")
    assert load_profile("deepseek").on(load_gpu("MI300X")).provenance["time.gemm"].tag == "assumed"
    own = tmp_path / "mine.toml"
    own.write_text('base = "megatron"\n[time]\nkernel = { value = "3 us", source = "a trace", tag = "measured" }\n')
    mine = load_profile(str(own)).on(load_gpu("H100-SXM")).provenance
    assert mine["time.kernel"] == ("measured", "a trace")
    assert mine["time.gemm"] == ("inherited", f"profile megatron, fitted: {h100.source}")
    assert "H100-SXM" in load_profile(str(own)).on(load_gpu("H100-SXM")).fitted_on


def test_every_rate_of_every_profile_has_a_source_on_every_gpu():
    for name in profile_names():
        profile = load_profile(name)
        for gpu in gpu_names():
            found = profile.on(load_gpu(gpu)).provenance
            for kind, rates in (("time", TimeRates), ("memory", MemoryRates), ("interval", Interval)):
                for rate in fields(rates):
                    assert found[f"{kind}.{rate.name}"].source, (name, gpu, rate.name)
                    assert "no source given" not in found[f"{kind}.{rate.name}"].source, (name, gpu, rate.name)


def test_an_architectures_rates_say_whose_runs_they_were_fitted_to():
    for name in profile_names():
        for key, rates in load_profile(name).by_gpu.items():
            assert rates.fitted_on or key in gpu_names(), (name, key)
            assert all(load_gpu(gpu).architecture == key for gpu in rates.fitted_on)


@pytest.mark.parametrize("gpu", ["GB300", "MI300X"])
def test_a_faster_gpu_than_any_with_runs_inherits_from_these(gpu):
    """llm-foundry on H100 by A100's rates is off by 20 %, by what the profile assumes 26 %."""
    whole = load_profile("torchtitan")
    taken = whole.on(load_gpu(gpu))
    assert taken.rates_of == "hopper"
    assert taken.time == whole.by_gpu["hopper"].time
    assert taken.provenance["time.gemm"].tag == "inherited"
    assert taken.provenance["time.gemm"].source.startswith("hopper, fitted: ")


def test_a_slower_gpu_does_not_inherit_from_a_faster_one():
    """llm-foundry on A100 by H100's rates is off by 27 %, by what the profile assumes 11 %."""
    whole = replace(load_profile("torchtitan"), by_gpu={"hopper": load_profile("torchtitan").by_gpu["hopper"]})
    taken = whole.on(load_gpu("A100-SXM-80G"))
    assert taken.rates_of == ""
    assert taken.time == whole.time


def test_a_framework_without_runs_takes_the_times_of_the_one_it_starts_from():
    """DeepSpeed's published runs are of memory: its times are torchtitan's, its memory stays its own."""
    gpu = load_gpu("H200")
    own, base = load_profile("deepspeed", fitted=False), load_profile("torchtitan")
    taken = load_profile("deepspeed").on(gpu)
    assert taken.time == base.on(gpu).time != own.time
    assert taken.memory == own.memory
    assert taken.provenance["time.gemm"].source.startswith("hopper: profile torchtitan, fitted: ")
    assert load_profile("deepseek").on(gpu).time == load_profile("deepseek", fitted=False).time


def test_a_gpus_fit_stands_over_its_architectures():
    """No run of B200 is in 4-bit: its rate is that of Blackwell, not what the profile assumes of all GPUs."""
    profile = load_profile("megatron")
    b200, blackwell = profile.on(load_gpu("B200")), profile.by_gpu["blackwell"]
    assert b200.time.gemm_fp4 == blackwell.time.gemm_fp4 != profile.time.gemm_fp4
    assert b200.time.gemm != blackwell.time.gemm
    assert b200.provenance["time.gemm_fp4"].tag == "fitted"
