"""Measured runs: one row of a table of runs -> the problem and layout that ran, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd

from costmodel.calibration.architecture import model_of
from costmodel.calibration.cells import REQUIRED, flag, number, whole
from costmodel.calibration.frameworks import listed, profile_of
from costmodel.calibration.layout import as_run, layout_of
from costmodel.calibration.machine import cluster_of
from costmodel.calibration.software import software_of
from costmodel.layouts import Layouts
from costmodel.problem import Problem, Workload
from costmodel.profile import Profile
from hardware.errors import InputError

T = TypeVar("T")
K = TypeVar("K", str, tuple[str, str])

BF16_GRADIENTS = ("megatron-bridge", "nemo")
"""Frameworks whose published recipes set grad_reduce_in_fp32 to false."""

TRUSTS = ("ok", "medium", "low")
RUNS = Path(__file__).parents[1] / "data" / "runs.csv.gz"
"""Published, measured runs, each with its source."""
GIB = float(2**30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run. step_time in s, memory in B, None where not measured; `layout` is a table of one row."""

    id: str
    framework: str
    problem: Problem
    layout: Layouts
    step_time: float | None
    memory: float | None
    memory_kind: str
    oom: bool
    trust: str
    sweep: str
    source: str
    recompute_stated: bool
    ep_stated: bool


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be predicted, and why."""

    id: str
    why: str
    trust: str


def read_runs(path: str | Path, profile: Profile | None = None) -> tuple[list[Run], list[Skipped]]:
    """Runs of a CSV file in its order, and the rows that cannot be predicted. Raises InputError for a wrong file.

    With a profile: its runs alone, predicted with it; those are the runs of its framework and of frameworks that are
    not listed. docs/runs_format.md describes the columns.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected a CSV file of runs") from None
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        raise InputError(f"{path}: not a CSV file of runs: {why}") from None
    table.columns = table.columns.str.strip()
    if missing := [name for name in ("id", *REQUIRED) if name not in table.columns]:
        names = ", ".join(map(repr, missing))
        which = f"columns {names} are" if len(missing) > 1 else f"column {names} is"
        hint = "is it separated by commas?" if len(table.columns) == 1 else "docs/runs_format.md describes all columns"
        raise InputError(f"{path}: {which} missing; {hint}")
    runs: list[Run] = []
    skipped: list[Skipped] = []
    for line, row in enumerate(table.to_dict("records"), 2):
        cells = {str(key): str(value).strip() for key, value in row.items()}
        try:
            runs.append(run_of(cells, profile))
        except InputError as error:
            skipped.append(Skipped(cells["id"] or f"line {line}", str(error), cells.get("trust") or "ok"))
    return runs, skipped


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by a key, in the order of the keys; each group in the order of the items."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return dict(sorted(groups.items()))


def run_of(row: Mapping[str, str], profile: Profile | None = None) -> Run:
    """One row. Raises InputError where a value that a prediction needs is missing or contradicts another, or where the
    row is none of the profile's."""
    if absent := [name for name in ("id", *REQUIRED) if not row.get(name)]:
        raise InputError(f"{', '.join(absent)} not stated")
    cluster = cluster_of(row)
    profile = as_run(profile_of(row, profile).on(cluster.gpu), row)
    model = model_of(row)
    precision = row.get("precision", "").lower() or "bf16"
    workload = Workload(
        gpus=whole(row, "gpus"),
        seq_len=whole(row, "seq"),
        global_batch=whole(row, "gbs"),
        precision=precision,
        grad_dtype=_gradients(row["framework"].lower(), precision, profile),
        moments_dtype=profile.moments_dtype,
        routed_nodes=model.routed_nodes,
        optimizer_offload=1.0 if re.search(r"CPU Adam\w* offload", row.get("overlap_flags", "")) else 0.0,
        **software_of(row),  # type: ignore[arg-type]
    )
    problem = Problem(model=model, cluster=cluster, profile=profile, workload=workload)
    measured = number(row, "step_time_s")
    speed = number(row, "tokens_per_s_per_gpu")
    if measured is None and speed:
        measured = problem.tokens / (workload.gpus * speed)
    memory = number(row, "peak_mem_gib")
    return Run(
        id=row["id"],
        framework=row["framework"],
        problem=problem,
        layout=layout_of(row, problem),
        step_time=measured,
        memory=None if memory is None else memory * GIB,
        memory_kind=row.get("peak_mem_kind", ""),
        oom=flag(row, "oom", False),
        trust=_trust(row),
        sweep=row.get("sweep", ""),
        source=row.get("source", ""),
        recompute_stated=bool(row.get("recompute")),
        ep_stated=not model.is_moe or bool(row.get("ep")),
    )


def _gradients(framework: str, precision: str, profile: Profile) -> str:
    """fp16 training keeps gradients of its own type; the recipes of NeMo and Megatron-Bridge reduce them in bf16."""
    if precision == "fp16":
        return "fp16"
    return "bf16" if framework.startswith(BF16_GRADIENTS) else profile.grad_dtype


def _trust(row: Mapping[str, str]) -> str:
    trust = row.get("trust") or "ok"
    if trust not in TRUSTS:
        raise InputError(f"trust = {trust!r} is none of {', '.join(TRUSTS)}")
    return trust


def framework_of(run: Run) -> str:
    """The shipped profile of a run's framework; of one that is not listed, that of the profile it is predicted with."""
    return listed(run.framework) or run.problem.profile.shipped or run.problem.profile.name


def strangers(runs: Iterable[Run]) -> dict[str, int]:
    """Frameworks of runs that are not listed, and how many runs each has; in alphabetical order."""
    names = [run.framework for run in runs if not listed(run.framework)]
    return {name: names.count(name) for name in sorted(set(names))}
