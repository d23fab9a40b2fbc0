"""Virtual stages: the layers of each, and what a step waits where they are uneven.

Interleaved, all ranks run the same phase, their virtual stages of one number, at about the same time, for as many
micro-batches as there are ranks.
"""

from __future__ import annotations

from collections.abc import Sequence


def chunks(counts: Sequence[int], vpp: int, *, ends: bool, apart: bool = False) -> tuple[int, ...]:
    """Layers of each virtual stage, in the order of the layers, where stage r has counts[r].

    The fullest virtual stage of a phase sets its pace: none has more layers than that of the fullest stage, whose
    phases are as even as can be, and so these together take as long as that stage. What the last stage has fewer it
    lacks beside the head, which lies alone if there is none and `ends` lets it, or always where it is `apart` from the
    multi-token prediction on the stage before; what the first one has more, as its layers are lighter, it has in front.
    """
    pp, fullest, order = len(counts), _fullest(counts, vpp), _larger_first(counts, vpp)
    rows = [_even(min(count, fullest), order) for count in counts]
    rows[0][0] += max(0, counts[0] - fullest)
    for rank in range(pp - 1 - apart, pp) if vpp > 1 and pp > 1 else ():
        beside = max(_even(fullest, order)[-1] - (fullest - counts[rank]), 1 - (ends or apart))
        beside = 0 if apart and rank == pp - 1 else beside
        rows[rank] = [*_even(counts[rank] - beside, [phase for phase in order if phase < vpp - 1]), beside]
    return tuple(row[number] for number in range(vpp) for row in rows)


def uneven(counts: Sequence[int], vpp: int, *, ends: bool) -> tuple[float, ...]:
    """What `chunks` make a step wait, in parts of the fullest stage's time: as the pipeline fills; with each
    micro-batch's forward passes; with its backward passes; and how long the head may take without a wait."""
    fullest, order = _fullest(counts, vpp), _larger_first(counts, vpp)
    small, larger = divmod(fullest, vpp)
    beside, fewer = _even(fullest, order)[-1], fullest - counts[-1]
    room = beside - max(beside - fewer, 1 - ends) + small / len(counts)
    more, fill = _waves(counts, vpp)
    chosen = sorted(order[:larger])
    mirrored = chosen == [vpp - 1 - phase for phase in reversed(chosen)]
    return fill / fullest, (-more if mirrored else more) / fullest, more / fullest, room / fullest


def _fullest(counts: Sequence[int], vpp: int) -> int:
    """Layers of the fullest stage but the first, whose layers may be lighter; one a virtual stage at least."""
    return max(*(counts[1:-1] or counts), counts[-1], vpp)


def _waves(counts: Sequence[int], vpp: int) -> tuple[float, float]:
    """Layers that a path through the larger virtual stages has more than the fullest stage: of each micro-batch, and
    once.

    These come to one rank after the other. A path stays on a rank that has one of them, and goes round by the ranks
    that are not between the first and the last of these; a rank on its way costs it a smaller one (event simulations).
    """
    pp, fullest = len(counts), _fullest(counts, vpp)
    small, more, once = fullest // vpp, 0.0, 0.0
    for layers in range(fullest, small * vpp, -1):
        heavy = [rank for rank, count in enumerate(counts) if count >= layers or rank == pp - 1]
        span = heavy[-1] - heavy[0]
        fewer = fullest - layers
        more = max(more, (span - (1 + small) * (pp - span)) / pp - fewer)
        once = max(once, (small + 1 - fullest / vpp) * span - pp * fewer)
    return more, once


def _larger_first(counts: Sequence[int], vpp: int) -> list[int]:
    """The phases, those first that have a layer more where they are uneven: the last ones, where the head is.

    Where that makes waits they lie symmetrically, if they can: forward passes through larger ones then meet backward
    passes through these on other ranks. In the middle if the head needs no more room than that leaves, else at both
    ends.
    """
    fullest, phases = _fullest(counts, vpp), list(range(vpp))
    small, larger = divmod(fullest, vpp)
    first, early = (vpp - larger) // 2, 0
    if _waves(counts, vpp)[0] > 0.0:
        if (vpp - larger) % 2 == 0 and fullest - counts[-1] <= small:
            return [*phases[first : first + larger], *reversed(phases[first + larger :]), *reversed(phases[:first])]
        early = larger // 2 if larger % 2 == 0 else 0
    return [*phases[:early], *reversed(phases[early:])]


def _even(layers: int, order: Sequence[int]) -> list[int]:
    """As evenly as can be over the phases, the first ones of `order` with a layer more."""
    whole, rest = divmod(layers, max(len(order), 1))
    sizes = [whole] * len(order)
    for phase in order[:rest] if whole else range(len(order) - rest, len(order)):
        sizes[phase] += 1
    return sizes
