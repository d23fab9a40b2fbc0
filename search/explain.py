"""One layout in six steps: fit check, TP, PP, DP, communication, memory verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from costmodel import params
from costmodel.basis import Basis, basis
from costmodel.estimate import Estimate, estimate
from costmodel.interval import Bounds, bounds, uncovered
from costmodel.layouts import CODED, Column, Layouts
from costmodel.problem import Problem
from search import grounds
from search.assignment import Assignment, Balanced, closed_form, layout_string, recomputed
from search.placement import orders
from search.rule import Rule, violations
from search.rules import rules
from search.scored import Scored, Step
from search.space import SearchSpace
from search.steps import steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Scored):
    """A layout (a table of one row), its estimate, what each term rests on, the rules it breaks and the six steps."""

    broken: tuple[tuple[str, str], ...]
    grounds: Mapping[str, Basis]
    place: tuple[int, int] | None = None
    among: str = ""
    keep: bool = False
    """whether balancing keeps the recomputation that was asked for"""

    @property
    def feasible(self) -> bool:
        """Whether the layout keeps every rule, memory included."""
        return not self.broken

    @property
    def warnings(self) -> list[str]:
        """What of it rests on nobody's measurements."""
        shares = {f"memory_{term.name}": self.memory(term.name) for term in fields(self.cost.memory)}
        shares = {term: bytes_ / float(self.cost.memory_total[0]) for term, bytes_ in shares.items()}
        if self.fits:
            step = float(self.cost.step_time[0])
            shares |= {f"time_{term.name}": self.time(term.name) / step for term in fields(self.cost.time)}
        return grounds.warnings(self.problem, self.grounds, shares)

    @property
    def bounds(self) -> Bounds:
        """The central 80 % around step time and memory."""
        return bounds(self.problem, self.layout, self.cost)

    @property
    def balanced(self) -> Balanced | None:
        """The stages as CP-SAT balances them; None if the layout cannot be launched, or fits with no stages."""
        from search.balance import balance  # CP-SAT's, which a search loads only to balance

        if any(rule != "memory" for rule, _ in self.broken):
            return None
        return balance(self.problem, self.layout, own=self.keep)

    @property
    def assignment(self) -> Assignment:
        """What each stage holds."""
        return self.given or closed_form(self.problem, self.layout)

    @property
    def gain(self) -> float:
        """Step time that its own stages save against the closed form's, as a share of these; 0 where those do not
        fit."""
        if self.given is None:
            return 0.0
        usual = estimate(self.problem, self.layout)
        return Balanced(assignment=self.given, cost=self.cost, usual=usual, chosen=True).gain

    @property
    def steps(self) -> tuple[Step, ...]:
        """The six steps in order."""
        return steps(self)


def explain(
    problem: Problem, layout: Layouts, space: SearchSpace, given: Assignment | None = None,
    *, place: tuple[int, int] | None = None, among: str = "", keep: bool = False,
) -> Explanation:  # fmt: skip
    """Explain the one row of `layout`; `space` gives the rules, `place` its rank and how many there are `among`.

    `given` are its stages where they are not the closed form's; balancing will `keep` its recomputation.
    """
    stages = given.table if given else problem.split([int(layout.pp[0])])
    cost = estimate(problem, layout, stages)
    row: dict[str, int] = layout.row(0) | {"memory_headroom": cost.memory_headroom[0]}
    return Explanation(
        problem=problem,
        layout=layout,
        cost=cost,
        given=given,
        grounds=basis(problem, layout, stages),
        broken=tuple(violations(_decisive(rules(problem, space)), row)),
        place=place,
        among=among,
        keep=keep,
    )


def _decisive(known: tuple[Rule, ...]) -> list[Rule]:
    """Without the lower bound on memory, which holds for what the profile can launch: the need itself is known here."""
    return [rule for rule in known if rule.name != "memory_floor"]


