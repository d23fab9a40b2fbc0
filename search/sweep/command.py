"""`sweep`: what was typed -> the units, their results, the file and the answers."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from hardware.errors import InfeasibleError, InputError
from search import grounds
from search.engine import cores
from search.files import failure, output_path, verb, whole
from search.inputs import WORK, check_experts
from search.options import COLUMNS
from search.sweep import answers, executors, tell
from search.sweep.file import to_parquet
from search.sweep.grid import Machine, Request, machines
from search.sweep.journal import Journal, journal
from search.sweep.rows import ENDS, Limits, Row, fits, rows_of
from search.sweep.unit import Unit
from search.terminal import progress, put, say
from search.version import VERSION


def sweep(arguments: Namespace) -> int:
    """Run the sweep, write its file and print the best of each size and the answers.

    Raises InputError for what cannot be meant, InfeasibleError if nothing fits anywhere.
    """
    request = _request(arguments)
    read = [*arguments.model, *arguments.cluster, arguments.profile, arguments.space]
    output = output_path(arguments.output, "Parquet", read)
    how = verb(output)
    asked = machines(request)
    check_experts([machine.model for machine in asked], arguments)
    asked = _one_margin(asked)
    arguments.memory_margin = asked[0].request.workload["memory_margin"]  # for the table and the file to tell
    with journal(output, resume=arguments.resume) as kept:
        usual, units = _run(arguments, asked, kept)
        limits = Limits(days=arguments.max_days, cost=arguments.max_cost)
        rows = rows_of(units, kept.done, arguments.tokens, limits)
        found = _answers(arguments, usual, units, kept)
        failed = failure(lambda: _write(output, rows, _provenance(arguments, units, found)))
        if failed is not None:
            _tell(arguments, rows, units, found)
            raise failed
    say(f"{how} {output}: {len(rows):,} rows of {len(units):,} searches")
    _tell(arguments, rows, units, found)
    if not any(map(fits, rows)):
        raise InfeasibleError("no layout on any machine and size fits and keeps the limits; the table has the reasons")
    return 0


def _tell(arguments: Namespace, rows: Sequence[Row], units: Sequence[Unit], found: answers.Answers) -> None:
    doubts = _doubts(units)
    if arguments.json:
        put(json.dumps({"warnings": doubts} | _json(arguments, rows, found), indent=2))
    else:
        put("\n".join(tell.report(arguments, rows, found)))
    for doubt in doubts:
        say(doubt)


def _request(arguments: Namespace) -> Request:
    paths = [path for path, _ in arguments.set]
    for name, given in (("--set", paths), ("--price", [cluster for cluster, _ in arguments.price])):
        twice = [path for path in given if given.count(path) > 1]
        if twice:
            raise InputError(f"{name} {twice[0]}: given twice; write its values as one list")
    if arguments.price and "cluster.price" in paths:
        raise InputError("--set cluster.price and --price: write the prices once")
    runners = [f"--{name}" for name in ("threads", "workers", "dask") if getattr(arguments, name)]
    if len(runners) > 1:
        raise InputError(f"{' and '.join(runners)}: choose one")
    limits = {column: getattr(arguments, option.replace("-", "_")) for option, column in COLUMNS.items()}
    return Request(
        models=arguments.model, clusters=arguments.cluster, sizes=arguments.gpus,
        batches=arguments.global_batch or (), critical_batch=arguments.critical_batch, max_gpus=arguments.max_gpus,
        family=arguments.family, profile=arguments.profile, seq_len=arguments.seq_len, space=arguments.space,
        prices=dict(arguments.price), axes=dict(arguments.set), any_domain=arguments.any_domain, limits=limits,
        workload={name: getattr(arguments, name) for name in WORK if name not in ("gpus", "seq_len", "global_batch")},
    )  # fmt: skip


def _one_margin(asked: Sequence[Machine]) -> list[Machine]:
    """The machines with the least memory margin of all their sizes, so that one size compares with another.

    Where measured runs do not cover each of them that is 0.5, as predicted: any other would follow the interval, which
    is wider beyond those runs.
    """
    margins = [margin for machine in asked for margin in machine.margins()]
    if not margins:
        return list(asked)
    least, lowered = min(margins), sum(margin > min(margins) for margin in margins)
    if lowered:
        say(
            f"layouts of every size fit with probability {least:g}, as predicted: measured runs cover {lowered} of the "
            f"{len(margins)} sizes, and not the others; --memory-margin sets another"
        )
    return [machine.with_margin(least) for machine in asked]


def _run(arguments: Namespace, asked: Sequence[Machine], kept: Journal) -> tuple[list[Unit], list[Unit]]:
    """The units of the sizes asked for, and all: with --max-days also those between the last size that is too slow and
    the first in time. Their results are in the journal."""
    by_machine = [list(machine.units(machine.request.sizes_of(machine.cluster))) for machine in asked]
    usual = [unit for own in by_machine for unit in own]
    if not usual:
        raise InputError(f"--max-gpus {arguments.max_gpus}: smaller than every size")
    if all(unit.problem is None for unit in usual):
        raise InputError(usual[0].reason)
    number = arguments.workers or arguments.threads or cores()
    opened: executors.Opened = partial(_opened, arguments, number)
    with progress("searches") as show:
        executors.run_all(usual, opened, kept, 1, show)
        if arguments.max_days is None:
            return usual, usual
        more = [_between(arguments, machine, own, kept) for machine, own in zip(asked, by_machine, strict=True)]
        executors.run_all([unit for own in more for unit in own], opened, kept, 1, show)
    pairs = zip(by_machine, more, strict=True)
    return usual, [
        unit for own, added in pairs for unit in sorted([*own, *added], key=lambda unit: (unit.gpus, unit.global_batch))
    ]


def _opened(arguments: Namespace, number: int) -> AbstractContextManager[Any]:
    if arguments.dask:
        return executors.dask(arguments.dask)
    return executors.processes(number) if arguments.workers else executors.threads(number)


def _between(arguments: Namespace, machine: Machine, own: Sequence[Unit], kept: Journal) -> list[Unit]:
    """Sizes around those where the prediction, and each end of its interval, comes below the days."""
    rows = [row for row in rows_of(own, kept.done, arguments.tokens, Limits()) if fits(row)]
    sizes = sorted({unit.gpus for unit in own})
    more: set[int] = set()
    for end in ENDS:
        quick = {row["gpus"] for row in rows if row[f"days_to_train{end}"] <= arguments.max_days}
        more |= {*answers.between(sizes, machine.cluster.gpus_per_node, [size in quick for size in sizes])}
    return list(machine.units(sorted(more), fitting=True))


def _answers(
    arguments: Namespace, usual: Sequence[Unit], units: Sequence[Unit], kept: Journal
) -> tuple[list[answers.Knee], list[answers.Fewest]]:
    """The knees of the sizes asked for, whatever these take, and the fewest GPUs that keep the days and the cost."""
    asked_for = rows_of(usual, kept.done, arguments.tokens, Limits())
    paid = rows_of(units, kept.done, arguments.tokens, Limits(cost=arguments.max_cost))
    quick = answers.fewest(paid, arguments.max_days) if arguments.max_days else []
    return list(answers.knees(asked_for)), quick


def _write(output: Path, rows: Sequence[Row], told: dict[str, Any]) -> None:
    with whole(output) as (file,):
        to_parquet(file, rows, told)


def _provenance(arguments: Namespace, units: Sequence[Unit], found: answers.Answers) -> dict[str, Any]:
    """What the file keeps of the question and the answers: nothing of how, how fast or where it was run."""
    how = ("given", "run", "threads", "workers", "dask", "resume", "output", "json")
    given = {name: value for name, value in vars(arguments).items() if name not in how}
    return {
        "inputs": given | {"warnings": _doubts(units)},
        "answers": _plain(found),
        "sha256": {"units": [unit.key for unit in units]},
        "versions": {"meshscout": VERSION},
        "rows": "sweep",
    }


def _doubts(units: Sequence[Unit]) -> list[str]:
    """One line for each profile and GPU whose rates no run is behind."""
    return list(dict.fromkeys(doubt for unit in units if unit.problem for doubt in grounds.doubts(unit.problem)))


def _plain(found: answers.Answers) -> dict[str, Any]:
    knees, quick = found
    return {
        "knees": [
            {"machine": list(it.machine), "gpus": it.row["gpus"], "gain": it.gain, "met": it.met} for it in knees
        ],
        "fewest": [
            {
                "machine": list(it.machine),
                "gpus": it.gpus,
                "gpus_low": it.low,
                "gpus_high": it.high,
                "smallest": it.smallest,
            }
            for it in quick
        ],
    }


def _json(arguments: Namespace, rows: Sequence[Row], found: answers.Answers) -> dict[str, Any]:
    return {
        "rows": len(rows),
        "memory_margin": arguments.memory_margin,
        "best": answers.best(rows, arguments.objective),
        "winners": answers.winners(rows, arguments.objective),
        "pareto": [row for row in rows if row["pareto"]],
        **_plain(found),
    }
