"""What may be typed after `sweep`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from search.options import add_axes, add_workload
from search.values import count, named

MANY = 4096
FIGURE = re.compile(r"([0-9]+(?:\.[0-9]*)?(?:e[+]?[0-9]{1,2})?)([kMGT]?)")
SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """The options of `sweep`."""
    parser.description = (
        "Search every model on every cluster at every size, and say what training T tokens takes on each: days, "
        "GPU-hours, money and energy."
    )
    add = parser.add_argument
    add("model", metavar="MODEL[,..]", type=_names, help="shipped names, TOML files, config.json")
    add("cluster", metavar="CLUSTER[,..]", type=_names, help="names or TOML files")
    add("--as", dest="family", type=named, metavar="FAMILY", help="read config.json files as this model_type")
    sizes = "GPUs: a list, 64:16384:x2 (doublings) or 64:512:+64 (steps); default: doubling from one node to 16,384"
    add("--gpus", metavar="N[,..]", type=_sizes, default=(), help=sizes)
    add("--tokens", metavar="T", type=figure, required=True, help="tokens to train, for example 15e12 or 15T")
    _add_money(parser)
    add_workload(parser, batch=_batches)
    add_axes(parser, many=True)
    _add_running(parser)


def _add_money(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is bought").add_argument
    price = "$ per GPU-hour of a cluster; again for another one; default: its file's"
    add("--price", metavar="CLUSTER=PRICE", action="append", type=_price, default=[], help=price)
    what = "what if a figure of the cluster were VALUE: cluster.levels.1.bandwidth=25GB/s; a list is an axis of its own"
    add("--set", metavar="PATH=VALUE[,..]", action="append", type=_setting, default=[], help=what)
    critical = "tokens that a step may hold at most: beyond it a larger batch buys no fewer steps"
    add("--critical-batch", metavar="TOKENS", type=figure, help=critical)
    days = "leave out what takes longer; and find the fewest GPUs that do not"
    add("--max-days", metavar="D", type=figure, help=days)
    add("--max-cost", metavar="$", type=figure, help="leave out what costs more")
    add("--max-gpus", metavar="N", type=count, help="leave out larger sizes")
    best = "by which the best layout of a size and the best of all are chosen; default: cost"
    add("--objective", choices=("cost", "time", "energy"), default="cost", help=best)


def _add_running(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("running").add_argument
    add("--threads", type=count, metavar="N", help="searches side by side; default: one a core")
    add("--workers", type=count, metavar="N", help="processes instead of threads")
    add("--dask", type=named, metavar="ADDRESS", help="the workers of a Dask scheduler (pip install 'meshscout[dask]')")
    add("--resume", action="store_true", help="go on from what a sweep that was stopped left")
    add("-o", "--output", type=named, default="sweep.parquet", metavar="FILE", help="Parquet; default: sweep.parquet")
    add("--json", action="store_true", help="print JSON")


def figure(text: str) -> float:
    """A positive number: 30, 15e12 or 15T (k, M, G and T are thousands)."""
    match = FIGURE.fullmatch(text)
    if not match or not 0 < (value := float(match[1]) * SCALES[match[2]]) < 1e30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number such as 30, 15e12 or 15T")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name")
    return names


def _sizes(text: str) -> tuple[int, ...]:
    return _numbers(text, r"([0-9]+):([0-9]+):([x+])([0-9]+)", "64,128 or 64:16384:x2")


def _batches(text: str) -> tuple[int, ...]:
    return _numbers(f"{text}:x2" if text.count(":") == 1 else text, r"([0-9]+):([0-9]+):([x+])([0-9]+)", "1024:4096")


def _numbers(text: str, pattern: str, example: str) -> tuple[int, ...]:
    """Numbers from a list or a range, rising."""
    match = re.fullmatch(pattern, text)
    if not match:
        if ":" in text:
            raise argparse.ArgumentTypeError(f"{text!r} is no range; write {example}")
        return tuple(sorted({count(part.strip()) for part in text.split(",")}))
    first, last, step = count(match[1]), count(match[2]), count(match[4])
    grow: Callable[[int], int] = (lambda value: value * step) if match[3] == "x" else (lambda value: value + step)
    if last < first or grow(first) == first:
        raise argparse.ArgumentTypeError(f"{text!r} is no rising range; write {example}")
    values = [first]
    while grow(values[-1]) <= last:
        values.append(grow(values[-1]))
        if len(values) > MANY:
            raise argparse.ArgumentTypeError(f"{text!r} has more than {MANY} sizes")
    return tuple(values)


def _price(text: str) -> tuple[str, float]:
    name, _, value = text.rpartition("=")
    price = value.strip().removeprefix("$").removesuffix("$/h").strip()
    if not name or not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", price) or not float(price):
        raise argparse.ArgumentTypeError(f"{text!r}: write CLUSTER=PRICE in $ per GPU-hour, for example dgx-h100=2.10")
    return name, float(price)


def _setting(text: str) -> tuple[str, tuple[str, ...]]:
    path, _, values = text.partition("=")
    parts = tuple(dict.fromkeys(part.strip() for part in values.split(",")))
    if not re.fullmatch(r"cluster(\.[\w-]+)+", path) or not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r}: write cluster.PATH=VALUE, as cluster.levels.1.bandwidth=25GB/s")
    return path, parts
