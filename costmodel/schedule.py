"""The pipeline schedule: how long a step takes beyond a stage's own work, by the critical paths through the stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from costmodel.layouts import SCHEDULES, Column, Layouts


def code(name: str) -> int:
    """Code of a schedule in the `schedule` column."""
    return SCHEDULES.index(name)


def is_dual(layouts: Layouts) -> Column:
    """1 for rows whose ranks hold two stages (DualPipe)."""
    return np.asarray(layouts.schedule == code("dualpipe"), dtype=np.int64)


LINES = (2.0, 5.0, 64.0)
"""Numbers of virtual stages whose longest paths are looked for; these are the longest in between, too, or nearly."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that the slowest stage waits in a step, shape (N,), below 0 under a schedule that was not asked for;
    interleaved with V virtual stages the largest `each` + `once` / V, shape (lines, N)."""

    plain: Column
    each: Column
    once: Column
    zero_bubble: Column
    dual: Column
    full: Column
    """seconds of uneven virtual stages for each row of `virtual.uneven`, shape (4, N)"""
    head: Column
    """seconds by which the slowest other stage and the head take longer than the slowest stage"""

    def of(self, schedules: Column, vpp: Column, uneven: Column) -> Column:
        """Under these schedules, where `virtual.uneven` says what uneven virtual stages add; all columns may have a
        leading axis."""
        waits = np.zeros(np.broadcast_shapes(schedules.shape, self.plain.shape))
        for number, seconds in enumerate((self.plain, None, self.zero_bubble, self.dual)):
            on = schedules == number
            lines = on.any(axis=-1)
            if lines.any():
                found = self._interleaved(vpp[lines], uneven[:, lines]) if seconds is None else seconds
                waits[lines] = np.where(on[lines], np.maximum(found, 0.0), waits[lines])
        return waits

    def _interleaved(self, vpp: Column, uneven: Column) -> Column:
        longest: Column = self.each[0] + self.once[0] / vpp
        for each, once in zip(self.each[1:], self.once[1:], strict=True):
            longest = np.maximum(longest, each + once / vpp)
        longest = longest + np.maximum(self.head - uneven[3] * self.full[3], 0.0)
        for part, seconds in zip(uneven[:3], self.full[:3], strict=True):
            if part.any():
                longest = longest + part * seconds
        return longest


@dataclass(frozen=True, slots=True)
class Path:
    """The paths through a step: one through each kind of stage, a run of stages that hold the same, in their order.

    `own` are seconds of one micro-batch on a stage of the kind, `through` those of all stages up to the kind's last
    one; shapes (kinds, 3, N): forward, backward (the gradient of the weights included) and that gradient alone. Where
    ranks hold two stages (DualPipe), each for half of the micro-batches, the second one's follow, (kinds, 6, N).
    `later` are the stages behind the last one, shape (kinds, N). A kind may stand there twice.
    """

    micro_batches: Column
    pp: Column
    own: Column
    through: Column
    later: Column

    def waits(self, schedules: Column, work: Column, head: Column) -> Waits:
        """What the slowest stage, whose own work takes `work` seconds, waits for under each of these schedules; `head`
        are seconds of a micro-batch behind the last stage's layers.

        With equal stages of F + B: 1F1B (P-1)(F+B), interleaved (P-1)(F+B)/V, zero-bubble ZB1P (P-1)(F+B-2W), DualPipe
        (P/2-1)(F&B+B-3W) (deepseek-ai/DualPipe README; B the full backward pass). With others a path stays on a stage,
        and comes to it and leaves it by the passes of other stages, where these take longer: a warm-up of n forward
        passes lasts the sum of one on each stage and n - 1 times the longest, as in a flow shop. The step takes as long
        as the longest of these paths. Event simulations of unequal stages take as long (tests).
        """
        several, nothing = self.pp > 1.0, np.zeros_like(work)
        lines = np.zeros((len(LINES), len(work)))
        if not several.any():
            return Waits(nothing, lines, lines, nothing, nothing, np.zeros((4, len(work))), nothing)
        options: tuple[Callable[[], Column], ...] = (
            self._plain,
            self._interleaved,
            lambda: self._ends()._zero_bubble(),
            lambda: self._ends()._dual(),
        )
        found = [seconds() if number in schedules else nothing for number, seconds in enumerate(options)]
        plain, interleaved, zero_bubble, dual = found
        if interleaved is nothing:
            interleaved = np.stack([lines, lines])
        each, once = several * (interleaved[0] - work), several * interleaved[1]
        full, beyond = self._full(work, head)
        plain, zero_bubble, dual = (several * (seconds - work) for seconds in (plain, zero_bubble, dual))
        return Waits(plain, each, once, zero_bubble, dual, full, several * beyond)

    def _full(self, work: Column, head: Column) -> tuple[Column, Column]:
        """`Waits.full` and `Waits.head`."""
        others = np.where(self.later > 0.0, self.own[:, 0] + self.own[:, 1], 0.0)
        at = np.argmax(others, axis=0)[None]
        forward, backward = (np.take_along_axis(self.own[:, way], at, axis=0)[0] for way in (0, 1))
        both, groups = forward + backward, _positive(self.micro_batches - self.pp)
        full = np.stack([both, groups * forward, groups * backward, self.micro_batches * both])
        return full, self.micro_batches * (both + head) - work

    def _plain(self) -> Column:
        forward, backward = self.own[:, 0], self.own[:, 1]
        both, m, later = forward + backward, self.micro_batches - 1.0, self.later
        through = self.through[:, 0] + self.through[:, 1]
        behind = through[-1] - through
        stay = through + m * both
        turns = self._turn(forward, behind) + self._turn(backward, behind) - later * both
        few = through[-1] + m * np.max(np.maximum(forward, backward), axis=0)
        longest: Column = np.maximum(np.max(np.where(m > later, stay + turns, stay), axis=0), few)
        return longest

    def _interleaved(self) -> Column:
        """Chunks of 1/V of a stage. A path also goes round all ranks where that takes longer, or from the last rank,
        after P micro-batches there, on to the first. Each takes a + b / V: the longest ones where V is as in LINES."""
        forward, backward = self.own[:, 0], self.own[:, 1]
        both, m, pp, later = forward + backward, self.micro_batches, self.pp, self.later
        through = self.through[:, 0] + self.through[:, 1]
        behind, whole = through[-1] - through, self.through[-1]
        slow, slow_back = _so_far(forward), np.max(backward, axis=0)
        round_forward = np.maximum(pp * slow, whole[0])
        rounds = round_forward + np.maximum(pp * _so_far(backward), whole[1])
        wrap = np.max((pp - 2.0 * later) * both + behind, axis=0) - 2.0 * (pp - later) * both
        wrap = np.where(m >= 2.0 * pp, wrap, -np.inf)
        turns = np.maximum(self._turn(2.0 * forward, behind), whole[0] + wrap)
        turns = turns + np.maximum(self._turn(2.0 * backward, behind), whole[1] + wrap)
        spare = 2.0 * (m - pp) - (2.0 * later + 1.0 - pp)
        twice = spare > 0.0
        each = np.where(twice, (m - pp) * both + rounds, m * both)
        once = through + np.where(twice, (pp - 1.0 - 2.0 * later) * both - rounds + turns, -both)
        few = np.max(np.where(spare >= 0.0, through + 2.0 * later * slow, through[-1]), axis=0)
        each = np.concatenate([each, [round_forward[-1] + m * slow_back]])
        once = np.concatenate([once, [few - round_forward[-1] - slow_back]])
        longest = [np.argmax(each + once / vpp, axis=0)[None] for vpp in LINES]
        lines = [np.concatenate([np.take_along_axis(part, at, axis=0) for at in longest]) for part in (each, once)]
        return np.stack(lines)

    def _zero_bubble(self) -> Column:
        """Rank r puts r weight gradients off to the end, where they fill what it would wait."""
        forward, weight = self.own[:, 0], self.own[:, 2]
        backward, through = self.own[:, 1] - weight, self.through[:, 1] - self.through[:, 2]
        m, later, rank = self.micro_batches - 1.0, self.later, self.pp - 1.0 - self.later
        behind = (self.through[-1, 0] - self.through[:, 0]) + (through[-1] - through)
        put_off = np.minimum(rank, m)
        ends = (put_off + 1.0) * weight - (through - backward)
        ends = np.maximum(_so_far(ends), weight[0]) - ends
        drain = behind - later * backward - np.clip(m - rank, 0.0, later) * weight
        pairs = _positive(m - later)
        elsewhere = behind / np.maximum(later, 1.0)
        elsewhere = np.where(rank < m, elsewhere, np.minimum(elsewhere, forward[-1] + backward[-1]))
        fewer = (m < self.pp - 1.0) * _positive(put_off * (elsewhere - backward) - pairs * forward)
        many = np.maximum(self._turn(forward, behind) + _positive(drain), behind + fewer) + pairs * forward
        few = m * _so_far(forward) - m * backward - _positive(m - rank) * weight
        few = np.maximum(behind + np.maximum(few, fewer), m * forward)
        work = self.through[:, 0] + (m + 1.0) * self.own[:, 1]
        longest: Column = np.max(work + ends + np.where(m > later, many, few), axis=0)
        return longest

    def _ends(self) -> Path:
        """The same with the first stage of each kind before its last one: paths through these two are longest."""
        before = np.concatenate([np.zeros_like(self.through[:1]), self.through[:-1]])
        first = np.minimum(before + self.own, self.through)
        later = np.concatenate([self.pp + np.zeros_like(self.later[:1]), self.later[:-1]])
        later = np.maximum(later - 1.0, self.later)
        both = ((self.own, self.own), (first, self.through), (later, self.later))
        return Path(self.micro_batches, self.pp, *(_in_turn(*pair) for pair in both))

    def _turn(self, passes: Column, behind: Column) -> Column:
        """Seconds from a stage's first pass to its first the other way: passes of the stages behind, as far as the one
        at which the path turns, and one pass of the slowest stage up to there for each stage behind that."""
        stays = self.later * _so_far(passes) - behind
        turn: Column = behind + _so_far(stays[::-1])[::-1]
        return turn

    def _dual(self) -> Column:
        """The eight steps of deepseek-ai/DualPipe, dualpipe.py, on rank k, counted from the nearer end: forward F,
        backward B, gradient of the input b, of the weights W, of the stage that micro-batches from that end meet first;
        G, C, c, V of the other one.

        A path comes to the rank's first pair of a forward and a backward pass, stays for the other pairs, and leaves
        from the last one; it may come and leave by pairs of the ranks between the rank and the middle.
        """
        half = np.maximum(np.floor(self.pp / 2.0), 1.0)
        after = np.concatenate([self.pp + np.zeros_like(self.later[:1]), self.later[:-1]])
        there, last = after > half, self.pp - 1.0 - self.later
        k = np.minimum(last, half - 1.0)
        n, (F, B, W, G, C, V) = half - 1.0 - k, self.own.swapaxes(0, 1)
        sums = (self.through - (last - k)[:, None] * self.own).swapaxes(0, 1)
        b, c, to_b, to_c = B - W, C - V, sums[1] - sums[2], sums[4] - sums[5]
        whole = self.through[-1]
        filled = whole[0] - sums[3] + G
        first = np.maximum(sums[0] + 2.0 * n * _so_far(F) + G, filled)
        reached = np.max(np.where(there, np.maximum(sums[0] + 2.0 * n * F + sums[3], filled[0]), 0.0), axis=0)
        warm, before = first + k * (F + G), to_c - c
        chain = np.maximum(_so_far(warm - before), reached) + before
        start = np.maximum(warm + n * (C + G), chain + n * _so_far(C + G) - np.where(n == 0.0, F, 0.0))
        left = (k + 1.0) * W + np.floor(_positive(k + 1.0 - n) / 2.0) * (V - W) - (to_b - b)
        tail = np.maximum(_so_far(left), W[0]) - left
        rest, down = to_c + (half - k) * b + half * W + tail, sums[3] + sums[1] - G - B
        others = np.floor((k + 1.0) / 2.0)
        turns = []
        for to, turn in zip(k, before, strict=True):
            after_turn = rest + to * (b + c) + _positive(2.0 * to - k) * W + np.maximum(others, to) * (V - W)
            turns.append(np.max(np.where(there & (k >= to), after_turn, 0.0), axis=0) - turn)
        own = half * C + n * G + (half + n) * B + tail
        end = np.maximum(own, n * _so_far(C + G + B) + down + _so_far(np.stack(turns) + V - down))
        inward, outward = F + C + sums[3] + sums[1], sums[0] + sums[4] + G + B
        start = _so_far(np.where(there, start + inward, -np.inf)[::-1])[::-1] - inward
        end = _so_far(np.where(there, end + outward, -np.inf)[::-1])[::-1] - outward
        pairs = self.micro_batches / 2.0 - half - n
        longest: Column = np.max(np.where(there, start + pairs * (F + B + G + C) + end, 0.0), axis=0)
        return longest


def sends(hop: Column, micro_batches: Column, pp: Column, vpp: Column, visible: float) -> Column:
    """Seconds of a step that hops of `hop` seconds between stages cost: those of fill and drain, and of the others, one
    a virtual stage, micro-batch and way, the `visible` share.

    Where a send only arrives later, 1F1B shows all of them, as each rank waits for its neighbour's answer, and the
    interleaved and zero-bubble schedules, which have other work meanwhile, none (event simulations, tests).
    """
    seconds: Column = 2.0 * hop * (visible * vpp * micro_batches + (pp - 1.0))
    return seconds


def _so_far(seconds: Column) -> Column:
    """The longest up to each kind; NumPy's own accumulate takes five times as long along a first axis."""
    longest = np.array(seconds)
    for before, at in pairwise(longest):
        np.maximum(before, at, out=at)
    return longest


def _in_turn(one: Column, other: Column) -> Column:
    return np.stack([one, other], axis=1).reshape(-1, *one.shape[1:])


def _positive(seconds: Column) -> Column:
    positive: Column = np.maximum(seconds, 0.0)
    return positive
