"""What a stage costs with so many layers, and its fastest recomputation that fits: the columns of CP-SAT's table.

Times and bytes are the cost model's, per unit of what a stage holds. A DualPipe rank holds two stages; as recomputing a
layer takes as long on either and frees most on the earlier one, it recomputes there first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import numpy as np

from costmodel.flight import in_flight
from costmodel.held import quantities
from costmodel.layouts import SCHEDULES, Column, Layouts, whole_sets
from costmodel.memory import fragmentation, outside
from costmodel.passes import unit_passes
from costmodel.problem import Problem
from costmodel.split import MOVED, Contents, contents
from costmodel.unit_memory import unit_bytes

KIB = 1024.0
TICKS = 1e6
"""Parts of a layer's time that are told apart."""
MOVE = 1
"""Layers by which a DualPipe stage may differ from the closed form's. Were both stages of a rank to differ much, memory
would gain, but its waits, which take a mean stage of every rank (costmodel/schedule.py), are then too short: for stages
of 1 and 7 layers by 10 %, of 2 and 5 by 3 %, of 3 and 5 by 1.5 % (event simulation, 16 ranks, 40 micro-batches)."""
Held = tuple[tuple[int, int], ...]
"""(dense, MoE) layers of each stage on a rank."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A rank's time (in ticks) and memory, and of each of its stages the layers that another set computes again."""

    ticks: int
    kib: int
    again: tuple[Contents, ...]


