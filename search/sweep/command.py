"""`sweep`: what was typed -> the units, their results, the file and the answers."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from hardware.errors import InfeasibleError, InputError
from search.files import output_path, whole
from search.options import COLUMNS
from search.sweep import answers, executors, tell
from search.sweep.file import to_parquet
from search.sweep.grid import Machine, Request, machines
from search.sweep.journal import Journal, journal
from search.sweep.rows import Limits, Row, fits, rows_of
from search.sweep.unit import Unit
from search.terminal import progress, say
from search.version import VERSION

WORK = (
    "precision", "grad_dtype", "moments_dtype", "expert_load", "routed_nodes", "flops_convention", "mfu_peak",
    "headroom", "memory_margin", "rank_order",
)  # fmt: skip


def sweep(arguments: Namespace) -> int:
    """Run the sweep, write its file and print the best of each size and the answers.

    Raises InputError for what cannot be meant, InfeasibleError if nothing fits anywhere.
    """
    request = _request(arguments)
    output = output_path(arguments.output, [*arguments.model, *arguments.cluster, arguments.profile])
    asked = machines(request)
    with journal(output, resume=arguments.resume) as kept:
        usual, units = _run(arguments, asked, kept)
        asked_for, every = (rows_of(some, kept.done, arguments.tokens, Limits()) for some in (usual, units))
        limits = Limits(days=arguments.max_days, cost=arguments.max_cost)
        rows = rows_of(units, kept.done, arguments.tokens, limits)
        with whole(output) as (file,):
            to_parquet(file, rows, _provenance(arguments, units))
    say(f"wrote {output}: {len(rows):,} rows of {len(units):,} searches")
    quick = answers.fewest(every, arguments.max_days) if arguments.max_days else []
    if arguments.json:
        print(json.dumps(_json(arguments, rows, asked_for, quick), indent=2))
    else:
        print("\n".join(tell.report(arguments, rows, asked_for, quick)))
    if not any(map(fits, rows)):
        raise InfeasibleError("no layout on any machine and size fits and keeps the limits; the table has the reasons")
    return 0


def _request(arguments: Namespace) -> Request:
    paths = [path for path, _ in arguments.set]
    for name, given in (("--set", paths), ("--price", [cluster for cluster, _ in arguments.price])):
        twice = [path for path in given if given.count(path) > 1]
        if twice:
            raise InputError(f"{name} {twice[0]}: given twice; write its values as one list")
    if arguments.workers and arguments.dask:
        raise InputError("--workers and --dask: choose one")
    limits = {column: getattr(arguments, option.replace("-", "_")) for option, column in COLUMNS.items()}
    return Request(
        models=arguments.model, clusters=arguments.cluster, sizes=arguments.gpus,
        batches=arguments.global_batch or (), critical_batch=arguments.critical_batch, max_gpus=arguments.max_gpus,
        family=arguments.family, profile=arguments.profile, seq_len=arguments.seq_len, space=arguments.space,
        prices=dict(arguments.price), axes=dict(arguments.set), any_domain=arguments.any_domain, limits=limits,
        workload={name: getattr(arguments, name) for name in WORK},
    )  # fmt: skip


def _run(arguments: Namespace, asked: Sequence[Machine], kept: Journal) -> tuple[list[Unit], list[Unit]]:
    """The units of the sizes asked for, and all: with --max-days also those between the last size that is too slow and
    the first in time. Their results are in the journal."""
    by_machine = [list(machine.units(machine.request.sizes_of(machine.cluster))) for machine in asked]
    usual = [unit for own in by_machine for unit in own]
    if not usual:
        raise InputError(f"--max-gpus {arguments.max_gpus}: smaller than every size")
    if all(unit.problem is None for unit in usual):
        raise InputError(usual[0].reason)
    number = arguments.workers or arguments.threads or executors.cores()
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
    rows = rows_of(own, kept.done, arguments.tokens, Limits())
    sizes = sorted({unit.gpus for unit in own})
    quick = {row["gpus"] for row in rows if fits(row) and row["days_to_train"] <= arguments.max_days}
    more = answers.between(sizes, machine.cluster.gpus_per_node, [size in quick for size in sizes])
    return list(machine.units(more))


def _provenance(arguments: Namespace, units: Sequence[Unit]) -> dict[str, Any]:
    """What the file keeps of the question: nothing of how, how fast or where it was run."""
    how = ("given", "run", "threads", "workers", "dask", "resume", "output", "json")
    return {
        "inputs": {name: value for name, value in vars(arguments).items() if name not in how},
        "sha256": {"units": [unit.key for unit in units]},
        "versions": {"meshscout": VERSION},
        "rows": "sweep",
    }


def _json(
    arguments: Namespace, rows: Sequence[Row], asked_for: Sequence[Row], quick: Sequence[answers.Fewest]
) -> Mapping[str, Any]:
    return {
        "rows": len(rows),
        "best": answers.best(rows, arguments.objective),
        "winner": answers.winner(rows, arguments.objective),
        "pareto": [row for row in rows if row["pareto"]],
        "knees": [
            {"machine": list(machine), "gpus": row["gpus"], "gain": gain, "met": met}
            for machine, row, gain, met in answers.knees(asked_for)
        ],
        "fewest": [
            {"machine": list(it.machine), "gpus": it.gpus, "gpus_low": it.low, "gpus_high": it.high} for it in quick
        ],
    }
