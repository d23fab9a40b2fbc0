"""CP-SAT's enumeration of skeletons."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.cases import problem
from benchmarks.measure import Measure, in_turn, kernel
from search.rules import skeleton_rules
from search.skeletons import enumerate_skeletons
from search.space import load_space


def run(rounds: int) -> Iterator[Measure]:
    """Few skeletons, where building the model counts, and thousands."""
    for name, model, cluster, gpus in (
        ("skeletons, dense", "llama-3.1-405b", "dgx-h100", 16384),
        ("skeletons, experts", "deepseek-v3", "gb200-nvl72", 256),
    ):
        case = problem(model, cluster, gpus)
        space = load_space(case)
        rules = skeleton_rules(case, space)
        found = len(enumerate_skeletons(case, space, rules))
        seconds, reference = in_turn(rounds, lambda: enumerate_skeletons(case, space, rules), kernel())  # noqa: B023
        yield Measure(name=name, work=found, unit="skeletons", seconds=seconds, reference=reference)
