"""What may be typed: the options of every command and how their values are read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import NoReturn

from hardware.errors import InputError
from search.terminal import put
from search.values import VALUES, Value, count, list_of, memory, named, number, whole

AXES: dict[str, tuple[str, str]] = {
    "tp": ("count", "tensor-parallel degree"),
    "pp": ("count", "pipeline stages"),
    "vpp": ("count", "virtual stages (model chunks) on each pipeline rank"),
    "dp": ("count", "data-parallel degree; derived from the others when omitted"),
    "cp": ("count", "context-parallel degree"),
    "ep": ("count", "expert-parallel degree"),
    "etp": ("count", "tensor-parallel degree inside an expert"),
    "zero": ("stage", "0: nothing sharded, 1: optimizer, 2: and gradients, 3: and weights (FSDP)"),
    "dp-shard": ("count|all", "ranks over which ZeRO shards its states: all of DP x CP, or fewer (HSDP)"),
    "micro-batch": ("count", "sequences per micro-batch"),
    "recompute": (
        "name",
        "what is recomputed in the backward pass, a set of the profile; megatron: none, norms, selective, mlp, moe, "
        "full (list profiles shows the modules of each), or modules joined by + (layernorm+mlp)",
    ),
    "recompute-layers": (
        "layers",
        "layers of each stage that --recompute holds for, others keep all; default 0: every layer",
    ),
    "sequence-parallel": ("switch", "true or false: split norms and dropout over the TP ranks, too"),
    "schedule": ("name", "1f1b, interleaved, zero-bubble, dualpipe"),
    "rank-order": (
        "name",
        "ranks from the inside out: tp-cp-dp-pp or tp-cp-pp-dp (Megatron-Core's --use-tp-pp-dp-mapping)",
    ),
}
"""The options of the axes, without their dashes: (kind of value, help)."""

COLUMNS = {option: option.replace("-", "_") for option in AXES} | {"zero": "zero_stage"}
"""The column of each axis option in a table of layouts."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, which never guesses an abbreviated option and takes no option twice."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**({"allow_abbrev": False} | settings))  # type: ignore[arg-type]
        self.register("action", None, _Once)
        self.set_defaults(given=frozenset())

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (usage: {self.prog} --help)")

    def _print_message(self, message: str, file: object = None) -> None:
        put(message.removesuffix("\n"))


class _Once(argparse.Action):
    """Stores a value, and its name among those `given`; the second one of an option is refused, as it would win."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        if option is not None:
            if self.dest in namespace.given:
                raise argparse.ArgumentError(self, "given twice")
            namespace.given |= {self.dest}
        setattr(namespace, self.dest, values)


def _other(text: str) -> int | dict[str, Value]:
    """A row's number, or changed values by the column of their axis."""
    if re.fullmatch("[0-9]+", text):
        return count(text)
    found: dict[str, Value] = {}
    for part in text.split(","):
        axis, given, value = (word.strip() for word in part.partition("="))
        option = {column.replace("_", "-"): option for option, column in COLUMNS.items()}.get(
            axis.replace("_", "-"), axis
        )
        if not given or option not in AXES:
            raise argparse.ArgumentTypeError(f"{part!r} is neither a row nor AXIS=VALUE of {', '.join(AXES)}")
        if COLUMNS[option] in found:
            raise argparse.ArgumentTypeError(f"{option} is given twice")
        found[COLUMNS[option]] = VALUES[AXES[option][0]](value)
    return found


def add_axes(parser: argparse.ArgumentParser, *, many: bool) -> None:
    """The axes: comma lists in place of the space's values, or one value each."""
    listed = "comma lists in place of the space's values; default: all of these"
    title = listed if many else "one value each; default: 1, derived, or the profile's"
    group = parser.add_argument_group("axes", title)
    for option, (kind, text) in AXES.items():
        value = list_of(VALUES[kind]) if many else VALUES[kind]
        group.add_argument(f"--{option}", type=value, metavar=kind.upper() + ",.." * many, help=text)
    group.add_argument(
        "--space", type=named, default="default", metavar="NAME|FILE", help="default, wide or a TOML file"
    )
    group.add_argument("--any-domain", action="store_true", help="let TP leave the fast link domain")


