"""The worked-examples chapter's decision process for a job: fit check, EP, TP, PP, DP, ZeRO, recompute, micro-batch.

Each choice is the rule of thumb's, with its reason in numbers; what the cost model says does not fit is raised step by
step. The one layout that it leads to is set beside the search's best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodel import napkin, params
from costmodel.estimate import Estimate, estimate
from costmodel.layouts import Layouts
from costmodel.problem import DTYPE_BYTES, Problem
from hardware.units import format_bytes as size
from search.engine import search
from search.fitting import needs, usual_etp, usual_schedule
from search.frontier import rows_of
from search.possible import divisors, possible_values, recompute_codes
from search.rule import violations
from search.rules import rules
from search.rules_memory import kept_free
from search.space import SearchSpace

EXPERTS_A_GPU = 4
"""As in the chapter's mixture of experts, 256 of them over 64 ranks."""
MICRO_BATCHES_A_STAGE = 4
"""A larger micro-batch leaves at least so many for each pipeline stage, or the bubble grows."""
NODE = 8
"""GPUs of the node that the rule of thumb fills with TP, where the fast links join as many."""

Axes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """One step of the process: what it chooses, and why."""

    name: str
    choice: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The choices, the layout they lead to and the search's best (tables of one row), each None if there is none."""

    problem: Problem
    choices: tuple[Choice, ...]
    layout: Layouts | None
    best: Layouts | None

    @property
    def layouts(self) -> Layouts:
        """The layout, then the best, as far as there are any."""
        known = [found.row(0) for found in (self.layout, self.best) if found is not None]
        axes = ((axis, [row[axis] for row in known]) for axis in known[0])
        return Layouts.from_columns(dict(axes))

    @property
    def cost(self) -> Estimate:
        """The estimate of `layouts`."""
        return estimate(self.problem, self.layouts)


def plan(problem: Problem, space: SearchSpace, *, threads: int | None = None) -> Plan:
    """Walk through the decision process, and search `space` for the best layout."""
    process = _Process(problem, space)
    choices = tuple(process.choices())
    found = search(problem, space, threads=threads, bounds=True).frontier
    return Plan(
        problem=problem,
        choices=choices,
        layout=Layouts.of(**process.row) if process.row else None,
        best=found.take(slice(0, 1)) if len(found) else None,
    )


def to_json(found: Plan) -> dict[str, object]:
    """The object of `plan --json`, SI units; `cost` is plan less best, of the step time the ratio less 1."""
    rows: list[dict[str, object] | None] = [None, None]
    lost = None
    if found.layout is not None or found.best is not None:
        made = [
            {k: v for k, v in row.items() if k != "rank"} for row in rows_of(found.problem, found.layouts, found.cost)
        ]
        rows = [made.pop(0) if layout is not None else None for layout in (found.layout, found.best)]
    if found.layout is not None and found.best is not None:
        cost = found.cost
        lost = {
            "mfu": float(cost.mfu[0] - cost.mfu[1]),
            "step_time": float(cost.step_time[0] / cost.step_time[1] - 1.0),
            "memory": float(cost.memory_total[0] - cost.memory_total[1]),
        }
    steps = [{"name": step.name, "choice": step.choice, "because": step.because} for step in found.choices]
    return {"steps": steps, "layout": rows[0], "best": rows[1], "cost": lost}


@dataclass(frozen=True, slots=True)
class _Tried:
    """Degrees that were tried, and the bytes that their rows need at full recompute and micro-batch 1."""

    rows: tuple[Axes, ...]
    needs: tuple[float, ...]


