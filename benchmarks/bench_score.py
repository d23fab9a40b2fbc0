"""Layouts scored a second on one core: the full model, without bounds, rules and frontier included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.cases import WHOLE, problem
from benchmarks.measure import Measure, in_turn, kernel
from search.engine import Work
from search.rules import skeleton_rules
from search.skeletons import enumerate_skeletons
from search.space import load_space


def run(rounds: int) -> Iterator[Measure]:
    """A dense model and one of experts, each in both spaces; and copying two columns as long as the last one."""
    rows = 0
    for model, cluster, gpus in (("llama-3.1-405b", "dgx-h100", 16384), ("deepseek-v3", "gb200-nvl72", 256)):
        case = problem(model, cluster, gpus)
        for name in ("default", "wide"):
            space = load_space(case, name, WHOLE if case.model.is_moe else None)
            work = Work(case, space, enumerate_skeletons(case, space, skeleton_rules(case, space)))
            rows = work.run(1, None).scored
            seconds, reference = in_turn(rounds, lambda: work.run(1, None), kernel())  # noqa: B023
            title = f"score, {model.split('-')[0]} {name}"
            yield Measure(name=title, work=rows, unit="layouts", seconds=seconds, reference=reference)
    columns = np.zeros((2, rows))
    seconds, reference = in_turn(rounds, columns.copy, kernel())
    yield Measure(name="copy two columns", work=rows, unit="rows", seconds=seconds, reference=reference)
