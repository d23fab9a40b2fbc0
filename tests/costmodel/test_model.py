"""What a user can pass as MODEL, and the one line that a wrong one gets."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from costmodel.model import Model, load_model, model_names
from hardware.errors import InputError

TINY: dict[str, Any] = {
    "name": "tiny", "source": "test", "layers": 4, "hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2,
    "ffn_hidden": 16, "vocab": 10, "seq_len": 8,
}  # fmt: skip
WHOLE = "".join(f"{key} = {value!r}\n" for key, value in TINY.items())
MOE = TINY | {"ffn_hidden": 0, "experts": 8, "experts_per_token": 2, "expert_ffn_hidden": 4}
MLA = TINY | {
    "kv_heads": 4, "head_dim": 3, "attention": "mla", "kv_lora_rank": 4, "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 1, "v_head_dim": 2,
}  # fmt: skip


def write_toml(path: Path, values: dict[str, Any]) -> Path:
    def literal(value: object) -> str:
        if isinstance(value, tuple):
            return repr(list(value))
        return str(value).lower() if isinstance(value, bool) else repr(value)

    path.write_text("".join(f"{key} = {literal(value)}\n" for key, value in values.items() if value != ()))
    return path


def load_error(name_or_path: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(name_or_path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shipped_models_carry_their_own_name_and_a_source() -> None:
    assert {
        "llama-2-70b",
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "mixtral-8x7b",
        "deepseek-v3",
    } <= set(model_names())
    for name in model_names():
        model = load_model(name)
        assert model.name == name
        assert len(model.source) > 10


def test_a_file_may_start_from_a_shipped_model(tmp_path: Path) -> None:
    path = tmp_path / "deeper.toml"
    path.write_text('base = "gpt-oss-20b"\nlayers = 48\nwindows = []\n')
    base = load_model("gpt-oss-20b")
    wanted = dataclasses.replace(
        base, name="deeper", source="gpt-oss-20b and a file of the user's", layers=48, windows=()
    )
    assert load_model(path) == wanted
    path.write_text('base = "gpt-oss-20b"\nname = "mine"\n')
    assert load_model(path).windows == base.windows != ()
    assert load_model(path).name == "mine"


def test_a_file_needs_neither_name_nor_source(tmp_path: Path) -> None:
    path = write_toml(tmp_path / "own.toml", {key: TINY[key] for key in TINY if key not in ("name", "source")})
    assert load_model(path) == Model(**TINY | {"name": "own", "source": "a file of the user's"})


def test_deepseek_v3_is_the_published_one() -> None:
    v3 = load_model("deepseek-v3")
    assert (v3.experts, v3.experts_per_token, v3.shared_experts, v3.expert_ffn_hidden) == (256, 8, 1, 2048)
    assert v3.layer_is_moe == (False,) * 3 + (True,) * 58
    assert (v3.qk_head_dim, v3.value_head_dim, v3.shared_ffn_hidden) == (192, 128, 2048)
    assert (v3.routed_nodes, v3.mtp_layers, v3.seq_len) == (4, 1, 4096)


def test_moe_layer_step_counts_as_the_published_codes_do() -> None:
    model = Model(**MOE | {"ffn_hidden": 16, "moe_layer_step": 2})
    assert model.layer_is_moe == (False, True, False, True)
    assert (model.dense_layers, model.moe_layers) == (2, 2)


@pytest.mark.parametrize("name", model_names())
def test_a_model_written_as_toml_reads_back_equal(name: str, tmp_path: Path) -> None:
    model = load_model(name)
    assert load_model(write_toml(tmp_path / "copy.toml", dataclasses.asdict(model))) == model


def test_toml_may_leave_out_what_has_a_default(tmp_path: Path) -> None:
    assert load_model(write_toml(tmp_path / "m.toml", TINY)) == Model(**TINY)


def test_a_shipped_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama-3.1-8b").mkdir()
    assert load_model("llama-3.1-8b").layers == 32
    assert load_error("./llama-3.1-8b") == "llama-3.1-8b: the folder holds no config.json"


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("llama-3.1-7b", ["unknown model 'llama-3.1-7b'", "did you mean 'llama-3.1-", "deepseek-v3"]),
        ("Deepseek_V3", ["unknown model 'Deepseek_V3'", "did you mean 'deepseek-v3'"]),
        ("", ["unknown model ''", "llama-3.1-8b"]),
        ("nowhere/model", ["nowhere/model: no such file or folder"]),
        ("nowhere.toml", ["nowhere.toml: no such file"]),
        ("nowhere.json", ["nowhere.json: no such file"]),
        ("x" * 5000, ["unknown model"]),
    ],
)
def test_an_argument_that_leads_nowhere(argument: str, parts: list[str]) -> None:
    message = load_error(argument)
    assert all(part in message for part in parts), message


def test_a_file_of_another_kind_and_a_folder_without_config(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("layers: 3")
    assert load_error(tmp_path / "model.yaml") == (
        f"{tmp_path}/model.yaml: expected a .toml file, a .json file or a folder that holds a config.json"
    )
    assert load_error(tmp_path) == f"{tmp_path}: the folder holds no config.json"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("layers = ", ["not a TOML file"]),
        ("\xff\n\xfe", ["not a TOML file"]),
        ('name = "x"\nlayer = 4\n', ["unknown key 'layer'", "did you mean 'layers'?"]),
        ('name = "x"\n', ["layers", "missing"]),
        ('base = "llama-3.1-8c"\n', ["base", "did you mean 'llama-3.1-8b'"]),
        ('base = "llama-3.1-8b"\nlayer = 4\n', ["layer", "did you mean 'layers'"]),
        ('base = "llama-3.1-8b"\nkv_heads = 5\n', ["heads 32 is not a multiple of kv_heads 5"]),
        ('name = "x"\nsource = "y"\nlayers = 4.0\n', ["layers", "4.0"]),
        ('name = "x"\nsource = "y"\nlayers = true\n', ["layers", "true"]),
        ('name = "x"\nsource = 3\n', ["source", "3"]),
        (f"{WHOLE}windows = [1.5]\n", ["windows must be a list of integers", "1.5"]),
        (f"{WHOLE}windows = [-1]\n", ["windows", "-1"]),
        (f"{WHOLE}windows = 8\n", ["windows", "8"]),
    ],
)
def test_broken_toml_names_file_and_key(text: str, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(text.encode("latin-1"))
    message = load_error(path)
    assert message.startswith(f"{path}: ")
    assert all(part in message for part in parts), message


def test_contradictions_in_a_file_name_the_file(tmp_path: Path) -> None:
    path = write_toml(tmp_path / "m.toml", TINY | {"kv_heads": 3})
    assert load_error(path) == f"{path}: model 'tiny': heads 4 is not a multiple of kv_heads 3"


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (TINY, {"layers": 0}, "layers must be an integer from 1 to 2000, got 0"),
        (TINY, {"layers": 10**12}, "layers must be an integer from 1 to 2000, got 1000000000000"),
        (TINY, {"hidden": -8}, "hidden must be an integer from 1 to 1000000000, got -8"),
        (TINY, {"heads": True}, "heads must be an integer from 1 to 1000000000, got True"),
        (TINY, {"vocab": 10.0}, "vocab must be an integer from 1 to 1000000000, got 10.0"),
        (TINY, {"vocab": float("nan")}, "vocab must be an integer from 1 to 1000000000, got nan"),
        (TINY, {"experts": -1}, "experts must be an integer from 0 to 1000000000, got -1"),
        (TINY, {"seq_len": "4096"}, "seq_len must be an integer from 1 to 1000000000, got '4096'"),
        (TINY, {"gated_mlp": 1}, "gated_mlp must be true or false, got 1"),
        (TINY, {"windows": (4, -1)}, "windows must be a list of integers from 0 to 1000000000, got (4, -1)"),
        (TINY, {"windows": (True,)}, "windows must be a list of integers from 0 to 1000000000, got (True,)"),
        (TINY, {"chunked_windows": True}, "chunked_windows is true but windows is empty"),
        (TINY, {"qk_norm_whole": True}, "qk_norm_whole is true but qk_norm is false"),
        (TINY, {"shared_gate": True}, "shared_gate is true but experts is 0"),
        (MOE, {"shared_expert_ffn_hidden": 4}, "shared_expert_ffn_hidden is 4 but shared_experts is 0"),
        (TINY, {"source": " "}, "source must be a text that is not empty, got ' '"),
        (TINY, {"attention": "mqa"}, "attention must be 'gqa' or 'mla', got 'mqa'"),
        (TINY, {"kv_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
        (TINY, {"kv_lora_rank": 5}, "kv_lora_rank is 5 but attention is 'gqa'; it belongs to 'mla'"),
        (TINY, {"ffn_hidden": 0}, "ffn_hidden is 0 but 4 of 4 layers are dense"),
        (TINY, {"experts_per_token": 2}, "experts_per_token is 2 but experts is 0"),
        (TINY, {"moe_layer_step": 2}, "moe_layer_step is 2 but experts is 0"),
        (TINY, {"router_bias": True}, "router_bias is true but experts is 0"),
        (MOE, {"experts_per_token": 9}, "experts_per_token 9 must be from 1 to experts 8"),
        (MOE, {"experts_per_token": 0}, "experts_per_token 0 must be from 1 to experts 8"),
        (MOE, {"expert_ffn_hidden": 0}, "expert_ffn_hidden is 0 but experts is 8"),
        (MOE, {"ffn_hidden": 16}, "ffn_hidden is 16 but none of 4 layers is dense; write 0"),
        (MOE, {"first_dense_layers": 1}, "ffn_hidden is 0 but 1 of 4 layers are dense"),
        (
            MOE,
            {"first_dense_layers": 4, "ffn_hidden": 16},
            "experts is 8 but first_dense_layers 4 and moe_layer_step 1 leave no MoE layer among 4",
        ),
        (MLA, {"v_head_dim": 0}, "v_head_dim is 0 but attention is 'mla'"),
        (MLA, {"kv_heads": 2}, "kv_heads 2 must equal heads 4 when attention is 'mla'"),
        (
            MLA,
            {"head_dim": 2},
            "head_dim 2 must equal qk_nope_head_dim 2 + qk_rope_head_dim 1 when attention is 'mla'",
        ),
        (
            MLA,
            {"qk_norm": True},
            "qk_norm is true but attention is 'mla', which has norms of its own; write false",
        ),
    ],
)
def test_impossible_models_are_refused_with_the_numbers(
    base: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    Model(**base)
    with pytest.raises(InputError) as caught:
        Model(**base | change)
    assert str(caught.value) == f"model 'tiny': {message}"