class _Process:
    """The choices in order; `row` is the layout once all are made, None if nothing fits."""

    def __init__(self, problem: Problem, space: SearchSpace) -> None:
        self.problem, self.model, self.profile = problem, problem.model, problem.profile
        self.rules = [rule for rule in rules(problem, space) if rule.name not in ("memory_floor", "memory")]
        gpu = problem.cluster.gpu
        self.gpus, self.budget, self.usable = problem.workload.gpus, napkin.USABLE * gpu.memory, problem.memory_limit
        self.node = min(problem.cluster.fast_domain or self.gpus, max(problem.cluster.gpus_per_node, NODE), self.gpus)
        self.total = float(params.total(self.model))
        self.routed = float(self.model.moe_layers * self.model.experts * params.counts(self.model).expert)
        self.codes = recompute_codes(problem)
        self.row: Axes | None = None

    def choices(self) -> Iterator[Choice]:
        """Every choice; the first is the fit check, the last the micro-batch, or that nothing fits."""
        yield self._fit_check()
        tried = list(self._raised())
        fitting = [found for found in tried if min(found.needs) <= self.usable]
        if not fitting:
            yield self._nothing(tried)
            return
        found, dropped = fitting[0], tried[: len(tried) - 1]
        row = next(row for row, need in zip(found.rows, found.needs, strict=True) if need <= self.usable)
        if self.model.is_moe:
            yield self._expert_choice(row, dropped)
        yield self._tensor_choice(row, dropped)
        yield self._pipeline_choice(row, dropped)
        yield Choice("DP", f"DP {row['dp']}", f"{self.gpus} GPUs / (TP {row['tp']} x PP {row['pp']})")
        yield self._zero_choice(row, found)
        row, choice = self._recompute_choice(row)
        yield choice
        self.row, choice = self._micro_batch_choice(row)
        yield choice

    def _fit_check(self) -> Choice:
        work = self.problem.workload
        each = 6.0 + DTYPE_BYTES[work.grad_dtype] + 2.0 * DTYPE_BYTES[work.moments_dtype]
        choice = "states are divided" if each * self.total > self.budget else "one GPU holds the states"
        states, weights, sold = (
            size(part) for part in (each * self.total, 2.0 * self.total, self.problem.cluster.gpu.memory)
        )
        because = f"{each:g} N = {states} of states, 2 N = {weights} of weights; 0.7 of {sold} is {size(self.budget)}"
        return Choice("fit check", choice, because)

    # -- degrees, raised until a layout fits

    def _held(self, ep: int) -> float:
        """Parameters that TP and PP divide."""
        return self.total - self.routed + self.routed / ep

    def _start(self) -> tuple[int, int]:
        """EP and TP of the rule of thumb."""
        known = self._experts()
        ep = min((n for n in known if self.model.experts <= EXPERTS_A_GPU * n), default=known[-1])
        return ep, 1 if napkin.tensor_degree(self._held(ep), self.budget / napkin.USABLE) <= 1.0 else self._tensors()[
            -1
        ]

    def _experts(self) -> list[int]:
        return [n for n in divisors(self.gpus) if self.model.experts % n == 0] if self.model.is_moe else [1]

    def _tensors(self) -> list[int]:
        """Degrees of TP that heads and profile allow within a node."""
        return [n for n in possible_values(self.problem)["tp"] if n <= self.node]

    def _pipelines(self, tp: int) -> list[int]:
        """Degrees of PP that layers and profile allow beside tp."""
        return [n for n in possible_values(self.problem)["pp"] if self.gpus // tp % n == 0]

    def _stages(self, ep: int, tp: int) -> int:
        """PP of the rule of thumb."""
        return max(1, math.ceil(napkin.pipeline_degree(self._held(ep), self.budget / napkin.USABLE, tp)))

    def _raised(self) -> Iterator[_Tried]:
        """Degrees from the rule of thumb's up, PP first, then TP, then EP; ends with the first that fit."""
        first_ep, first_tp = self._start()
        for ep in (n for n in self._experts() if n >= first_ep):
            for tp in (n for n in self._tensors() if n >= first_tp):
                pipelines = self._pipelines(tp)
                for pp in pipelines:
                    rows = self._sharded(ep, tp, pp) if pp >= min(self._stages(ep, tp), pipelines[-1]) else []
                    if rows:
                        tried = _Tried(tuple(rows), tuple(needs(self.problem, rows)))
                        yield tried
                        if min(tried.needs) <= self.usable:
                            return

    def _sharded(self, ep: int, tp: int, pp: int) -> list[Axes]:
        """Legal rows of the degrees by rising ZeRO stage, the last alone where neither TP nor PP divides the states."""
        stages = sorted(self.profile.zero_stages if pp == 1 else self.profile.zero_stages_with_pp)
        if tp == pp == 1 and napkin.static_memory(self._held(ep)) > self.budget:
            stages = stages[-1:]
        full = self.profile.recompute_code("full")
        rows = [self._legal(tp=tp, pp=pp, ep=ep, zero_stage=stage, recompute=full, micro_batch=1) for stage in stages]
        return [row for row in rows if row]

    def _legal(self, **axes: int) -> Axes | None:
        """The row of these axes, under the profile's schedule or else 1F1B; None if it breaks a rule."""
        dp, tp, pp = self.gpus // (axes["tp"] * axes["pp"]), axes["tp"], axes["pp"]
        rest = {"dp": dp, "etp": usual_etp(self.problem, tp, 1, axes["ep"])}
        rest |= {"sequence_parallel": int(tp > 1 and self.profile.sequence_parallel)}
        rest |= {"rank_order": self.profile.rank_order}
        for schedule in (usual_schedule(self.profile, pp), 0):
            row = Layouts.of(**axes, **rest, schedule=schedule).row(0)
            if pp <= self.model.layers and not violations(self.rules, row):
                return row
        return None

    # -- the choices, in words

    def _of(self, need: float | None = None) -> str:
        """A need, or what was shown, of the usable memory."""
        usable = size(self.problem.cluster.gpu.usable_memory)
        return ("" if need is None else size(need)) + f" of {usable}{kept_free(self.problem, need or 0.0)}"

    def _because(self, axis: str, value: int, first: int, dropped: Sequence[_Tried]) -> str:
        """Why a degree was raised: what its first value needed at least."""
        if value == first:
            return ""
        least = [min(tried.needs) for tried in dropped if tried.rows[0][axis] < value]
        needed = f": with less, at least {self._of(min(least))}" if least else ": the rules ask for it"
        return f"; raised from {first}{needed}"

    def _expert_choice(self, row: Axes, dropped: Sequence[_Tried]) -> Choice:
        experts, ep = self.model.experts, row["ep"]
        because = f"{experts // ep} of {experts} experts a GPU; {self._held(ep) / 1e9:.1f} G parameters are left"
        return Choice("EP", f"EP {ep}", because + self._because("ep", ep, self._start()[0], dropped))

    def _tensor_choice(self, row: Axes, dropped: Sequence[_Tried]) -> Choice:
        first_ep, first = self._start()
        weights = napkin.weights(self._held(first_ep))
        least = math.ceil(weights / self.budget)
        because = f"{size(weights)} of weights fit into {size(self.budget)}"
        if least > 1:
            rounded = napkin.next_power_of_two(least)
            because = f"ceil({size(weights)} / {size(self.budget)}) = {least}, next power of two {rounded}"
            because += f"; {first} to use a node's fast links in full" * (first > rounded)
        return Choice("TP", f"TP {row['tp']}", because + self._because("tp", row["tp"], first, dropped))

    def _pipeline_choice(self, row: Axes, dropped: Sequence[_Tried]) -> Choice:
        ep, tp, pp = row["ep"], row["tp"], row["pp"]
        first, weights = self._stages(ep, tp), napkin.weights(self._held(ep))
        because = f"ceil({size(weights)} / ({size(self.budget)} x {tp})) = {first}"
        same = [tried for tried in dropped if (tried.rows[0]["ep"], tried.rows[0]["tp"]) == (ep, tp)]
        return Choice("PP", f"PP {pp}", because + self._because("pp", pp, first, same))

    def _zero_choice(self, row: Axes, found: _Tried) -> Choice:
        stage, dp = row["zero_stage"], row["dp"]
        if len(found.rows) == 1:
            why = (
                f"neither TP nor PP divides the states, so DP does: 16 N / {dp} = "
                if row["tp"] == row["pp"] == 1
                else ""
            )
            because = why + size(napkin.static_memory(self._held(row["ep"])) / dp) if why else "all that is allowed"
        else:
            upto = [pair for pair in zip(found.rows, found.needs, strict=True) if pair[0]["zero_stage"] <= stage]
            shown = [f"ZeRO {tried['zero_stage']} {size(need)}" for tried, need in upto]
            because = f"{', '.join(shown)}{self._of()}, at full recompute and micro-batch 1"
        return Choice("ZeRO", f"ZeRO {stage}", because)

    def _recompute_choice(self, row: Axes) -> tuple[Axes, Choice]:
        """The least recomputation that fits."""
        rows = [row | {"recompute": code} for code in self.codes]
        shown = []
        for found, need in zip(rows, needs(self.problem, rows), strict=True):
            name = self.profile.recompute[found["recompute"]].name
            shown.append(f"{name} {size(need)}")
            if need <= self.usable:
                row = found
                break
        because = f"the least that fits: {', '.join(shown)}{self._of()}"
        return row, Choice("recompute", self.profile.recompute[row["recompute"]].name, because)

    def _micro_batch_choice(self, row: Axes) -> tuple[Axes, Choice]:
        """Doubled while it fits and leaves the pipeline its micro-batches."""
        because = ""
        while True:
            bigger = 2 * row["micro_batch"]
            left = self.problem.workload.global_batch / (row["dp"] * bigger)
            axes = {axis: row[axis] for axis in ("tp", "pp", "ep", "zero_stage", "recompute")}
            found = self._legal(**axes, micro_batch=bigger)
            if found is None or left < 1:
                because = f"{bigger} does not divide the batch of a rank"
            elif row["pp"] > 1 and left < MICRO_BATCHES_A_STAGE * row["pp"]:
                because = f"{bigger} would leave {left:g} micro-batches for {row['pp']} stages"
            elif (need := needs(self.problem, [found])[0]) > self.usable:
                because = f"{bigger} would need {self._of(need)}"
            else:
                row = found
                continue
            return row, Choice("micro-batch", f"micro-batch {row['micro_batch']}", because)

    def _nothing(self, tried: Sequence[_Tried]) -> Choice:
        pairs = [pair for found in tried for pair in zip(found.needs, found.rows, strict=True)]
        if not pairs:
            return Choice("layout", "none", "no degrees of the process keep the rules of the model and the profile")
        need, row = min(pairs, key=lambda pair: pair[0])
        shown = ", ".join(
            f"{axis.replace('_stage', '')} {row[axis]}" for axis in ("tp", "pp", "dp", "ep", "zero_stage")
        )
        because = f"the least that any of them needs is {self._of(need)} ({shown}, full recompute)"
        return Choice("layout", "none", because)
