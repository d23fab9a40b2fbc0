"""A pipeline step, event by event: each rank runs its slots in order, each when all that it needs is there.

An operation is ("F" forward, "B" gradient of the input, or "W" of the weights; stage; micro-batch). A slot holds those
that a rank runs as one: the whole backward pass, or DualPipe's pair of a forward and a backward pass. A stage is a
chunk of layers, numbered as the layers are; what it hands on arrives `send` seconds later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

Operation = tuple[str, int, int]
Slot = tuple[Operation, ...]
Order = list[Slot]


def makespan(orders: Sequence[Order], seconds: Mapping[str, Sequence[float]], send: float = 0.0) -> float:
    """Seconds of a step, where an operation takes `seconds[kind][stage]` and rank r runs `orders[r]`."""
    done: dict[Operation, float] = {}
    at, free = [0] * len(orders), [0.0] * len(orders)
    last = len(seconds["F"]) - 1
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                slot = order[at[rank]]
                needs = [need for operation in slot for need in _needs(operation, last) if need[0] not in slot]
                if any(need not in done for need, _ in needs):
                    break
                start = max([free[rank], *(done[need] + send * far for need, far in needs)])
                free[rank] = start + sum(seconds[kind][stage] for kind, stage, _ in slot)
                done |= dict.fromkeys(slot, free[rank])
                at[rank] += 1
                moved = True
    assert all(place == len(order) for place, order in zip(at, orders, strict=True)), "ranks wait for each other"
    return max(free)


def _needs(operation: Operation, last: int) -> Iterator[tuple[Operation, bool]]:
    """What must be done before, and whether it comes from another stage."""
    kind, stage, batch = operation
    if kind == "W":
        yield ("B", stage, batch), False
    if kind == "B":
        yield ("F", stage, batch), False
    neighbour = {"F": stage - 1, "B": stage + 1}.get(kind, -1)
    if 0 <= neighbour <= last:
        yield (kind, neighbour, batch), True


def one_f_one_b(stages: int, batches: int) -> list[Order]:
    """Rank r: P - r - 1 forward passes, then one forward and one backward in turn (PipeDream-Flush)."""
    return interleaved(stages, 1, batches)


def interleaved(ranks: int, chunks: int, batches: int) -> list[Order]:
    """Megatron-LM's schedules.py: groups of P micro-batches run through a chunk, then through the next."""
    orders = []
    count = batches * chunks
    for rank in range(ranks):
        ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
        forward, backward = [], []
        for number in range(count):
            group, place = divmod(number, ranks * chunks)
            chunk, batch = place // ranks, group * ranks + place % ranks
            if chunks == 1:
                chunk, batch = 0, number
            stage, mirrored = chunk * ranks + rank, (chunks - 1 - chunk) * ranks + rank
            forward.append((("F", stage, batch),))
            backward.append((("B", mirrored, batch), ("W", mirrored, batch)))
        orders.append(_alternate(forward, backward, min(ahead, count)))
    return orders


def _alternate(forward: list[Slot], backward: list[Slot], ahead: int) -> Order:
    order = forward[:ahead]
    for number, slot in enumerate(backward):
        order += [*forward[ahead + number : ahead + number + 1], slot]
    return order


def zero_bubble(stages: int, batches: int) -> list[Order]:
    """ZB1P: 1F1B, but rank r puts r weight gradients off, so that input gradients go back sooner (2401.10241)."""
    orders = []
    for rank in range(stages):
        order: Order = [(("F", rank, batch),) for batch in range(min(stages - rank - 1, batches))]
        ahead = len(order)
        for batch in range(batches):
            order += [(("F", rank, ahead + batch),)] * (ahead + batch < batches) + [(("B", rank, batch),)]
            order += [(("W", rank, batch - rank),)] * (batch >= rank)
        left = range(max(batches - rank, 0), batches)
        orders.append([*order, *((("W", rank, batch),) for batch in left)])
    return orders


def dualpipe(ranks: int, batches: int) -> list[Order]:
    """The eight steps of deepseek-ai/DualPipe, dualpipe.py; even micro-batches run up the ranks, odd ones down."""
    orders = []
    for rank in range(ranks):
        half = min(rank, ranks - 1 - rank)
        own = _Direction(rank, batches // 2, rank < ranks // 2, ranks)
        orders.append(own.order(half, ranks // 2, batches // 2))
    return orders


class _Direction:
    """Counts off the operations of a rank's two stages; 0 is the direction in which the rank comes early."""

    def __init__(self, rank: int, batches: int, early: bool, ranks: int) -> None:
        self.stage = (rank, ranks - 1 - rank) if early else (ranks - 1 - rank, rank)
        self.parity = (0, 1) if early else (1, 0)
        self.next = {(kind, way): iter(range(batches)) for kind in "FB" for way in (0, 1)}
        self.waiting: list[Operation] = []

    def run(self, kind: str, way: int, *, later: bool = False) -> Slot:
        """The next forward pass ("F") or backward pass ("B"), its weight gradient put off if `later`."""
        batch = 2 * next(self.next[kind, way]) + self.parity[way]
        one: Operation = (kind, self.stage[way], batch)
        if kind == "F":
            return (one,)
        weight: Operation = ("W", self.stage[way], batch)
        if later:
            self.waiting.append(weight)
            return (one,)
        return (one, weight)

    def weight(self) -> Slot:
        return (self.waiting.pop(0),)

    def order(self, half: int, halves: int, batches: int) -> Order:
        early = halves - half - 1
        order = [self.run("F", 0) for _ in range(2 * early)]
        for _ in range(half + 1):
            order += [self.run("F", 0), self.run("F", 1)]
        for _ in range(early):
            order += [self.run("B", 1, later=True), self.weight(), self.run("F", 1)]
        for number in range(batches - 2 * halves + half + 1):
            first = [self.run("F", 0), self.run("B", 1)]
            order += first if number == 0 and early == 0 else [first[0] + first[1]]
            order.append(self.run("F", 1) + self.run("B", 0))
        for _ in range(early):
            order.append(self.run("B", 1))
            order.append(self.run("F", 1) + self.run("B", 0))
        later = False
        for number in range(half + 1):
            middle = number == (half + 1) // 2
            later = later or (middle and half % 2 == 1)
            order.append(self.run("B", 1, later=later))
            later = later or (middle and half % 2 == 0)
            order.append(self.run("B", 0, later=later))
        for _ in range(early):
            order += [self.weight(), self.run("B", 0, later=True)]
        return [*order, *(self.weight() for _ in range(len(self.waiting)))]
