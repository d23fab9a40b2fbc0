"""What may be typed: the options of every command and how their values are read."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping
from typing import NoReturn

from hardware.errors import InputError

LARGEST = 2**31 - 1
Value = int | str

AXES: dict[str, tuple[str, str]] = {
    "tp": ("count", "tensor-parallel degree"),
    "pp": ("count", "pipeline stages"),
    "vpp": ("count", "virtual stages (model chunks) on each pipeline rank"),
    "dp": ("count", "data-parallel degree; derived from the others when omitted"),
    "cp": ("count", "context-parallel degree"),
    "ep": ("count", "expert-parallel degree"),
    "etp": ("count", "tensor-parallel degree inside an expert"),
    "zero": ("stage", "ZeRO stage, 0 to 3"),
    "dp-shard": ("count", "ranks over which ZeRO shards its states; divides DP x CP"),
    "micro-batch": ("count", "sequences per micro-batch"),
    "recompute": ("name", "module set of the profile: none, selective, ..., full"),
    "sequence-parallel": ("switch", "true or false"),
    "schedule": ("name", "1f1b, interleaved, zero-bubble, dualpipe"),
}
"""The options of the axes, without their dashes: (kind of value, help)."""

COLUMNS = {option: option.replace("-", "_") for option in AXES} | {"zero": "zero_stage"}
"""The column of each axis option in a table of layouts."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and which never guesses an abbreviated option."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**({"allow_abbrev": False} | settings))  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (usage: {self.prog} --help)")


def _integer(text: str, low: int, meaning: str) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not {meaning}")
    return int(text)


def _count(text: str) -> int:
    return _integer(text, 1, f"a positive integer up to {LARGEST}")


def _whole(text: str) -> int:
    return _integer(text, 0, f"an integer from 0 to {LARGEST}")


def _stage(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a ZeRO stage (0, 1, 2 or 3)")
    return int(text)


def _switch(text: str) -> int:
    known = {"true": 1, "on": 1, "yes": 1, "1": 1, "false": 0, "off": 0, "no": 0, "0": 0}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return known[text.lower()]


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w+.-]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a name")
    return text


def _number(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,17})?|\.[0-9]{1,17}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return float(text)


VALUES: dict[str, Callable[[str], Value]] = {
    "count": _count,
    "stage": _stage,
    "switch": _switch,
    "name": _name,
}


def _list_of(value: Callable[[str], Value]) -> Callable[[str], tuple[Value, ...]]:
    def read(text: str) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(value(part.strip()) for part in text.split(",")))

    return read


def add_axes(parser: argparse.ArgumentParser, *, many: bool) -> None:
    """The axes: comma lists that limit the space, or one value each."""
    title = "comma lists that limit the space" if many else "one value each; default: 1, derived, or the profile's"
    group = parser.add_argument_group("axes", title)
    for option, (kind, text) in AXES.items():
        value = _list_of(VALUES[kind]) if many else VALUES[kind]
        group.add_argument(f"--{option}", type=value, metavar=kind.upper() + ",.." * many, help=text)
    group.add_argument("--space", default="default", metavar="NAME|FILE", help="default, wide or a TOML file")
    group.add_argument("--any-domain", action="store_true", help="let TP leave the fast link domain")


