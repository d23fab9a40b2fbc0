"""Write docs/worked_examples.md from its template: `python docs/make_worked_examples.py`.

Every figure comes from a command or from the chapter's formulas. Run it again when the cost model changes; a test
compares the page with what this makes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from textwrap import fill
from typing import Any

from costmodel import napkin, params
from costmodel.model import load_model
from search import cli
from search.narrative import figure, model_figure

HERE = Path(__file__).parent
PAGE, TEMPLATE = HERE / "worked_examples.md", HERE / "worked_examples.template.md"
EXAMPLES = {
    "8b": "llama-3.1-8b dgx-h100 --gpus 8 --zero 3 --micro-batch 4 --recompute full --seq-len 4096",
    "70b": "llama-2-70b dgx-h100 --gpus 64 --tp 8 --micro-batch 2 --recompute full --seq-len 2048",
    "405b": "llama-3.1-405b dgx-h100 --gpus 256 --tp 8 --pp 2 --zero 3 --recompute full --seq-len 4096 "
    "--global-batch 512",
    "671b": "deepseek-v3 hgx-h800 --gpus 2048 --pp 16 --ep 64 --profile deepseek --precision fp8",
}
TITLES = {"8b": "8B", "70b": "70B", "405b": "405B", "671b": "671B MoE"}
PRINTED = {"8b": ("<5 %", "45-55 %"), "70b": ("~4 %", "40-50 %"), "405b": ("~3 %", "35-45 %"), "671b": ("~8 %", "33 %")}
"""The chapter's communication overhead and MFU."""
TORCHTITAN = "--profile torchtitan"
LAYOUTS = {
    "fused_8": EXAMPLES["8b"].replace("micro-batch 4", "micro-batch 8"),
    "fused_16": EXAMPLES["8b"].replace("micro-batch 4", "micro-batch 16"),
    "eager_8": EXAMPLES["8b"].replace("micro-batch 4", f"micro-batch 8 {TORCHTITAN}"),
    "eager_16": EXAMPLES["8b"].replace("micro-batch 4", f"micro-batch 16 {TORCHTITAN}"),
    "launched": f"{EXAMPLES['405b']} {TORCHTITAN}",
    "deep": "llama-3.1-405b dgx-h100 --gpus 256 --tp 8 --pp 16 --seq-len 4096 --global-batch 512",
    "wide": "llama-3.1-405b dgx-h100 --gpus 256 --pp 16 --recompute full --seq-len 4096 --global-batch 512",
    "sliced": f"{EXAMPLES['671b']} --tp 8",
    "uneven": f"{EXAMPLES['671b']} --expert-load 1.5",
    "free": f"{EXAMPLES['671b']} --routed-nodes 0",
    "plain": f"{EXAMPLES['671b']} --schedule 1f1b",
    "foundry": "llama-2-13b dgx-h100 --gpus 32 --zero 3 --micro-batch 2 --recompute none --seq-len 2048 "
    "--profile llm-foundry",
    "bubble": "llama-2-70b dgx-h100 --gpus 64 --tp 8 --pp 4 --global-batch 32",
    "bubble_2": "llama-2-70b dgx-h100 --gpus 64 --tp 8 --pp 4 --global-batch 32 --vpp 2",
}
THIRTEEN = "llama-2-13b dgx-h100 --gpus 32"

Found = dict[str, Any]