def to_json(it: Explanation) -> dict[str, object]:
    """The documented object of `explain --json`, in SI units."""
    model, cost = it.problem.model, it.cost
    return {
        "problem": problem_json(it.problem),
        "model": {
            "parameters": params.total(model),
            "active_parameters": params.active(model),
            "mtp_parameters": params.mtp(model) if model.mtp_layers else 0,
        },
        "layout": layout_json(it.problem, it.layout),
        "feasible": it.feasible,
        "violations": [{"rule": rule, "because": because} for rule, because in it.broken],
        "place": it.place and dict(zip(("rank", "of"), it.place, strict=True)),
        **stages_json(it.problem, it.assignment),
        "balance_gain": it.gain,
        "balanced": balanced_json(it.problem, it.balanced),
        "rank_orders": orders(it.problem, it.layout, it.stages),
        **{name: float(column[0]) for name, column in headline(cost).items()},
        **{part.name: getattr(it.bounds, part.name)[0].item() for part in fields(it.bounds)},
        "uncalibrated_because": list(uncovered(it.problem, it.layout)),
        "memory_terms": {term.name: it.memory(term.name) for term in fields(cost.memory)},
        "time_terms": {term.name: it.time(term.name) for term in fields(cost.time)},
        "provenance": grounds.to_json(it.grounds),
        "warnings": it.warnings,
        "steps": [_step_json(step) for step in it.steps],
    }


def balanced_json(problem: Problem, it: Balanced | None) -> dict[str, object] | None:
    """The balanced stages, under the names of the Parquet columns; null where there are none."""
    if it is None:
        return None
    found = it.assignment
    return {
        **stages_json(problem, found),
        "balance_gain": it.gain,
        "slowest_stage": found.seconds,
        "proven_bound": found.bound,
        "optimal": found.optimal,
        **{name: float(column[0]) for name, column in headline(it.cost).items()},
    }


def stages_json(problem: Problem, it: Assignment) -> dict[str, object]:
    """What each stage holds."""
    return {
        "layers_per_stage": list(it.layers),
        "layers_per_virtual_stage": list(it.chunks),
        "recompute_per_stage": list(recomputed(problem, it)),
        "pipeline_layout": layout_string(it, problem.model.mtp_layers),
    }


def problem_json(problem: Problem) -> dict[str, object]:
    """What was asked, as it was understood."""
    names = ("gpus", "seq_len", "global_batch", "precision", "flops_convention", "mfu_peak", "grad_dtype",
             "moments_dtype", "expert_load", "routed_nodes", "memory_margin")  # fmt: skip
    parts = ("model", "cluster", "profile")
    return {part: getattr(problem, part).name for part in parts} | {
        name: getattr(problem.workload, name) for name in names
    }


def layout_json(problem: Problem, layout: Layouts) -> dict[str, object]:
    """The axes of the one row of `layout`, under the names and in the words of the Parquet columns."""
    row = layout.row(0)
    return row | {
        "recompute": problem.profile.recompute[row["recompute"]].name,
        "sequence_parallel": bool(row["sequence_parallel"]),
        **{axis: names[row[axis]] for axis, names in CODED.items()},
    }


def _step_json(step: Step) -> dict[str, object]:
    keys = ("name", "formula", "model_formula", "hand", "corrected", "model", "unit", "why")
    rows = [{key: getattr(row, key) for key in keys} for row in step.rows]
    return {"name": step.name, "verdict": step.verdict, "rows": rows}


def headline(cost: Estimate) -> dict[str, Column]:
    """The results that stand above the terms, under the names of the Parquet columns."""
    return {
        "step_time": cost.step_time,
        "mfu": cost.mfu,
        "tokens_per_second_per_gpu": cost.tokens_per_second_per_gpu,
        "communication_overhead": cost.communication_overhead,
        "memory": cost.memory_total,
        "memory_headroom": cost.memory_headroom,
    }