def add_job(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Model, cluster and what is trained; without `required` the caller checks what is missing."""
    count = None if required else "?"
    files = "name, TOML file, config.json or its folder"
    parser.add_argument("model", nargs=count, metavar="MODEL", help=files)
    parser.add_argument("cluster", nargs=count, metavar="CLUSTER", help="name or TOML file")
    parser.add_argument("--gpus", type=_count, required=required, metavar="N", help="GPUs of the job")
    group = parser.add_argument_group("job")

    def add(option: str, text: str, value: Callable[[str], object] = str, default: object = None) -> None:
        group.add_argument(f"--{option}", type=value, default=default, metavar="VALUE", help=text)

    add("seq-len", "tokens; default: the model's pre-training length", _count)
    add("global-batch", "sequences; default: 4 Mi tokens, above 1,024 GPUs 16 Mi", _count)
    add("precision", "bf16 (default), fp16, fp8, mxfp8, nvfp4", default="bf16")
    add("grad-dtype", "fp32, bf16, fp16; default: the profile's")
    add("moments-dtype", "fp32, bf16, fp8; default: the profile's")
    add("expert-load", "tokens of the hottest expert rank over the mean; default: 1", _number, 1.0)
    add("routed-nodes", "nodes that a token's experts lie on, 0: no limit; default: the model's", _whole)
    add("profile", "what runs the training: name or TOML file; default: megatron", default="megatron")
    add("flops-convention", "causal (default), full, 6n", default="causal")
    add("mfu-peak", "bf16 (default) or precision", default="bf16")
    add("memory-margin", "probability with which a layout must fit; needs a calibrated profile", _number)


def add_search(parser: argparse.ArgumentParser) -> None:
    """The options of `search`."""
    parser.description = "Score every layout; print the best and write the Pareto frontier of MFU and headroom."
    add_job(parser, required=True)
    add_axes(parser, many=True)
    add = parser.add_argument
    add("--threads", type=_count, metavar="N", help="default: one a core")
    add("--top", type=_count, default=10, metavar="K", help="rows of the table; default: 10")
    add("--no-bounds", action="store_true", help="score what a proven bound excludes, too")
    add("-o", "--output", default="frontier.parquet", metavar="FILE", help="default: frontier.parquet")
    add("--all", metavar="FILE", help="also write every feasible layout, ranked by MFU")
    add("--json", action="store_true", help="print JSON")


def add_explain(parser: argparse.ArgumentParser) -> None:
    """The options of `explain`."""
    parser.description = "Explain one layout: given by its degrees, or row K of a frontier that search wrote."
    parser.usage = "%(prog)s MODEL CLUSTER --gpus N [--tp 8 --pp 4 ...]\n       %(prog)s FILE --rank K"
    add_job(parser, required=False)
    add_axes(parser, many=False)
    parser.add_argument("--rank", type=_count, metavar="K", help="row of the frontier FILE to explain")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_why(parser: argparse.ArgumentParser) -> None:
    """The options of `why`."""
    parser.description = "Say which rules leave a request without a layout, with their numbers, and what to change."
    add_job(parser, required=True)
    add_axes(parser, many=True)
    parser.add_argument("--threads", type=_count, metavar="N", help="default: one a core")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The options of `plan`."""
    parser.description = "Plan a layout by rule of thumb, step by step, and set it beside the search's best."
    add_job(parser, required=True)
    add = parser.add_argument
    add(
        "--space",
        default="default",
        metavar="NAME|FILE",
        help="what the best is searched in: default, wide, a TOML file",
    )
    add("--threads", type=_count, metavar="N", help="default: one a core")
    add("--json", action="store_true", help="print JSON")


def command_line(command: str, given: Mapping[str, object]) -> str:
    """What to type for another command on the same job and axes; `given` holds arguments by their names."""
    parser = Parser()
    add_job(parser, required=False)
    add_axes(parser, many=True)
    usual = vars(parser.parse_args([]))
    words = ["meshscout", command, str(given["model"]), str(given["cluster"])]
    for name, default in usual.items():
        value = given.get(name, default)
        if value == default or name in ("model", "cluster"):
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, tuple | list) else str(value))
    return shlex.join(words)


def add_list(parser: argparse.ArgumentParser) -> None:
    """The options of `list`."""
    parser.description = "List what is shipped, with the source of every number."
    parser.add_argument("kind", choices=("models", "clusters", "gpus", "profiles", "spaces"))
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_validate(parser: argparse.ArgumentParser) -> None:
    """Options of `validate`."""
    parser.add_argument("runs", metavar="RUNS.csv", help="a table of measured runs")
    parser.add_argument("--predictions", metavar="FILE.csv", help="write a prediction for every run")
    parser.add_argument("--trust", choices=("ok", "medium", "low"), default="ok", help="least trust of a run (ok)")
    parser.add_argument("--json", action="store_true", help="print JSON in SI units")


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Options of `calibrate`."""
    parser.add_argument("runs", metavar="RUNS.csv", help="a table of measured runs")
    parser.add_argument("-o", "--output", metavar="PROFILE.toml", required=True, help="the profile to write")
    parser.add_argument("--profile", metavar="NAME", default="megatron", help="the profile to start from (megatron)")
