"""What `sweep` prints: the best layout of every machine and size, and the answers in words."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import shorten

from hardware.units import format_count
from search.sweep import answers
from search.sweep.rows import LEAVES, Row, fits, machine_of, settings_of

WIDTH = 120
JOULES_PER_MWH = 3.6e9
LEFT = ("layout",)


def report(
    arguments: Namespace, rows: Sequence[Row], asked_for: Sequence[Row], quick: Sequence[answers.Fewest]
) -> Iterator[str]:
    """The lines of the terminal; `rows` keep the limits, `asked_for` are those of the sizes asked for, whatever they
    take."""
    best = answers.best(rows, arguments.objective)
    tokens = format_count(arguments.tokens).strip()
    work = f"{tokens} tokens, profile {arguments.profile}, {arguments.precision}"
    yield f"{work}; the best layout of each size by {arguments.objective}"
    yield ""
    yield from _table(best)
    yield ""
    winner = answers.winner(rows, arguments.objective)
    if winner is not None:
        word = {"cost": "cheapest", "time": "fastest", "energy": "least energy"}[arguments.objective]
        yield f"{word}: {_named(winner, rows)}: {_figures(winner)}"
    yield from _knees(asked_for)
    yield from _fewest(arguments, quick)


def _table(best: Sequence[Row]) -> Iterator[str]:
    settings = settings_of(best)
    names = [
        name for name in ("model", "cluster", *settings) if name == "cluster" or len({it[name] for it in best}) > 1
    ]
    short = [name.removeprefix("cluster_").removeprefix("levels_").replace("_", " ") or name for name in names]
    head = [*short, "GPUs", "layout", "batch", "MFU", "days", "cost", "MWh", "scaling"]
    lines = [head, *([*(str(row[name]) for name in names), *_cells(row)] for row in best)]
    whole = [line for line in lines if len(line) == len(head)]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
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
    value, low, high = (_three(row[f"days_to_train{end}"]) for end in ("", "_low", "_high"))
    return f"{value} ({low}-{high})"


def _three(value: float) -> str:
    """Three digits, and all that stand before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _layout(row: Row) -> str:
    degrees = [("tp", 1), ("pp", 1), ("vpp", 1), ("cp", 1), ("ep", 1)]
    shown = [f"{name}{row[name]}" for name, usual in degrees if row[name] != usual]
    return " ".join([*shown, f"dp{row['dp']}", f"z{row['zero_stage']}", f"mb{row['micro_batch']}", row["recompute"]])


def _named(row: Row, rows: Sequence[Row]) -> str:
    machine = machine_of(row, settings_of(rows))
    return f"{machine[0]} on {row['gpus']:,} GPUs of {', '.join(map(str, machine[1:]))}"


def _figures(row: Row) -> str:
    cost = "no price" if row["cost"] is None else f"${row['cost']:,.0f}"
    return f"{_days(row)} days, {cost}, {row['gpu_hours']:,.0f} GPU-hours"


def _knees(rows: Sequence[Row]) -> Iterator[str]:
    for machine, row, gain, met in answers.knees(rows):
        where = f"{machine[0]} on {', '.join(map(str, machine[1:]))}"
        if met:
            yield (
                f"knee: {where}: {row['gpus']:,} GPUs; the next size gains {gain:.0%} of what its GPUs would at full "
                f"scaling{_next_thousand(rows, row)}"
            )
        else:
            yield f"knee: {where}: none up to {row['gpus']:,} GPUs, whose last step still gains {gain:.0%}"


def _next_thousand(rows: Sequence[Row], row: Row) -> str:
    """Days that the next thousand GPUs save, between this size and the next one of the machine."""
    settings = settings_of(rows)
    own = [
        it for it in answers.best(rows, "time") if fits(it) and machine_of(it, settings) == machine_of(row, settings)
    ]
    for before, after in pairwise(sorted(own, key=lambda it: it["gpus"])):
        if before["gpus"] == row["gpus"]:
            saved = (before["days_to_train"] - after["days_to_train"]) / (after["gpus"] - before["gpus"]) * 1000
            return f": {saved:.2g} days saved by the next thousand"
    return ""


def _fewest(arguments: Namespace, quick: Sequence[answers.Fewest]) -> Iterator[str]:
    in_time = [it for it in quick if it.row is not None]
    for it in quick:
        where = f"{it.machine[0]} on {', '.join(map(str, it.machine[1:]))}"
        if it.row is None:
            yield f"in {arguments.max_days:g} days: {where}: no size of this sweep"
        else:
            ends = " to ".join("more than swept" if end is None else f"{end:,}" for end in (it.low, it.high))
            yield f"in {arguments.max_days:g} days: {where}: {it.gpus:,} GPUs ({ends}): {_figures(it.row)}"
    priced = [it.row for it in in_time if it.row is not None and it.row[LEAVES["cost"]] is not None]
    if len(priced) > 1:
        cheapest = min(priced, key=lambda row: row["cost"])
        yield f"the cheapest of these: {cheapest['cluster']} with {cheapest['gpus']:,} GPUs, {_figures(cheapest)}"
