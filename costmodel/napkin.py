"""The worked-examples chapter's hand formulas, as printed there, and what each should have been.

`explain` prints them beside the model. Symbols: N parameters, T, P, D = TP, PP, DP degrees, b micro-batch, s sequence
length, h hidden, m micro-batches, H memory of a GPU as sold, V bytes of one activation message. GB is 1e9 B, and the
chapter's MB, which counts MiB, is taken as 1e6 B, as it does.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from costmodel import params
from costmodel.model import Model

STATE_BYTES = 16.0
"""F1: bf16 weight and gradient, fp32 master and two moments (ZeRO 1910.02054, K = 12)."""
USABLE = 0.7
"""F4: the share of a GPU's memory that the chapter gives to weights."""
BUFFERS = 3e9
"""F18."""
RING = 2.0
"""F8, F9: volumes of a ring all-reduce, without (n - 1) / n."""
ACHIEVED = 370.0 / 450.0
"""Share of one-way NVLink that NCCL's rings reach on 8 H100 (NVIDIA/nccl-tests#212)."""
SWITCHED = 480.0 / 450.0
"""The same for an all-reduce in the switch (NVLink SHARP), which sends less than a ring."""
EAGER_LOGIT, FUSED_LOGIT = 14.0, 2.0
"""Bytes a logit of an eager cross entropy in fp32 (bf16, fp32, its softmax and gradient) and of a fused one."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as the chapter has it, SI; `corrected` and `why` where the formula or a fact in it is wrong.

    `hand` is None where the chapter leaves a term out.
    """

    hand: float | None
    formula: str
    corrected: float | None = None
    why: str = ""


Figures = dict[str, Figure]
"""By the name of the row that they stand in."""


def nominal_parameters(model: Model) -> float:
    """N as people say it: the number in the model's name (8e9, 70e9, 405e9), else the total to three digits."""
    named = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)b\b", model.name.lower())
    if named and not model.is_moe:
        return float(named.group(1)) * 1e9
    total = params.total(model)
    return float(round(total, 2 - int(math.log10(total))))


def nominal_active(model: Model) -> float:
    """Parameters that a token meets as people say it: without the input embedding, two digits (37e9 of 671e9)."""
    met = params.active(model) - (0 if model.tied_embeddings else params.counts(model).embedding)
    return float(round(met, 1 - int(math.log10(met)))) if model.is_moe else nominal_parameters(model)


def static_memory(n: float) -> float:
    """F1: weights, gradients and optimizer, B."""
    return STATE_BYTES * n


def weights(n: float, tp: float = 1.0, pp: float = 1.0) -> float:
    """F3, F13: bf16 weights (or, F14, gradients) of a rank, B."""
    return 2.0 * n / (tp * pp)


def optimizer(n: float, tp: float = 1.0, pp: float = 1.0, shard: float = 1.0) -> float:
    """F15: fp32 master and moments of a rank, B."""
    return 12.0 * n / (tp * pp * shard)


def tensor_degree(n: float, memory: float) -> float:
    """F4: 2 N / (0.7 H) before rounding up; the chapter then takes the next power of two without saying so."""
    return weights(n) / (USABLE * memory)


def pipeline_degree(n: float, memory: float, tp: float = 8.0) -> float:
    """F5: 2 N / (0.7 H T) before rounding up."""
    return weights(n) / (USABLE * memory * tp)


def next_power_of_two(value: float) -> int:
    """The power of two at or above a degree."""
    return 1 << max(0, math.ceil(math.log2(value))) if value > 1 else 1


def fsdp_seconds(n: float, bandwidth: float) -> float:
    """F7: two volumes of the weights."""
    return 2.0 * weights(n) / bandwidth


def fsdp_seconds_corrected(n: float, group: float, bandwidth: float) -> float:
    """Gather, gather again, scatter: three volumes, (n - 1) / n of each, per micro-batch (ZeRO 1910.02054)."""
    return 3.0 * weights(n) * (group - 1.0) / group / bandwidth


def message(tokens: float, hidden: float) -> float:
    """2 b s h bytes as the chapter writes them: MiB taken for MB of 1e6 B."""
    return 2.0 * tokens * hidden / 2**20 * 1e6


def tensor_seconds(volume: float, bandwidth: float) -> float:
    """F8: the all-reduces of a layer, two of 2 V / BW."""
    return 2.0 * RING * volume / bandwidth


def tensor_seconds_corrected(volume: float, group: float, bandwidth: float) -> float:
    """Four all-reduces a layer and micro-batch, two forward and two backward, each 2 (n - 1) / n V / BW."""
    return 4.0 * RING * (group - 1.0) / group * volume / bandwidth


def data_seconds(per_rank: float, bandwidth: float) -> float:
    """F9: all-reduce of a rank's gradients, 2 V / BW."""
    return RING * per_rank / bandwidth


def data_seconds_corrected(per_rank: float, group: float, bandwidth: float) -> float:
    """A ring over the bandwidth that the group sees: one NIC where it has one member a node."""
    return RING * (group - 1.0) / group * per_rank / bandwidth


def bubble(pp: float, micro_batches: float) -> float:
    """F10 as meant, (P - 1) / m of the ideal time; the chapter prints 1/32 for P = 2, m = 32."""
    return (pp - 1.0) / micro_batches


def bubble_share(pp: float, micro_batches: float, vpp: float = 1.0) -> float:
    """The bubble as a share of the step, (P - 1) / (V m + P - 1)."""
    return (pp - 1.0) / (vpp * micro_batches + pp - 1.0)


def send_seconds(volume: float, nic: float) -> float:
    """F11: one micro-batch to the next stage."""
    return volume / nic


def efficiency(backward: float, exposed: float) -> float:
    """F12: backward time over itself and the exposed communication."""
    return backward / (backward + exposed)


def activations(tokens: float, hidden: float, layers: float) -> float:
    """F16: full recomputation keeps each layer's input, 2 b s h L, B."""
    return 2.0 * tokens * hidden * layers


def gathered_layer(layer: float, tp: float) -> float:
    """F17: one layer's weights gathered, B."""
    return 2.0 * layer / tp


def step_flops(n: float, tokens: float) -> float:
    """F19: forward and backward without attention."""
    return 6.0 * n * tokens


def backward_seconds(n: float, tokens: float, rate: float) -> float:
    """4 N FLOPs a token at `rate` FLOP/s."""
    return 4.0 * n * tokens / rate


def experts_per_gpu(experts: float, ep: float) -> float:
    """F20."""
    return experts / ep


def expert_as_printed(model: Model) -> float:
    """Parameters of an expert as the chapter counts them: two matrices, of the dense layers' width if there are any."""
    return 2.0 * model.hidden * (model.ffn_hidden or model.expert_ffn_hidden)