def add_job(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Model, cluster and what is trained; without `required` the caller checks what is missing."""
    places = None if required else "?"
    files = "shipped name, TOML file, Hugging Face config.json or its folder" + ("" if required else "; or FILE")
    parser.add_argument("model", nargs=places, metavar="MODEL", help=files)
    parser.add_argument("cluster", nargs=places, metavar="CLUSTER", help="name or TOML file")
    family = "read MODEL's config.json as this model_type"
    parser.add_argument("--as", dest="family", type=named, metavar="FAMILY", help=family)
    parser.add_argument("--gpus", type=count, required=required, metavar="N", help="GPUs of the job")
    add_workload(parser)


def add_workload(parser: argparse.ArgumentParser, *, batch: Callable[[str], object] | None = None) -> None:
    """What is trained, and by what; `batch` reads the global batch where it is more than a number."""
    group = parser.add_argument_group("job")

    def add(option: str, shown: str, text: str, value: Callable[[str], object] = named, default: object = None) -> None:
        group.add_argument(f"--{option}", type=value, default=default, metavar=shown, help=text)

    add("seq-len", "TOKENS", "tokens of a sequence; default: the model's pre-training length", count)
    more = "; a list, or 1024:4096 for doublings between" if batch else ""
    usual = "default: 4 Mi tokens, above 1,024 GPUs 16 Mi"
    add("global-batch", "SEQUENCES", f"sequences a step{more}; {usual}", batch or count)
    add("precision", "NAME", "of the GEMMs: bf16 (default), fp16, fp8, mxfp8, nvfp4", default="bf16")
    add("grad-dtype", "NAME", "in which gradients accumulate: fp32, bf16, fp16; default: the profile's")
    add("moments-dtype", "NAME", "of the optimizer's two moments: fp32, bf16, fp8; default: the profile's")
    load = "tokens of the hottest expert rank over the mean, 1 (default) if the router balances perfectly"
    add("expert-load", "RATIO", load, number, 1.0)
    nodes = "nodes at most that the experts of one token lie on, which limits network traffic; 0: no limit"
    add("routed-nodes", "N", f"{nodes}; default: the model's", whole)
    add("profile", "NAME|FILE", "what runs the training; default: megatron (list profiles)", default="megatron")
    flops = (
        "FLOPs that MFU counts. causal (default): exact GEMMs and the causal half of attention, as Megatron-LM; full: "
        "the whole attention square, as PaLM and torchtitan; 6n: 6 per active parameter and token, no attention"
    )
    add("flops-convention", "NAME", flops, default="causal")
    peak = (
        "peak that MFU divides by. bf16 (default): the dense bf16 peak whatever the precision, as DeepSeek and Llama "
        "report; precision: the dense peak of --precision"
    )
    add("mfu-peak", "NAME", peak, default="bf16")
    free = 'memory of every GPU that must stay free, for example "4 GiB"; default: 0'
    add("headroom", "BYTES", free, memory, 0.0)
    covered = "all sizes" if batch else "the job"
    margin = (
        "probability with which a layout must fit, by the profile's interval; default: 0.9 where measured runs cover "
        f"{covered}, else 0.5, as predicted"
    )
    add("memory-margin", "P", margin, number)


EXAMPLES = {
    "search": (
        "llama-3.1-70b dgx-h100 --gpus 64",
        "deepseek-v3 hgx-h800 --gpus 2048 --profile deepseek --precision fp8 -o v3.parquet",
    ),
    "explain": ("frontier.parquet --rank 2", "llama-3.1-70b dgx-h100 --gpus 64 --tp 4 --pp 8 --recompute full"),
    "why": ("llama-3.1-405b dgx-h100 --gpus 64", "llama-3.1-70b dgx-h100 --gpus 64 --tp 16"),
    "plan": ("llama-2-13b dgx-h100 --gpus 32", "deepseek-v3 hgx-h800 --gpus 2048 --profile deepseek --precision fp8"),
    "report": ("frontier.parquet -o report.html", "sweep.parquet -o sweep.html"),
    "sweep": (
        "llama-3.1-70b dgx-h100,gb200-nvl72 --gpus 64:1024:x2 --tokens 15T",
        "llama-3.1-405b dgx-h100 --tokens 15e12 --max-days 60 --set cluster.levels.spine.oversubscription=1,2,4",
    ),
    "validate": ("runs.csv --predictions predicted.csv", "runs.csv --profile my-profile.toml"),
    "calibrate": ("runs.csv -o my-profile.toml", "runs.csv -o my-profile.toml --profile torchtitan"),
    "list": ("clusters", "profiles --json"),
}
"""Two calls of each command, without its name."""


def show_examples(parser: argparse.ArgumentParser, command: str) -> None:
    """Put the command's examples under its help."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["examples:", *(f"  meshscout {command} {call}" for call in EXAMPLES[command])])


def add_search(parser: argparse.ArgumentParser) -> None:
    """The options of `search`."""
    parser.description = "Score every layout; print the best and write the Pareto frontier of MFU and headroom."
    add_job(parser, required=True)
    add_axes(parser, many=True)
    add = parser.add_argument
    add("--threads", type=count, metavar="N", help="default: one a core")
    add("--top", type=count, default=10, metavar="K", help="sets of degrees that the table shows; default: 10")
    add("--no-bounds", action="store_true", help="score what a proven bound excludes, too")
    even = (
        "balance the stages of the frontier's layouts (with --all, of the K fastest, too) by CP-SAT, and rebuild it: "
        "-o has them, --all keeps the closed form's stages"
    )
    add("--balance", action="store_true", help=even)
    add(
        "-o",
        "--output",
        type=named,
        default="frontier.parquet",
        metavar="FILE",
        help="Parquet; default: frontier.parquet",
    )
    every = "also write every feasible layout, its stages split by the closed form, ranked by MFU, as Parquet"
    add("--all", type=named, metavar="FILE", help=every)
    add("--json", action="store_true", help="print JSON")


def add_explain(parser: argparse.ArgumentParser) -> None:
    """The options of `explain`."""
    parser.description = (
        "Explain one layout: given by its degrees, or row K of FILE, the Parquet file of a search, which takes the "
        "model's place and says all the rest."
    )
    parser.usage = "%(prog)s MODEL CLUSTER --gpus N [--tp 8 --pp 4 ...]\n       %(prog)s FILE [--rank K]"
    add_job(parser, required=False)
    add_axes(parser, many=False)
    parser.add_argument("--rank", type=count, metavar="K", help="row of FILE to explain; default: 1")
    alone = "the stages as CP-SAT balances them, layers and recompute sets, without the six steps"
    parser.add_argument("--stages", action="store_true", help=alone)
    keep = "--stages of the layers alone: every stage keeps --recompute and --recompute-layers, as frameworks launch it"
    parser.add_argument("--keep-recompute", action="store_true", help=keep)
    other = "another row of FILE, or changes (tp=4,recompute=full): where time and memory differ; without the steps"
    parser.add_argument("--against", type=_other, metavar="K|AXIS=VALUE,..", help=other)
    near = "the layouts one axis away: better or worse by how much, and through which term; without the steps"
    parser.add_argument("--neighbours", action="store_true", help=near)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_why(parser: argparse.ArgumentParser) -> None:
    """The options of `why`."""
    parser.description = "Say which rules leave a request without a layout, with their numbers, and what to change."
    add_job(parser, required=True)
    add_axes(parser, many=True)
    parser.add_argument("--threads", type=count, metavar="N", help="default: one a core")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The options of `plan`."""
    parser.description = "Plan a layout by rule of thumb, step by step, and set it beside the search's best."
    add_job(parser, required=True)
    add = parser.add_argument
    add(
        "--space",
        type=named,
        default="default",
        metavar="NAME|FILE",
        help="what the best is searched in: default, wide, a TOML file",
    )
    add("--threads", type=count, metavar="N", help="default: one a core")
    add("--json", action="store_true", help="print JSON")


def add_list(parser: argparse.ArgumentParser) -> None:
    """The options of `list`."""
    parser.description = "List what is shipped, with the source of every number."
    parser.add_argument("kind", choices=("models", "clusters", "gpus", "profiles", "spaces"))
    parser.add_argument("names", nargs="*", metavar="NAME|FILE", help="of these alone; default: all that are shipped")
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_report(parser: argparse.ArgumentParser) -> None:
    """The options of `report`."""
    parser.description = "Write a self-contained page of a frontier or a sweep; it loads nothing from the network."
    parser.add_argument("file", metavar="FILE", help="the Parquet file of search or sweep")
    parser.add_argument(
        "-o", "--output", type=named, default="report.html", metavar="FILE", help="default: report.html"
    )


def add_validate(parser: argparse.ArgumentParser) -> None:
    """Options of `validate`."""
    parser.description = "Score predictions against measured runs: step time, memory, out of memory, ranking."
    parser.add_argument(
        "runs", metavar="RUNS.csv", nargs="?", help="a table of measured runs; default: the shipped ones"
    )
    parser.add_argument(
        "--profile",
        type=named,
        metavar="NAME|FILE.toml",
        help="score this profile on its runs alone: those of its framework, and of frameworks that no profile knows",
    )
    parser.add_argument("--predictions", type=named, metavar="FILE.csv", help="write a prediction for every run")
    parser.add_argument(
        "--trust", choices=("ok", "medium", "low"), default="ok", help="least trust of a run; default: ok"
    )
    parser.add_argument("--json", action="store_true", help="print JSON in SI units")


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Options of `calibrate`."""
    parser.description = "Fit a profile's rates to measured runs, and say what each rests on and what the fit gains."
    parser.add_argument("runs", metavar="RUNS.csv", help="a table of measured runs")
    parser.add_argument(
        "-o", "--output", type=named, metavar="PROFILE.toml", required=True, help="the profile to write"
    )
    parser.add_argument(
        "--profile",
        type=named,
        metavar="NAME",
        default="megatron",
        help="the shipped profile to start from; default: megatron",
    )
    parser.add_argument(
        "--unfitted",
        action="store_true",
        help="start from the rates that the profile has before any fit: how the files of shipped profiles are made",
    )