def run(command: str, arguments: str) -> Found:
    """What one command prints as JSON."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        cli.main([command, *arguments.split(), "--json"])
    found: Found = json.loads(out.getvalue())
    return found


def explain(arguments: str) -> Found:
    """An explanation, with its rows by name under `rows`."""
    found = run("explain", arguments)
    return found | {"rows": {row["name"]: row for step in found["steps"] for row in step["rows"]}}


def page() -> str:
    """The page."""
    found = {name: explain(arguments) for name, arguments in (EXAMPLES | LAYOUTS).items()}
    values = {f"walk_{name}": _walk(EXAMPLES[name], found[name]) for name in EXAMPLES}
    values |= {f"result_{name}": _result(found["launched" if name == "405b" else name]) for name in EXAMPLES}
    values |= _notes(found) | _moe(found) | _thirteen(found["foundry"]) | _answers(found)
    values |= {"summary": _summary(found), "memory": _memory_table(found)}
    blocks = TEMPLATE.read_text().format_map(values).split("\n\n")
    return "\n\n".join(_filled(block) for block in blocks)


def _filled(block: str) -> str:
    """A paragraph in lines of at most 120 characters; tables, headings, lists and commands as they are."""
    if block.lstrip("\n").startswith(("|", "#", "```", "- ")):
        return block
    return fill(block, 120, break_long_words=False, break_on_hyphens=False)


def _walk(command: str, one: Found) -> str:
    lines = ["```bash", f"meshscout explain {command}", "```"]
    for number, step in enumerate(one["steps"], 1):
        lines += ["", f"**{number}. {step['name']}**: {step['verdict']}.", ""]
        rows = [row for row in step["rows"] if row["hand"] is not None or row["corrected"] is not None]
        cells = [
            (row["name"], _formula(row), *(_figure(row, kind) for kind in ("hand", "corrected", "model")), _why(row))
            for row in rows
        ]
        lines.append(_table(("", "formula", "chapter", "right", "model", ""), "llrrrl", cells))
    return "\n".join(lines)


def _formula(row: Found) -> str:
    """The chapter's formula and, where it is another, the one that gives the model's figure."""
    own = row["model_formula"]
    return f"{row['formula']}; model: {own}" if own and own != row["formula"] else str(row["formula"])


def _figure(row: Found, kind: str) -> str:
    return (model_figure if kind == "model" else figure)(row[kind], row["unit"])


def _best(row: Found) -> str:
    return "hand" if row["corrected"] is None else "corrected"


def _size(memory: float) -> str:
    return model_figure(memory, "B")


def _why(row: Found) -> str:
    return row["why"] if row["corrected"] is not None else ""


def _table(head: Iterable[str], sides: str, rows: Iterable[Iterable[str]]) -> str:
    rule = "|" + "|".join("---:" if side == "r" else "---" for side in sides) + "|"
    lines = [" ".join(["|", " | ".join(cells), "|"]) for cells in (head, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def _memory(one: Found) -> str:
    return f"{_size(one['memory'])} of {_size(one['memory'] + one['memory_headroom'])}"


def _result(one: Found) -> str:
    terms = {name.replace("_", " "): seconds / one["step_time"] for name, seconds in one["time_terms"].items()}
    most = sorted(terms, key=lambda name: -terms[name])[:3]
    shares = ", ".join(f"{name} {terms[name]:.0%}" for name in most)
    return f"MFU {one['mfu']:.1%}, step {figure(one['step_time'], 's')} ({shares}), {_memory(one)}"


def _notes(found: dict[str, Found]) -> dict[str, str]:
    """What stands under the first three walks."""
    middle, large = found["70b"], found["405b"]
    reduce, gather = middle["rows"]["DP all-reduce"], large["rows"]["ZeRO-3 traffic"]
    sizes = ("fused_8", "fused_16", "eager_8", "eager_16")
    fits = {name: "fits" if found[name]["memory_headroom"] >= 0 else "does not fit" for name in sizes}
    return {name: f"{_memory(found[name])} ({fits[name]})" for name in sizes} | {
        "logits_8": _size(found["eager_8"]["memory_terms"]["logits"]),
        "logits_16": _size(found["eager_16"]["memory_terms"]["logits"]),
        "reduce_right": _figure(reduce, "corrected"),
        "reduce_model": _figure(reduce, "model"),
        "micro_batches": _figure(middle["rows"]["micro-batches m"], "model"),
        "tensor_share": f"{middle['time_terms']['tensor_parallel'] / middle['step_time']:.0%}",
        "violation": "; ".join(broken["because"] for broken in large["violations"]),
        "mfu_405b": f"{found['launched']['mfu']:.2f}",
        "mfu_megatron": f"{large['mfu']:.2f}",
        "gather_right": _figure(gather, "corrected"),
        "gather_model": _figure(gather, "model"),
        "deep": LAYOUTS["deep"],
        "deep_states": _figure(large["rows"]["states without ZeRO-3"], "corrected"),
        "result_deep": _result(found["deep"]),
    }


def _moe(found: dict[str, Found]) -> dict[str, str]:
    one, cases = found["671b"], []
    for name, option, case in (
        ("as published", "", one),
        ("hottest rank at 1.5 times the mean", "`--expert-load 1.5`", found["uneven"]),
        ("a token may reach every node", "`--routed-nodes 0`", found["free"]),
        ("no overlap of two chunks", "`--schedule 1f1b`", found["plain"]),
    ):
        times = [figure(seconds, "s") for seconds in (case["step_time"], case["time_terms"]["expert_parallel"])]
        cases.append((name, option, *(times if case["memory_headroom"] >= 0 else ("does not fit", "")), _memory(case)))
    return {
        "layers": ", ".join(map(str, one["layers_per_stage"])),
        "mfu_671b": f"{one['mfu']:.1%}",
        "whole_671b": f"{one['rows']['MFU, non-causal']['model']:.1%}",
        "mitigations": _table(("", "option", "step", "exposed expert traffic", "memory"), "llrrr", cases),
    }


def _summary(found: dict[str, Found]) -> str:
    rows = []
    for name, title in TITLES.items():
        one, command = found[name], EXAMPLES[name].split()
        given = dict(zip(command[2::2], command[3::2], strict=True))
        shape = [given.get(option, "1") for option in ("--gpus", "--tp", "--pp")]
        memory, expected = one["rows"]["memory"], one["rows"]["MFU"]["corrected"]
        right = f" [{_figure(memory, 'corrected')}]" if memory["corrected"] else ""
        overhead, mfu = PRINTED[name]
        rows.append((
            title, *shape, _figure(one["rows"]["DP"], "hand"), given.get("--ep", "-"),
            f"ZeRO-{given.get('--zero', '1')}",
            f"{overhead} / {one['communication_overhead']:.1%}",
            mfu + (f" [{expected:.1%}]" if expected else "") + f" / {one['mfu']:.1%}",
            f"{_figure(memory, 'hand')}{right} / {_figure(memory, 'model')}",
        ))  # fmt: skip
    head = ("model", "GPUs", "TP", "PP", "DP", "EP", "FSDP", "comm overhead", "MFU", "memory")
    return _table(head, "lrrrrrllll", rows)


def _thirteen(foundry: Found) -> dict[str, str]:
    made, n = run("plan", THIRTEEN), float(params.total(load_model("llama-2-13b")))
    layout, best = made["layout"], made["best"]
    whole, node = (napkin.static_memory(n) / ranks for ranks in (32, 8))
    bf16, fp32, tp2 = n * (4 + 12 / 32), n * (6 + 12 / 32), n / 2 * (6 + 12 / 16)
    by_hand = {"whole": whole, "node": node, "bf16": bf16, "fp32": fp32, "tp2": tp2}
    return {f"{name}_13b": figure(size, "B") for name, size in by_hand.items()} | {
        "thirteen": THIRTEEN,
        "plan": "\n".join(f"- {step['name']}: **{step['choice']}**; {step['because']}" for step in made["steps"]),
        "plan_mfu": f"{layout['mfu']:.1%}",
        "plan_memory": _size(layout["memory"]),
        "best_mfu": f"{best['mfu']:.1%}",
        "best_memory": _size(best["memory"]),
        "foundry": LAYOUTS["foundry"],
        "foundry_mfu": f"{foundry['mfu']:.1%}",
    }


def _answers(found: dict[str, Found]) -> dict[str, str]:
    budget = napkin.USABLE * 80.0
    ideal, share, share_2 = napkin.bubble(4, 16), napkin.bubble_share(4, 16), napkin.bubble_share(4, 16, 2)
    return {
        "budget": f"{budget:g}",
        "n_1": f"{budget / 16:.2f}",
        "n_2": f"{budget / (4 + 12 / 8):.2f}",
        "n_3": f"{budget / (6 + 12 / 8):.2f}",
        "expert": f"{params.counts(load_model('deepseek-v3')).expert / 1e6:.2f}",
        "layer": f"{params.layer(load_model('llama-3.1-405b'), moe=False) / 1e9:.2f}",
        "sliced_mfu": f"{found['sliced']['mfu']:.1%}",
        "sliced_memory": _size(found["sliced"]["memory"]),
        "memory_671b": _size(found["671b"]["memory"]),
        "wide_memory": _memory(found["wide"]),
        "ideal": f"{ideal:.2%}",
        "share": f"{share:.1%}",
        "efficiency": f"{1 - share:.1%}",
        "ideal_2": f"{ideal / 2:.1%}",
        "share_2": f"{share_2:.1%}",
        "bubble": f"{found['bubble']['rows']['bubble share']['model']:.1%}",
        "bubble_2": f"{found['bubble_2']['rows']['bubble share']['model']:.1%}",
        "bubble_layout": LAYOUTS["bubble"],
    }


def _memory_table(found: dict[str, Found]) -> str:
    rows = []
    for name, title in TITLES.items():
        one = found[name]
        row, wider = one["rows"]["memory"], one["rows"].get("memory, fp32 gradients")
        states = f"states of {_figure(one['rows']['states a GPU'], 'corrected')} by hand"
        note = f"{_figure(wider, _best(wider))} by hand with fp32 gradients" if wider else states
        usable, fits = one["memory"] + one["memory_headroom"], one["memory_headroom"] >= 0
        figures = (_figure(row, "hand"), _figure(row, "corrected"), _figure(row, "model"), _size(usable))
        rows.append((title, *figures, f"{'fits' if fits else 'does not fit'}; {note}"))
    return _table(("", "chapter", "right by hand", "model", "usable", ""), "lrrrrl", rows)


if __name__ == "__main__":
    PAGE.write_text(page())
