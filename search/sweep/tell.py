"""What `sweep` prints: the best layout of every machine and size, and the answers in words."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from textwrap import shorten

from hardware.units import format_count
from search.sweep import answers
from search.sweep.rows import ENDS, Row, fits, machine_of, settings_of
from search.table import WIDTH

JOULES_PER_MWH = 3.6e9
LEFT = ("layout",)


def report(arguments: Namespace, rows: Sequence[Row], found: answers.Answers) -> Iterator[str]:
    """The lines of the terminal: the best of each machine and size of the rows, and the answers."""
    best = answers.best(rows, arguments.objective)
    tokens = format_count(arguments.tokens).strip()
    work = f"{tokens} tokens, profile {arguments.profile}, {arguments.precision}"
    if arguments.memory_margin is not None:
        work += f", to fit with probability {arguments.memory_margin:g}"
    yield f"{work}; the best layout of each size by {arguments.objective}"
    yield ""
    yield from _table(best)
    yield ""
    word = {"cost": "cheapest", "time": "fastest", "energy": "least energy"}[arguments.objective]
    for winner in answers.winners(rows, arguments.objective):
        yield f"{word}: {_machine(machine_of(winner, settings_of(rows)), rows)}: {_bought(winner)}"
    unpriced = dict.fromkeys(row["cluster"] for row in rows if fits(row) and row["cost"] is None)
    if unpriced:
        yield f"no price is known of {', '.join(unpriced)}: no cost there; --price CLUSTER=2.50 sets one"
    knees, quick = found
    for knee in knees:
        yield f"knee: {_machine(knee.machine, rows)}: {_knee(knee)}"
    for it in quick:
        yield f"in {arguments.max_days:g} days: {_machine(it.machine, rows)}: {_fewest(it)}"


def _machine(machine: Sequence[object], rows: Sequence[Row]) -> str:
    """Model, cluster and what was set of it, in words."""
    model, cluster, *values = machine
    settings = [f"{short(name)} {value}" for name, value in zip(settings_of(rows), values, strict=True)]
    return f"{model} on {', '.join([str(cluster), *settings])}"


def short(column: str) -> str:
    """The name of a what-if's column, as little of its path as tells it: spine oversubscription."""
    return (
        re.sub(r"^levels_(?=\d)", "level_", column.removeprefix("cluster_")).removeprefix("levels_").replace("_", " ")
    )


def _table(best: Sequence[Row]) -> Iterator[str]:
    settings = settings_of(best)
    names = [
        name for name in ("model", "cluster", *settings) if name == "cluster" or len({it[name] for it in best}) > 1
    ]
    named = ["cluster" if name == "cluster" else short(name) for name in names]
    head = [*named, "GPUs", "layout", "batch", "MFU", "days", "cost", "MWh", "scaling"]
    lines = [head, *([*(str(row[name]) for name in names), *_cells(row)] for row in best)]
    in_columns = [line if len(line) == len(head) else line[:-1] for line in lines]  # a reason runs over all that follow
    widths = [max(len(line[at]) for line in in_columns if at < len(line)) for at in range(len(head))]
    for line in lines:
        cells = [
            cell.ljust(width) if number < len(names) or name in LEFT else cell.rjust(width)
            for number, (cell, width, name) in enumerate(zip(line, widths, head, strict=False))
        ]
        yield "  ".join(cells).rstrip()


def _cells(row: Row) -> list[str]:
    gpus = f"{row['gpus']:,}"
    if not fits(row):
        return [gpus, "- " + shorten(row["reason"], WIDTH - 50, placeholder=" ...")]
    cost = "-" if row["cost"] is None else f"${row['cost']:,.0f}"
    return [
        gpus, _layout(row), f"{row['global_batch']:,}", f"{row['mfu']:.1%}", _days(row), cost,
        f"{row['energy'] / JOULES_PER_MWH:,.0f}", f"{row['scaling_efficiency']:.0%}",
    ]  # fmt: skip


def _days(row: Row) -> str:
    value, low, high = (_three(row[f"days_to_train{end}"]) for end in ENDS)
    return f"{value} ({low}-{high})"


def _three(value: float) -> str:
    """Three digits, and all that stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _layout(row: Row) -> str:
    degrees = [("tp", 1), ("pp", 1), ("vpp", 1), ("cp", 1), ("ep", 1)]
    shown = [f"{name}{row[name]}" for name, usual in degrees if row[name] != usual]
    again = row["recompute"] + (f" in {row['recompute_layers']}" if row["recompute_layers"] else "")
    return " ".join([*shown, f"dp{row['dp']}", f"z{row['zero_stage']}", f"mb{row['micro_batch']}", again])


def _bought(row: Row) -> str:
    cost = "no price" if row["cost"] is None else f"${row['cost']:,.0f}"
    return f"{row['gpus']:,} GPUs, {_days(row)} days, {cost}, {row['gpu_hours']:,.0f} GPU-hours"


def _knee(knee: answers.Knee) -> str:
    if knee.met:
        return f"{knee.row['gpus']:,} GPUs; the next size gains {knee.gain:.0%} of what its GPUs would at full scaling"
    return f"none up to {knee.row['gpus']:,} GPUs, whose last step still gains {knee.gain:.0%}"


def _fewest(it: answers.Fewest) -> str:
    if it.row is None:
        return "no size of this sweep"
    ends = " to ".join("more than swept" if end is None else f"{end:,}" for end in (it.low, it.high))
    fewer = "; no smaller size was swept" * it.smallest
    return f"{_bought(it.row)} ({ends} GPUs at the ends of the interval{fewer})"