class Choices:
    """What the ranks of one layout may hold."""

    def __init__(self, problem: Problem, layout: Layouts) -> None:
        own, layout, model = int(layout.recompute[0]), whole_sets(layout), problem.model
        row = layout.row(0)
        self.problem, self.pp, self.vpp, self.base = problem, row["pp"], row["vpp"], row["recompute"]
        self.count, self.dual = self.pp * self.vpp, row["schedule"] == SCHEDULES.index("dualpipe")
        self.ends = problem.profile.embedding_loss_as_layers and self.vpp > 1
        self.may_part = (
            problem.profile.embedding_loss_as_layers and model.mtp_layers > 0 and not self.dual and self.pp > 1
        )
        self.ranks: list[tuple[int, ...]] = [
            (one, self.pp - 1 - one) if self.dual else (one,) for one in range(self.pp // (1 + self.dual))
        ]
        self.kinds = [kind for kind, held in (("dense", model.dense_layers), ("moe", model.moe_layers)) if held]
        known = {problem.profile.recompute_code(name) for name in ("none", "selective", "full")}
        if own not in known and own != self.base:
            known = known - {problem.profile.recompute_code("selective")} | {own}
        self.others = sorted(known - {self.base})
        self.extras = [f"{kind}:{code}" for code in self.others for kind in self.kinds]
        passes = unit_passes(problem, layout, [*self.extras, MOVED])
        self.seconds = {name: forward + backward for name, (forward, backward, _) in passes.items()}
        self.tick = max(self.seconds[kind] for kind in self.kinds) / TICKS / (1 + self.dual)
        self.bytes = unit_bytes(problem, layout, self.extras)
        batches = np.maximum(problem.workload.global_batch / (layout.dp * layout.micro_batch), 1.0)
        self.flight = [float(in_flight(layout, np.array([float(one)]), batches)[0]) for one in range(self.pp)]
        self.free = (problem.memory_limit - outside(problem)) / float(1.0 + fragmentation(problem, np.ones(1))[0])
        self.most = min(model.layers, 2 * math.ceil(model.layers / self.pp) + 2)
        self.slowest = self._reached()
        self.possible = {rank: self._possible(rank) for rank in self.ranks}

    def least(self, chunk: int) -> int:
        """Layers that a chunk needs at least where MTP and head share the last one."""
        return 0 if self.ends and chunk in (0, self.count - 1) else 1

    def of(self, rank: tuple[int, ...]) -> Iterator[tuple[Held, bool, Choice]]:
        """Everything that a rank may hold without that it, or another one, is slower than what is reached, and the best
        choice for it."""
        spare = sum(most for most, _ in self.possible.values()) - self.problem.model.layers
        most, possible = self.possible[rank]
        for held, apart in possible:
            found = self.best(rank, held, apart) if sum(map(sum, held)) >= most - spare else None
            if found is not None:
                yield held, apart, found
                if self.may_part and rank[0] < self.pp - 2:
                    yield held, True, found

    def _possible(self, rank: tuple[int, ...]) -> tuple[int, list[tuple[Held, bool]]]:
        """What a rank may hold without being slower than what is reached, MTP apart or not where that matters, and the
        most layers among it."""
        late = self.may_part and rank[0] >= self.pp - 2
        found = [
            (held, apart)
            for held in product(*map(self._single, rank))
            for apart in (False, True)[: 1 + late]
            if self._least_time(rank, held, apart) <= self.slowest + self.tick
        ]
        return max((sum(map(sum, held)) for held, _ in found), default=0), found

    def _single(self, stage: int) -> list[tuple[int, int]]:
        """(dense, MoE) layers that a stage may hold: those of some run of layers behind the stages before it."""
        layers, before = self.problem.model.layers, [0, *np.cumsum(self.problem.model.layer_is_moe).tolist()]
        first = sum(map(self.least, range(stage)))
        starts = range(first, first + 1 if stage == 0 and self.vpp == 1 else layers + 1)
        ends = ((start, end) for start in starts for end in range(start, min(layers, start + self.most) + 1))
        moe = {(end - start, before[end] - before[start]) for start, end in ends}
        if self.vpp > 1 and self._mixed():  # several runs of layers may differ from one
            moe = {(n, m + more) for n, m in moe for more in range(1 - self.vpp, self.vpp) if 0 <= m + more <= n}
        usual = self.problem.split([self.pp]).split(self.pp)[stage]
        low, high = (usual - MOVE, usual + MOVE) if self.dual else (0, layers)
        return sorted((n - m, m) for n, m in moe if low <= n <= high)

    def _mixed(self) -> bool:
        """Whether dense layers follow on layers with experts."""
        sparse = self.problem.model.layer_is_moe
        return any(left and not right for left, right in pairwise(sparse))

    def _reached(self) -> float:
        """Seconds of the slowest rank under the closed-form split, or under an even one, where its layers suffice."""
        model, best = self.problem.model, math.inf
        whole, rest = divmod(model.layers, self.pp)
        even = tuple(whole + (rank < rest) for rank in range(self.pp))
        for counts in (self.problem.split([self.pp]).split(self.pp, self.vpp), even):
            enough = all(
                count >= sum(self.least(chunk) for chunk in range(rank, self.count, self.pp))
                for rank, count in enumerate(counts)
            )
            stages = [(stage["dense"], stage["moe"]) for stage in contents(model, counts)]
            found = [self.best(rank, tuple(stages[one] for one in rank), False) for rank in self.ranks]
            if enough and all(found):
                best = min(best, max(one.ticks * self.tick for one in found if one))
        return best

    def _least_time(self, rank: tuple[int, ...], held: Held, apart: bool) -> float:
        """Seconds that a rank needs at least, whatever is computed again."""
        layers = {kind: sum(stage[number] for stage in held) for number, kind in enumerate(("dense", "moe"))}
        saved = {kind: min(0.0, *(self.seconds[f"{kind}:{code}"] for code in self.others)) for kind in self.kinds}
        fastest = sum(saved[kind] * layers[kind] for kind in self.kinds) / (1 + self.dual)
        return float(self._time(rank, layers, {}, apart)) + fastest

    def best(self, rank: tuple[int, ...], held: Held, apart: bool) -> Choice | None:
        """The fastest recomputation with which the rank fits, of equals the one that needs least; None if none fits."""
        total = tuple(sum(stage[number] for stage in held) for number in (0, 1))
        by_kind = dict(zip(("dense", "moe"), total, strict=True))
        tables = [_mixes(by_kind[kind], len(self.others)) for kind in self.kinds]
        index = np.indices([len(table) for table in tables]).reshape(len(tables), -1)
        again = {
            f"{kind}:{code}": table[rows, number]
            for kind, table, rows in zip(self.kinds, tables, index, strict=True)
            for number, code in enumerate(self.others)
        }
        time, need = self._time(rank, by_kind, again, apart), self._need(rank, held, again, apart)
        fits = np.flatnonzero(need <= self.free)
        if not len(fits):
            return None
        at = fits[np.lexsort([need[fits], np.round(time[fits] / self.tick)])[0]]
        chosen = {name: column[[at]] for name, column in again.items()}
        stages = tuple(
            {name: int(count[0]) for name, count in self._on(place, held, chosen).items()} for place in range(len(rank))
        )
        return Choice(round(float(time[at]) / self.tick), math.ceil(need[at] / KIB), stages)

    def _time(
        self, rank: tuple[int, ...], layers: Mapping[str, int], again: Mapping[str, Column], apart: bool
    ) -> Column:
        """Seconds of a micro-batch; a DualPipe rank runs each of its stages for half of them."""
        depths, last = self.problem.model.mtp_layers, self.pp - 1
        fixed = sum(self.seconds[kind] * layers[kind] for kind in self.kinds)
        fixed += self.seconds["embedding"] * (0 in rank) + self.seconds["head"] * (last in rank)
        if depths and last - apart in rank:
            fixed += depths * (self.seconds["mtp"] - apart * self.seconds["head"])
        if depths and apart and last in rank:
            fixed += depths * self.seconds["head"]
        total: Column = np.asarray(fixed + sum(self.seconds[name] * count for name, count in again.items()))
        return total / (1 + self.dual)

    def _need(self, rank: tuple[int, ...], held: Held, again: Mapping[str, Column], apart: bool) -> Column:
        """Bytes allocated."""
        total: Column = self._ends(rank, held, apart) + np.zeros(len(next(iter(again.values()), np.zeros(1))))
        for place, one in enumerate(rank):
            for kind, count in zip(("dense", "moe"), held[place], strict=True):
                if count:
                    total = total + count * (self.bytes[kind] + self.flight[one] * self.bytes[f"{kind} in flight"])
            for name, again_here in self._on(place, held, again).items():
                total = total + self.flight[one] * self.bytes[f"{name} in flight"] * again_here
        taken = np.zeros(len(total))
        for name in sorted(self.extras, key=lambda name: (int(name.split(":")[1]), name), reverse=True):
            some = np.minimum(again[name], 1.0)
            total = total + some * (1.0 - taken) * self.bytes[f"some {name}"]
            taken = np.maximum(taken, some)
        return total

    def _on(self, place: int, held: Held, again: Mapping[str, Column]) -> dict[str, Column]:
        """Of the layers computed again on a rank, those on one of its stages: on the first as many as it has."""
        found = {}
        for kind, number in (("dense", 0), ("moe", 1)):
            room: Column = np.array(held[place][number])
            before: Column = np.array(sum(stage[number] for stage in held[:place]))
            for code in reversed(self.others if kind in self.kinds else []):
                count = again[f"{kind}:{code}"]
                here = np.minimum(np.maximum(count - before, 0), room)
                found[f"{kind}:{code}"] = here
                before, room = np.maximum(before - count, 0), room - here
        return found

    def _ends(self, rank: tuple[int, ...], held: Held, apart: bool) -> float:
        """Bytes of what a rank holds beside its layers, and of what is there for one layer at a time."""
        place, model = self.pp - 1 - apart, self.problem.model
        ends = {"embedding": 0 in rank, "head": self.pp - 1 in rank, "mtp": model.mtp_layers * (place in rank)}
        stage = {"dense": 0, "moe": 0} | ends
        found = {name: float(column[0]) for name, column in quantities(model, _floats(stage)).items()}
        flight = self.flight[place] if place in rank else 0.0
        found |= {f"{name} in flight": flight * found[name] for name in ("dense", "moe", "depths")}
        found |= {"ends": float(ends["embedding"] + ends["head"]), "any": 1.0}
        kinds = {
            kind: min(1.0, found[kind] + sum(stage[number] for stage in held))
            for number, kind in enumerate(("dense", "moe"))
        }
        dense, moe = kinds["dense"], kinds["moe"]
        found |= {"only dense": dense * (1.0 - moe), "only moe": moe * (1.0 - dense), "dense and moe": dense * moe}
        return sum(found[name] * each for name, each in self.bytes.items() if name in found)


def _floats(stage: Mapping[str, int]) -> dict[str, Column]:
    return {name: np.array([float(count)]) for name, count in stage.items()}


@cache
def _mixes(layers: int, sets: int) -> Column:
    """Every way to give up to `layers` layers to some sets; shape (ways, sets)."""
    rows = [row for row in product(range(layers + 1), repeat=sets) if sum(row) <= layers]
    return np.array(rows, dtype=np.int64).reshape(-1, sets)
