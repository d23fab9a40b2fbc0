"""Every figure of the worked-examples chapter: reproduced where it is exact, corrected where it is wrong.

One row a figure: what the chapter prints (None where it prints none), what its formula gives, the right value where
that differs. Units in the name; GB is 1e9 B.
"""

import math

import pytest

from costmodel import napkin, params
from costmodel.model import load_model

GB, MS = 1e9, 1e-3
N8, N70, N405, N13 = 8e9, 70e9, 405e9, 13.016e9
NIC, NODE, NVLINK, RING = 50e9, 400e9, 900e9, 370e9
V3 = load_model("deepseek-v3")
EXPERT = params.counts(V3).expert
LAYER_405B = params.layer(load_model("llama-3.1-405b"), moe=False)
MESSAGE_70B = napkin.message(2 * 2048, 8192)
MESSAGE_405B = napkin.message(4096, 16384)
RESIDENT_405B = napkin.weights(N405, 8, 2)

REPRODUCED = [
    ("8b static memory GB", napkin.static_memory(N8) / GB, 128),
    ("8b static per GPU GB", napkin.static_memory(N8) / 8 / GB, 16),
    ("8b FSDP ms", napkin.fsdp_seconds(N8, NVLINK) / MS, 35.6),
    ("8b params sharded GB", napkin.weights(N8) / 8 / GB, 2),
    ("8b optimizer GB", napkin.optimizer(N8) / GB, 96),
    ("8b optimizer sharded GB", napkin.optimizer(N8, shard=8) / GB, 12),
    ("8b gradients sharded GB", napkin.weights(N8) / 8 / GB, 2),
    ("8b activations at s=4096 GB", napkin.activations(4 * 4096, 4096, 32) / GB, 4.29),
    ("8b total GB", 2 + 12 + 2 + 4 + napkin.BUFFERS / GB, 23),
    ("8b peak TFLOP/s", 8 * 989, 7912),
    ("70b weights GB", napkin.weights(N70) / GB, 140),
    ("70b params TP4 GB", napkin.weights(N70, 4) / GB, 35),
    ("70b params TP8 GB", napkin.weights(N70, 8) / GB, 17.5),
    ("70b DP", 64 / 8, 8),
    ("70b message MB", MESSAGE_70B / 1e6, 64),
    ("70b TP all-reduce ms", napkin.tensor_seconds(MESSAGE_70B, NVLINK) / MS, 0.284),
    ("70b TP total ms", 80 * napkin.tensor_seconds(MESSAGE_70B, NVLINK) / MS, 22.76),
    ("70b DP all-reduce ms", napkin.data_seconds(17.5e9, NODE) / MS, 87.5),
    ("70b efficiency", napkin.efficiency(500, 22.4), 0.957),
    ("70b optimizer GB", napkin.optimizer(N70, 8, shard=8) / GB, 13.125),
    ("70b optimizer whole GB", napkin.optimizer(N70, 8) / GB, 105),
    ("70b total GB", 17.5 + 17.5 + 13.1 + 3 + 3, 54.1),
    ("405b weights GB", napkin.weights(N405) / GB, 810),
    ("405b TP8 GB", napkin.weights(N405, 8) / GB, 101.25),
    ("405b TP8 PP2 GB", RESIDENT_405B / GB, 50.6),
    ("405b DP", 256 / 16, 16),
    ("405b TP one stage ms", 63 * napkin.tensor_seconds(MESSAGE_405B, NVLINK) / MS, 35.8),
    ("405b P2P ms", napkin.send_seconds(MESSAGE_405B, NIC) / MS, 2.56),
    ("405b P2P of 134.2e6 B ms", napkin.send_seconds(2 * 4096 * 16384, NIC) / MS, 2.684),
    ("405b bubble", napkin.bubble(2, 32), 0.03125),
    ("405b DP all-reduce ms", napkin.data_seconds(50.6e9, NODE) / MS, 253),
    ("405b exposed ms", 35 + 2.56, 37.56),
    ("405b overhead", 38 / 1238, 0.0307),
    ("405b gradients GB", RESIDENT_405B / 16 / GB, 3.163),
    ("405b optimizer shard GB", napkin.optimizer(N405, 8, 2) / GB, 303.75),
    ("405b optimizer GB", napkin.optimizer(N405, 8, 2, 16) / GB, 18.98),
    ("405b one layer GB", napkin.gathered_layer(LAYER_405B, 8) / GB, 0.797),
    ("405b total GB", 6.3 + 3.16 + 18.98 + 3 + 0.8 + 3, 35.24),
    ("671b experts a GPU", napkin.experts_per_gpu(256, 64), 4),
    ("671b DP", 2048 / 16, 128),
    ("13b weights GB", napkin.weights(N13) / GB, 26.0),
    ("13b FSDP-32 states GB", napkin.static_memory(N13) / 32 / GB, 6.51),
    ("13b HSDP 8x4 states GB", napkin.static_memory(N13) / 8 / GB, 26.0),
    ("13b ZeRO-1 bf16 gradients GB", (napkin.weights(N13) * 2 + napkin.optimizer(N13, shard=32)) / GB, 56.9),
    ("13b TP2 DP16 fp32 gradients GB", N13 / 2 * (6 + 12 / 16) / GB, 43.9),
    ("bubble of PP4 m16", napkin.bubble(4, 16), 0.1875),
    ("bubble share of PP4 m16", napkin.bubble_share(4, 16), 0.1579),
    ("bubble share of PP4 m16 VPP2", napkin.bubble_share(4, 16, 2), 0.0857),
    ("ZeRO needed above, B parameters", 56 / 16, 3.5),
    ("ZeRO-2 needed above at D=8, bf16 gradients", 56 / (4 + 12 / 8), 10.18),
    ("ZeRO-2 needed above at D=8, fp32 gradients", 56 / (6 + 12 / 8), 7.47),
]

