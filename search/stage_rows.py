"""What each stage holds in the columns of a frontier: written of layouts, and read back of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from costmodel.layouts import Layouts
from costmodel.passes import passes_of
from costmodel.problem import Problem
from costmodel.split import Contents
from hardware.errors import InputError
from search.assignment import (
    KINDS,
    Assignment,
    Balanced,
    by_set,
    closed_form,
    closed_form_of,
    held,
    layout_string,
    recomputed,
)

TOLD = ("layers_per_stage", "recompute_layers_per_stage", "recompute_per_stage", "pipeline_layout")
"""Columns that tell what each stage holds."""
KEY = ("pp", "vpp", "recompute", "recompute_layers")
"""Axes that the closed form's stages depend on."""


def stage_columns(problem: Problem, layouts: Layouts, balanced: Sequence[Balanced | None] = ()) -> dict[str, Any]:
    """The columns of a frontier that tell of stages; of a layout that was not balanced, the closed form's."""
    known: dict[tuple[int, ...], tuple[Any, ...]] = {}
    rows = []
    for index, key in enumerate(zip(*(getattr(layouts, axis).tolist() for axis in KEY), strict=True)):
        own = balanced[index] if balanced else None
        if own is None and key not in known:
            known[key] = *told(problem, closed_form_of(problem, layouts.row(index), np.nan)), 0.0
        rows.append(known[key] if own is None else (*told(problem, own.assignment), own.gain))
    columns: dict[str, Any] = dict(zip((*TOLD, "balance_gain"), map(list, zip(*rows, strict=True)), strict=True))
    return columns | {"balance_gain": np.array(columns["balance_gain"])}


def stored(problem: Problem, layout: Layouts, row: Mapping[str, Any]) -> Assignment | None:
    """The stages that a file's row tells of the one row of `layout`; None where they are the closed form's.

    Raises InputError for stages that do not hold the model.
    """
    if not row["balance_gain"] and _tells(problem, row, closed_form(problem, layout)):
        return None
    sizes, mtp = _chunks_of(row["pipeline_layout"])
    said, pp = _unfolded(row["recompute_per_stage"]), int(layout.pp[0])
    if len(sizes) == pp * layout.vpp[0] and sum(sizes) == problem.model.layers and len(said) == pp:
        found = _assignment(problem, layout, sizes, mtp, said)
        if _tells(problem, row, found):
            return found
    wrong = f"its stages ({row['pipeline_layout']}; {row['recompute_per_stage']}) do not hold {problem.model.name}"
    raise InputError(f"row {row['rank']}: {wrong}")


def _tells(problem: Problem, row: Mapping[str, Any], found: Assignment) -> bool:
    """Whether the row tells these stages."""
    said = [list(one) if isinstance(one, tuple) else one for one in told(problem, found)]
    return [row[name] for name in TOLD] == said


def _assignment(problem: Problem, layout: Layouts, sizes: tuple[int, ...], mtp: int, said: Sequence[str]) -> Assignment:
    """Virtual stages of `sizes` layers, of which `said` tells the recomputation stage by stage."""
    base, sets = _nothing(problem), len(problem.profile.recompute)
    bare = held(problem.model, sizes, mtp, [{}] * len(said))
    again = [_again(problem, stage, text, base) for stage, text in zip(bare, said, strict=True)]
    stages = held(problem.model, sizes, mtp, again)
    found = Assignment(
        chunks=sizes,
        mtp=mtp,
        recompute=tuple(by_set(stage, base, sets) for stage in stages),
        stages=stages,
        seconds=np.nan,
        bound=0.0,
        optimal=False,
    )
    own = passes_of(problem, layout, found.table).own
    return replace(found, seconds=float(own[0, 0] + own[1, 0]))


def _chunks_of(text: str) -> tuple[tuple[int, ...], int]:
    """Layers of each virtual stage of a `layout_string`, and which of them holds MTP modules (else the last)."""
    flat = re.sub(r"\(([^()]*)\)\*(\d{1,4}),?", lambda found: found[1] * int(found[2]), text)
    flat = re.sub(r"([tm])\*(\d{1,4})", lambda found: found[1] * int(found[2]), flat)
    parts = flat.split("|")
    mtp = next((at for at, part in enumerate(parts) if "m" in part), len(parts) - 1)
    return tuple(part.count("t") for part in parts), mtp


def _unfolded(text: str) -> list[str]:
    """What `stage_columns` says of recomputation, stage by stage."""
    found = (re.fullmatch(r"(?:(\d{1,4}) x )?(.*)", run) for run in text.split(" | "))
    return [run[2] for run in found if run for _ in range(int(run[1] or 1))]


def _again(problem: Problem, stage: Contents, text: str, base: int) -> Contents:
    """The layers of a stage that are computed again by another set than the layout's; `text` is of `recomputed`."""
    found: Contents = {}
    for count, name, choice in re.findall(r"(\d+) (?:(dense|MoE) )?([^\s,]+)", text):
        code = problem.profile.recompute_code(choice)
        for kind, said in KINDS.items():
            if code != base and stage[kind] and name in ("", said):
                found[f"{kind}:{code}"] = min(int(count), stage[kind])
    return found


def told(problem: Problem, found: Assignment) -> tuple[Any, ...]:
    """What TOLD holds of these stages."""
    again = tuple(sum(counts) - counts[_nothing(problem)] for counts in found.recompute)
    runs = [
        text if (count := len(list(same))) == 1 else f"{count} x {text}"
        for text, same in groupby(recomputed(problem, found))
    ]
    return found.layers, again, " | ".join(runs), layout_string(found, problem.model.mtp_layers)


def _nothing(problem: Problem) -> int:
    """Code of the recompute set that computes nothing again."""
    return problem.profile.recompute_code("none")
