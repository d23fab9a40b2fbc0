"""The pipeline schedule: how long a step takes beyond a stage's own work, by the critical path through that stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from costmodel.layouts import SCHEDULES, Column, Layouts


def code(name: str) -> int:
    """Code of a schedule in the `schedule` column."""
    return SCHEDULES.index(name)


def is_dual(layouts: Layouts) -> Column:
    """1 for rows whose ranks hold two stages (DualPipe)."""
    return np.asarray(layouts.schedule == code("dualpipe"), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Path:
    """A step's path through one stage; seconds of one micro-batch, arrays (3, N): forward, backward (the gradient of
    the weights included) and that gradient alone.

    `whole` sums over all stages, `behind` over the `later` ones behind this one. A DualPipe rank runs two stages, each
    for half of the micro-batches, and its `behind` are both stages of the `later` ranks between it and the middle.
    `vpp` may have a leading axis that the others lack.
    """

    micro_batches: Column
    pp: Column
    vpp: Column
    own: Column
    whole: Column
    behind: Column
    later: Column

    def longest(self, schedules: Column, last: Column) -> Column:
        """Seconds that the slowest stage, which this path leads through, waits in a step; `last`: the last stage.

        The longer one of the paths through both; with a heavy head and few micro-batches that is the last stage's.
        """
        nothing = np.zeros(1)
        ending = Path(self.micro_batches, self.pp, self.vpp, last, self.whole, nothing + np.zeros((3, 1)), nothing)
        less = self.micro_batches * (self.own[0] + self.own[1] - last[0] - last[1])
        waits = _positive(self.waits(schedules))
        other = (schedules != code("dualpipe")) * (ending.waits(schedules) - less)
        longest: Column = np.maximum(waits, other) * (self.pp > 1.0)
        return longest

    def waits(self, schedules: Column) -> Column:
        """Seconds that the path takes beyond the stage's own work, float64 column.

        With equal stages of F + B: 1F1B (P-1)(F+B), interleaved (P-1)(F+B)/V, zero-bubble ZB1P (P-1)(F+B-2W), DualPipe
        (P/2-1)(F&B+B-3W) (deepseek-ai/DualPipe README; B the full backward pass). A stage first waits for the stages
        before it. Between a forward pass and its backward pass it waits for those behind it, less the passes of other
        micro-batches that it runs meanwhile: once before its first backward pass and once before its last. The step
        takes as long as the longest of these paths. Event simulations of unequal stages take as long (tests).
        """
        options: dict[str, Callable[[Path], Column]] = {
            "1f1b": Path._plain,
            "interleaved": Path._interleaved,
            "zero-bubble": Path._zero_bubble,
            "dualpipe": Path._dual,
        }
        waits = np.zeros(np.broadcast_shapes(schedules.shape, self.micro_batches.shape))
        for name, seconds in options.items():
            on = schedules == code(name)
            lines = on.any(axis=-1)
            if lines.any():
                path = replace(self, vpp=self.vpp[lines])
                waits[lines] = np.where(on[lines], seconds(path), waits[lines])
        return waits

    def _plain(self) -> Column:
        forward, backward, _ = self.own
        before, behind = self._before(), self.behind[0] + self.behind[1]
        few = behind - (self.micro_batches - 1.0) * np.minimum(forward, backward)
        many = _positive(behind - self.later * forward) + _positive(behind - self.later * backward)
        waits: Column = before + np.where(self.micro_batches <= self.later + 1.0, _positive(few), many)
        return waits

    def _interleaved(self) -> Column:
        """Chunks of 1/V of a stage. Where the others are slower, a stage waits for them in every round of P chunks."""
        forward, backward, _ = self.own
        before, behind, ranks = self._before(), self.behind[0] + self.behind[1], self.pp
        rounds = [(self.vpp - 1.0) * _positive(self.whole[way] - ranks * self.own[way]) for way in (0, 1)]
        pace = behind / np.maximum(self.later, 1.0) - forward - backward
        few = behind + (ranks - 1.0) * np.maximum(-np.minimum(forward, backward), np.where(self.later > 0, pace, 0.0))
        many = _positive(behind - 2.0 * self.later * forward + rounds[0])
        many = many + _positive(behind - 2.0 * self.later * backward + rounds[1])
        ahead = 2.0 * self.later + (self.vpp - 1.0) * ranks
        once = ahead + 1.0 >= self.micro_batches * self.vpp
        waits: Column = (before + np.where(once, _positive(few), many)) / self.vpp
        return waits

    def _zero_bubble(self) -> Column:
        """Rank r puts r weight gradients off to the end, where they fill what it would wait."""
        forward, backward, weight = self.own
        behind = self.behind[0] + self.behind[1] - self.behind[2]
        gaps = _positive(behind - self.later * forward) + _positive(behind - self.later * backward)
        before = self.whole - self.own - self.behind
        rank = self.pp - 1.0 - self.later
        waits: Column = before[0] + gaps + _positive(before[1] - before[2] - rank * weight)
        return waits

    def _dual(self) -> Column:
        """The start is over when rank k, counted from the nearer end, runs its first pair of a forward and a backward
        pass; the end begins after its last pair of the other direction (deepseek-ai/DualPipe, dualpipe.py).

        Both lead over the middle ranks; where a path meets one stage of every rank, it is taken to be a mean stage.
        """
        half, n = np.maximum(np.floor(self.pp / 2.0), 1.0), self.later
        k, edge = half - 1.0 - n, n == half - 1.0
        F, B, W = self.own
        mean_F, mean_B, mean_W = self.whole / self.pp
        inner = np.where(n > 0, self.behind / np.maximum(2.0 * n, 1.0), self.own)
        way = n * (inner[0] + inner[1]) + inner[1]
        start = (half - 1.0) * mean_F + (self.pp + 1.0) * inner[0]
        start = np.maximum(start, self.pp * np.where(edge, F, mean_F) + (half - 1.0) * (mean_B - mean_W))
        start = start + way - (3.0 * half - k) * F - (half - k) * B
        end = n * B + k * W + np.where(edge, B, mean_B + (k - 1.0) * (mean_B - mean_W) + B - W) + B
        end = np.maximum(end, mean_B + (self.pp - 1.0) * (mean_B - mean_W) + mean_W + np.where(edge, B - mean_B, 0.0))
        end = end + way - inner[1] + half * (mean_F + mean_B) - (half - k) * F - (3.0 * half - k) * B
        waits: Column = np.maximum(start, k * mean_F) + _positive(end)
        return waits

    def _before(self) -> Column:
        before: Column = self.whole[0] + self.whole[1] - self.own[0] - self.own[1] - self.behind[0] - self.behind[1]
        return before


def sends(hop: Column, micro_batches: Column, pp: Column, vpp: Column, visible: float) -> Column:
    """Seconds of a step that hops of `hop` seconds between stages cost: those of fill and drain, and of the others, one
    a virtual stage, micro-batch and way, the `visible` share.

    Where a send only arrives later, 1F1B shows all of them, as each rank waits for its neighbour's answer, and the
    interleaved and zero-bubble schedules, which have other work meanwhile, none (event simulations, tests).
    """
    seconds: Column = 2.0 * hop * (visible * vpp * micro_batches + (pp - 1.0))
    return seconds


def _positive(seconds: Column) -> Column:
    positive: Column = np.maximum(seconds, 0.0)
    return positive