CORRECTED = [
    ("8b FSDP ms", 35.6, napkin.fsdp_seconds_corrected(N8, 8, RING) / MS, 113.5),
    ("8b logits bf16 GB", None, 2 * 4 * 4096 * 128256 / GB, 4.2),
    ("8b logits eager GB", None, 14 * 4 * 4096 * 128256 / GB, 29.4),
    ("8b backward ms", 100, napkin.backward_seconds(N8, 4 * 4096, 0.5 * 989e12) / MS, 1060),
    ("70b min TP", 4, math.ceil(napkin.tensor_degree(N70, 80e9)), 3),
    ("70b min TP, rounded", 4, napkin.next_power_of_two(napkin.tensor_degree(N70, 80e9)), 4),
    ("70b TP total ms, ring", 22.4, 80 * napkin.tensor_seconds_corrected(67.1e6, 8, RING) / MS, 101.6),
    ("70b TP total ms, NVLS", 22.4, 80 * napkin.tensor_seconds_corrected(67.1e6, 8, 480e9) / MS, 78.3),
    ("70b DP all-reduce ms", 87.5, napkin.data_seconds_corrected(17.5e9, 8, NIC) / MS, 612.5),
    ("70b activations no SP GB", 3, napkin.activations(2 * 2048, 8192, 80) / GB, 5.37),
    ("70b activations SP GB", 3, napkin.activations(2 * 2048, 8192, 80) / 8 / GB, 0.67),
    ("70b efficiency", 0.957, napkin.efficiency(290, 101.6), 0.74),
    ("70b total, fp32 gradients GB", 54.1, 17.5 * 3 + 13.1 + 3 + 3, 71.6),
    ("405b PP argument", 1.82, napkin.pipeline_degree(N405, 80e9), 1.808),
    ("405b TP 126 layers ms", 35, 126 * napkin.tensor_seconds(MESSAGE_405B, NVLINK) / MS, 71.7),
    ("405b TP 126 layers ms, ring", 35, 126 * napkin.tensor_seconds_corrected(2 * 4096 * 16384, 8, RING) / MS, 320),
    ("405b efficiency", 0.97, napkin.efficiency(839, 163), 0.837),
    ("405b total, fp32 gradients GB", None, 3.16 + 3.16 * 2 + 18.98 + 3 + 0.8 + 3, 35.3),
    ("405b TP one stage ms", 35, 63 * napkin.tensor_seconds_corrected(2 * 4096 * 16384, 8, RING) / MS, 160),
    ("405b DP all-reduce ms", 253, napkin.data_seconds_corrected(50.6e9, 16, NIC) / MS, 1898),
    ("405b bubble share", 3.1, 100 * napkin.bubble_share(2, 32), 3.03),
    ("405b resident GB", 6.3, RESIDENT_405B / 16 / GB, 3.163),
    ("405b total GB", 35, 3.16 + 3.16 + 18.98 + 3 + 0.8 + 3, 32.1),
    ("405b activations, two in flight GB", 3, 2 * napkin.activations(4096, 16384, 63) / GB, 16.91),
    ("405b activations SP GB", 3, 2 * napkin.activations(4096, 16384, 63) / 8 / GB, 2.11),
    ("405b TP8 PP16 DP2 ZeRO-1 states GB", None, N405 / 128 * (2 + 4 + 12 / 2) / GB, 38.0),
    ("671b expert M", 264.2, EXPERT / 1e6, 44.04),
    ("671b chapter's experts T", 0.671, 18432 * 7168 * 2 * 256 * 58 / 1e12, 3.92),
    ("671b total B", 671, params.total(V3) / 1e9, 671.026),
    ("671b active B", 37, params.active(V3) / 1e9, 37.55),
    ("671b top-k", 2, V3.experts_per_token, 8),
    ("671b shared experts", None, V3.shared_experts, 1),
    ("671b not routed B", 11, (params.total(V3) - 58 * 256 * EXPERT) / 1e9, 17.12),
    ("671b shared GB a GPU", 22, 2 * (params.total(V3) - 58 * 256 * EXPERT) / 16 / GB, 2.14),
    ("671b expert parameters a GPU B", 1.06, 58 * 256 * EXPERT / (16 * 64) / 1e9, 0.639),
    ("671b expert data parallel", None, 2048 / (16 * 64), 2),
]


