"""Builds every family of costmodel/hf_families.py with `transformers`, on the meta device, and stores what it counts.

    pip install -e '.[golden]' && python tests/golden/make_hf_counts.py

writes hf_counts.json beside this file: for each case its config.json and the number of elements in all tensors of its
checkpoint: the parameters, a tied matrix once, and the buffers that are saved (DeepSeek-V3's router bias is one).
Nothing is downloaded: each configuration class gets the keys of the case. `written` is the config.json that the class
itself saves, for the small cases. The classes build no multi-token-prediction layers.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from hf_cases import PUBLISHED, SMALL
from transformers import AutoConfig, AutoModelForCausalLM

TABLE = Path(__file__).with_name("hf_counts.json")
BUILT_AS = {"kimi_k2": "deepseek_v3", "gemma3": "gemma3_text", "llama4": "llama4_text"}
"""Kimi-K2's config.json names DeepSeek-V3's classes; of models with a vision tower the text model is built."""
NO_PART_OF_A_COUNT = re.compile(
    "_token_id|drop|^rope|^no_rope|init|_eps|epsilon|use_cache|version|summary_|output_|coef|jitter|softcapping|"
    "alpha|_limit|_act|activation|_scal|pretraining_tp|_parameters|slow_|norm_topk|attn_|scale_attn|reorder|floor_"
)


def build(config: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Elements in the checkpoint of the model that `config` describes, and the config.json its class writes."""
    keys = {key: value for key, value in config.items() if key != "model_type"}
    family = config["model_type"]
    settings = AutoConfig.for_model(BUILT_AS.get(family, family), **keys | {"pad_token_id": None})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
    written = json.loads(settings.to_json_string())
    kept = {key: value for key, value in written.items() if not NO_PART_OF_A_COUNT.search(key)}
    return elements(model), kept | {"model_type": family}


def elements(model: torch.nn.Module) -> int:
    """Elements of the parameters and of the buffers that a checkpoint holds."""
    saved = sum(
        buffer.numel()
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    )
    return saved + sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    """Write the table."""
    rows = {}
    for name, config in (PUBLISHED | SMALL).items():
        count, written = build(config)
        rows[name] = {"elements": count, "config": config}
        if name in SMALL:
            rows[name]["written"] = written
        print(f"{name:28} {count:>20,}", flush=True)
    lines = (f"{json.dumps(name)}: {json.dumps(row, sort_keys=True)}" for name, row in sorted(rows.items()))
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
