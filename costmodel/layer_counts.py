"""How layers are split over pipeline stages: the min-max split of the layers' FLOPs, lighter where the ends weigh.

The head (and the multi-token-prediction module) belongs to the last stage, so that stage gets fewer layers when they
weigh as much as one; what is left over is taken from the first stages, which hold the most micro-batches in flight.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from costmodel import flops
from costmodel.model import Model

EPS = 1e-9


@lru_cache(maxsize=4096)
def split_layers(
    weights: tuple[float, ...], tail: float, stages: int, least: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Layers per stage: contiguous, at least `least` (one) each, the slowest stage as fast as any such split allows.

    `weights` is one number a layer, `tail` what the last stage computes beside its layers, in the same unit.
    Among the optimal splits it takes one whose last stage has most layers, and whose others are as fast as they can be;
    of these the one whose first stages, which hold the most micro-batches, are lightest. Raises ValueError if there are
    too few layers.
    """
    prefix = [0.0, *accumulate(weights)]
    layers, least = len(weights), least or (1,) * stages
    low, high = 0, len(bounds := _bounds(prefix, tail, stages)) - 1
    while low < high:
        middle = (low + high) // 2
        if _fill(prefix, tail, bounds[middle], least) is None:
            low = middle + 1
        else:
            high = middle
    for reserve in range(max(1, layers // stages), -1, -1):
        counts = _fill(prefix, tail, bounds[low], least, reserve)
        if counts is not None:
            return counts if tail == 0.0 or stages == 1 else _evened(weights, counts, least)
    raise ValueError(f"{layers} layers cannot fill {stages} stages")


def _evened(weights: tuple[float, ...], counts: tuple[int, ...], least: tuple[int, ...]) -> tuple[int, ...]:
    """The same last stage, and the others as even as they can be: where it sets the pace, they may be far from it."""
    last = counts[-1]
    return (*split_layers(weights[: len(weights) - last], 0.0, len(counts) - 1, least[:-1]), last)


def _bounds(prefix: Sequence[float], tail: float, stages: int) -> list[float]:
    """Every value that the slowest stage's weight can take, rising."""
    layers = len(prefix) - 1
    mean = layers // stages
    lengths = {n for n in (1, 2, 3, *range(mean - 2, mean + 4), layers - stages + 1) if 1 <= n <= layers}
    sums = {round(prefix[i + n] - prefix[i], 9) for n in lengths for i in range(layers - n + 1)}
    last = {round(prefix[layers] - prefix[layers - n] + tail, 9) for n in range(1, layers - stages + 2)}
    return sorted(sums | last)


def _fill(
    prefix: Sequence[float], tail: float, bound: float, least: tuple[int, ...], reserve: int = 0
) -> tuple[int, ...] | None:
    """Fill stages from the last to the first up to `bound`, leaving `reserve` layers for each earlier one, and what it
    needs at least."""
    end, last = len(prefix) - 1, len(least) - 1
    before, counts = [0, *accumulate(max(reserve, count) for count in least)], [0] * len(least)
    for stage in range(last, -1, -1):
        budget = bound - (tail if stage == last else 0.0)
        start = max(bisect_left(prefix, prefix[end] - budget - EPS * max(1.0, bound)), before[stage])
        if end - start < max(least[stage], 1):
            return None
        counts[stage], end = end - start, start
    return tuple(counts) if end == 0 else None


def even_layers(layers: int, stages: int) -> tuple[int, ...]:
    """The same layers for every stage; where they divide with two more, embedding and head take a layer's place each.

    Megatron-LM's account_for_embedding_in_pipeline_split and ..._loss_..., Megatron-DeepSpeed's partition by
    "transformer|embed". Empty where neither divides.
    """
    each, left = divmod(layers, stages)
    if left and stages > 1 and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        return (each - 1, *(each,) * (stages - 2), each - 1)
    return () if left else (each,) * stages


def fill_layers(model: Model, stages: int) -> tuple[int, ...]:
    """Layers per stage as nanotron places them: stage after stage, each until the cost so far reaches its share.

    The cost of a block is its matrices, the head's among them, which lies on the last stage; so the first stages hold
    most and the last ones may hold no layer (huggingface/nanotron; the first stage's parameters that its published
    sweep states, and the time of its deep pipelines: the head shares its stage with no layer there).
    """
    layer = (2 * (model.heads + model.kv_heads) * model.head_dim + 3 * model.ffn_hidden) * model.hidden
    total = model.layers * layer + model.vocab * model.hidden
    ends = [min(-(-total * stage // (layer * stages)), model.layers) for stage in range(stages)]
    return tuple(after - before for before, after in pairwise([*ends, model.layers]))


def layer_weights(model: Model, seq_len: int) -> tuple[tuple[float, ...], float]:
    """One weight a layer and the tail's, in units of the model's last layer's FLOPs."""
    unit = flops.layer(model, seq_len, moe=model.layer_is_moe[-1])
    costs = {moe: round(flops.layer(model, seq_len, moe=moe) / unit, 6) for moe in set(model.layer_is_moe)}
    tail = flops.head(model) + model.mtp_layers * flops.mtp(model, seq_len)
    return tuple(costs[moe] for moe in model.layer_is_moe), round(tail / unit, 6)