@pytest.mark.parametrize(("name", "found", "printed"), REPRODUCED, ids=[row[0] for row in REPRODUCED])
def test_the_chapter_is_reproduced(name, found, printed):
    assert found == pytest.approx(printed, rel=0.005)


@pytest.mark.parametrize(("name", "printed", "found", "right"), CORRECTED, ids=[row[0] for row in CORRECTED])
def test_the_chapter_is_corrected(name, printed, found, right):
    assert found == pytest.approx(right, rel=0.006)


def test_states_of_v3_on_its_own_layout():
    """12.9 GB a GPU: bf16 weights, fp32 gradients, fp32 master and bf16 moments over 2 and 128 ranks."""
    routed = 58 * 256 * EXPERT / (16 * 64)
    rest = (params.total(V3) - 58 * 256 * EXPERT) / 16
    assert (routed * (6 + 8 / 2) + rest * (6 + 8 / 128)) / GB == pytest.approx(12.9, rel=0.01)


def test_mfu_of_v3_is_what_deepseek_reports():
    """33 % in the chapter; 180K GPU-hours for 1e12 tokens and 2.5e11 FLOPs a token are 39 % (arXiv 2505.09343)."""
    tokens_per_second = 1e12 / (180e3 * 3600)
    assert tokens_per_second * 2.5e11 / 989e12 == pytest.approx(0.391, rel=0.005)


def test_n_as_people_say_it():
    names = ("llama-3.1-8b", "llama-2-70b", "llama-3.1-405b", "deepseek-v3", "mixtral-8x7b")
    assert [napkin.nominal_parameters(load_model(name)) for name in names] == [8e9, 70e9, 405e9, 671e9, 46.7e9]
