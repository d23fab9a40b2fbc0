"""What a stage costs with so many layers, and its fastest recomputation that fits: the columns of CP-SAT's table.

Times and bytes are the cost model's, per unit of what a stage holds. A layer may be computed again by any declared set
of the profile, or by the layout's own, whatever set the layout starts from; multi-token prediction keeps everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from costmodel.flight import in_flight
from costmodel.held import quantities
from costmodel.layouts import SCHEDULES, Column, Layouts, nothing_again, whole_sets
from costmodel.memory import fragmentation, outside
from costmodel.passes import parts_of
from costmodel.problem import Problem
from costmodel.split import Contents, contents
from costmodel.unit_memory import unit_bytes
from search.assignment import again
from search.possible import recompute_choices

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


@dataclass(frozen=True, slots=True)
class _Ways:
    """Ways to compute layers again: how many each set has, shape (ways, sets), and what that takes more, in seconds
    and in bytes of a micro-batch in flight, shape (ways, 2); the fastest first."""

    counts: Column
    sums: Column


class Choices:
    """What the ranks of one layout may hold; with `own` every stage keeps the layout's recomputation."""

    def __init__(self, problem: Problem, layout: Layouts, *, own: bool = False) -> None:
        row, model = layout.row(0), problem.model
        layout = whole_sets(layout) if own else nothing_again(layout)
        self.problem, self.pp, self.vpp, self.base = problem, row["pp"], row["vpp"], int(layout.recompute[0])
        self.count, self.dual = self.pp * self.vpp, row["schedule"] == SCHEDULES.index("dualpipe")
        self.ends = problem.profile.embedding_loss_as_layers and self.vpp > 1
        self.may_part = (
            problem.profile.embedding_loss_as_layers and model.mtp_layers > 0 and not self.dual and self.pp > 1
        )
        self.ranks: list[tuple[int, ...]] = [
            (one, self.pp - 1 - one) if self.dual else (one,) for one in range(self.pp // (1 + self.dual))
        ]
        self.kinds = [kind for kind, held in (("dense", model.dense_layers), ("moe", model.moe_layers)) if held]
        self.own, self.some = own, row["recompute_layers"]
        self.others = [code for code in recompute_choices(problem, row["recompute"]) if code != self.base]
        if own:
            self.others = [row["recompute"]] * (self.some > 0)
        self.extras = [f"{kind}:{code}" for code in self.others for kind in self.kinds]
        self.seconds = self._seconds(layout)
        self.tick = max(self.seconds[kind] for kind in self.kinds) / TICKS / (1 + self.dual)
        self.bytes = unit_bytes(problem, layout, self.extras)
        batches = np.maximum(problem.workload.global_batch / (layout.dp * layout.micro_batch), 1.0)
        self.flight = [float(in_flight(layout, np.array([float(one)]), batches)[0]) for one in range(self.pp)]
        self.free = (problem.memory_limit - outside(problem)) / float(1.0 + fragmentation(problem, np.ones(1))[0])
        self.most = min(model.layers, 2 * math.ceil(model.layers / self.pp) + 2)
        self.fronts: dict[tuple[str, int, int], _Ways] = {}
        self.slowest = self._reached()
        self.possible = {rank: self._possible(rank) for rank in self.ranks}

    def _seconds(self, layout: Layouts) -> dict[str, float]:
        """Forward and backward of a micro-batch through each unit of what stages hold, and what a layer under another
        set takes more; all sets at once."""
        codes = np.array([self.base, *self.others])
        every = replace(layout.take(np.zeros(len(codes), dtype=np.int64)), recompute=codes)
        parts = parts_of(self.problem, every, [])
        found = {name: (part.passes[0] + part.passes[1]).tolist() for name, part in parts.items()}
        more = {
            f"{kind}:{code}": found[kind][place] - found[kind][0]
            for place, code in enumerate(self.others, 1)
            for kind in self.kinds
        }
        return {name: seconds[0] for name, seconds in found.items()} | more

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
        if self.own:
            return self._time(rank, held, apart, self.kept(held))
        saved = {kind: min([0.0, *(self.seconds[f"{kind}:{code}"] for code in self.others)]) for kind in self.kinds}
        layers = {kind: sum(stage[number] for stage in held) for number, kind in enumerate(("dense", "moe"))}
        fastest = sum(saved[kind] * layers[kind] for kind in self.kinds) / (1 + self.dual)
        return self._time(rank, held, apart) + fastest

    def best(self, rank: tuple[int, ...], held: Held, apart: bool) -> Choice | None:
        """The fastest recomputation with which the rank fits, of equals the one that needs least; None if none fits."""
        free = self.free - self._bare(rank, held, apart)
        ways = [self.kept(held)] if self.own else list(self._ways(rank, held, free))
        if not ways:
            return None
        costs = [(self._time(rank, held, apart, way), self._need(rank, held, apart, way), way) for way in ways]
        time, need, again = min(costs, key=lambda cost: (round(cost[0] / self.tick), cost[1]))
        return Choice(round(time / self.tick), math.ceil(need / KIB), again) if need <= self.free else None

    def kept(self, held: Held) -> tuple[Contents, ...]:
        """The layers that the layout's own set computes again."""
        return tuple(
            again(self.kinds, dense, moe, self.others[0], self.some) if self.others else {} for dense, moe in held
        )

    def _ways(self, rank: tuple[int, ...], held: Held, free: float) -> Iterator[tuple[Contents, ...]]:
        """The fastest ways to compute layers again that take no more than what is `free`, for each of the extras that
        may be the last one that is used: what is held at one time is its."""
        if free >= 0.0:
            yield tuple(Contents() for _ in held)
            if min((self.seconds[name] for name in self.extras), default=0.0) >= 0.0:
                return
        for top, name in enumerate(self.extras):
            for place, stage in enumerate(held):
                number = name.startswith("moe")
                if stage[number]:
                    rest = [list(one) for one in held]
                    rest[place][number] -= 1
                    taken = self.bytes[f"some {name}"] + self.flight[rank[place]] * self.bytes[f"{name} in flight"]
                    found = self._within(rank, rest, self.extras[: top + 1], free - taken)
                    if found:
                        found[place][name] = found[place].get(name, 0) + 1
                        yield found

    def _within(
        self, rank: tuple[int, ...], held: Sequence[Sequence[int]], names: Sequence[str], left: float
    ) -> tuple[Contents, ...] | None:
        """The fastest way to give layers the first of the extras that has at most `left` bytes in flight."""
        groups = [
            (self._front(kind, count, len([name for name in names if name.startswith(kind)])), place, kind)
            for place, stage in enumerate(held)
            for kind, count in zip(("dense", "moe"), stage, strict=True)
            if count
        ]
        sums, picks = np.zeros((1, 2)), np.zeros((1, 0), dtype=np.int64)
        for number, (front, place, _) in enumerate(groups):
            more = front.sums * (1.0, self.flight[rank[place]])
            if number == len(groups) - 1:  # of each sum so far, the fastest that leaves no more than is free
                second = len(more) - np.searchsorted(more[::-1, 1], left - sums[:, 1], side="right")
                first = np.flatnonzero(second < len(more))
                second = second[first]
                sums = sums[first] + more[second]
            else:
                both = (sums[:, None] + more[None]).reshape(-1, 2)
                kept = _front(both)
                (first, second), sums = np.divmod(kept, len(more)), both[kept]
            picks = np.column_stack([picks[first], second])
        fits = np.flatnonzero(sums[:, 1] <= left)
        if not len(fits):
            return None
        best = fits[np.lexsort((sums[fits, 1], np.round(sums[fits, 0] / self.tick)))[0]]
        found = [Contents() for _ in held]
        for (front, place, kind), pick in zip(groups, picks[best], strict=True):
            for code, count in zip(self.others, front.counts[pick].tolist(), strict=False):
                found[place][f"{kind}:{code}"] = count
        return tuple(found)

    def _front(self, kind: str, layers: int, sets: int) -> _Ways:
        """The ways to give layers of a kind to the first sets of which none is as fast with as little in flight."""
        key = kind, layers, sets
        if key not in self.fronts:
            costs = [(self.seconds[f"{kind}:{c}"], self.bytes[f"{kind}:{c} in flight"]) for c in self.others[:sets]]
            counts = np.zeros((1, len(costs)), dtype=np.int64)
            if layers and costs:
                before = self._front(kind, layers - 1, sets).counts
                counts = np.concatenate([before, *(before + one for one in np.eye(len(costs), dtype=np.int64))])
            sums = np.zeros((len(counts), 2))
            for number, cost in enumerate(costs):
                sums += counts[:, number, None] * np.array(cost)
            kept = _front(sums)
            self.fronts[key] = _Ways(counts[kept], sums[kept])
        return self.fronts[key]

    def _time(self, rank: tuple[int, ...], held: Held, apart: bool, again: Sequence[Contents] = ()) -> float:
        """Seconds of a micro-batch; a DualPipe rank runs each of its stages for half of them."""
        depths, last = self.problem.model.mtp_layers, self.pp - 1
        layers = {kind: sum(stage[number] for stage in held) for number, kind in enumerate(("dense", "moe"))}
        total = sum(self.seconds[kind] * layers[kind] for kind in self.kinds)
        total += self.seconds["embedding"] * (0 in rank) + self.seconds["head"] * (last in rank)
        if depths and last - apart in rank:
            total += depths * (self.seconds["mtp"] - apart * self.seconds["head"])
        if depths and apart and last in rank:
            total += depths * self.seconds["head"]
        total += sum(self.seconds[name] * count for stage in again for name, count in stage.items())
        return total / (1 + self.dual)

    def _bare(self, rank: tuple[int, ...], held: Held, apart: bool) -> float:
        """Bytes allocated where no other set than the usual one computes anything again."""
        total = self._ends(rank, held, apart)
        for place, one in enumerate(rank):
            for kind, count in zip(("dense", "moe"), held[place], strict=True):
                if count:
                    total += count * (self.bytes[kind] + self.flight[one] * self.bytes[f"{kind} in flight"])
        return total

    def _need(self, rank: tuple[int, ...], held: Held, apart: bool, again: Sequence[Contents]) -> float:
        """Bytes allocated."""
        total = self._bare(rank, held, apart)
        for one, stage in zip(rank, again, strict=True):
            total += sum(self.flight[one] * self.bytes[f"{name} in flight"] * count for name, count in stage.items())
        there = [name for name in self.extras if any(stage.get(name) for stage in again)]
        return total + (self.bytes[f"some {there[-1]}"] if there else 0.0)

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


def _front(sums: Column) -> Column:
    """Places of the rows of (seconds, bytes) of which no other has less of both, the fastest first."""
    order = np.lexsort((sums[:, 1], sums[:, 0]))
    least = np.minimum.accumulate(sums[order, 1])
    found: Column = order[np.append(True, least[1:] < least[:-1])]
    return found
