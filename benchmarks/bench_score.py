"""Layouts scored a second on one core: the full model, without bounds, rules and frontier included."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.cases import WHOLE, problem
from benchmarks.measure import Measure, in_turn, kernel
from costmodel.layouts import Column
from search.engine import Work
from search.rules import skeleton_rules
from search.skeletons import enumerate_skeletons
from search.space import load_space


def run(rounds: int) -> Iterator[Measure]:
    """A dense model and one of experts, each in both spaces; and against copying two columns of as many numbers into
    memory that is in use: one over the ratio is the share of that rate at which layouts are scored."""
    for model, cluster, gpus in (("llama-3.1-405b", "dgx-h100", 16384), ("deepseek-v3", "gb200-nvl72", 256)):
        case = problem(model, cluster, gpus)
        for name in ("default", "wide"):
            space = load_space(case, name, WHOLE if case.model.is_moe else None)
            work = Work(case, space, enumerate_skeletons(case, space, skeleton_rules(case, space)))
            rows = work.run(1, None).scored
            columns = np.arange(2.0 * rows).reshape(2, rows)
            seconds, *references = in_turn(rounds, lambda: work.run(1, None), kernel(), copier(columns))  # noqa: B023
            title = f"score, {model.split('-')[0]} {name}"
            for end, reference in zip(("", ", in copies"), references, strict=True):
                yield Measure(name=title + end, work=rows, unit="layouts", seconds=seconds, reference=reference)


def copier(columns: Column) -> Callable[[], object]:
    """Copies columns to where a copy of them is."""
    target = columns.copy()
    return lambda: np.copyto(target, columns)
