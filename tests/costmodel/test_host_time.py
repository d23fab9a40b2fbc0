"""Time that no link and no GPU explains: hosts that launch, rings that step, optimizers that loop over tensors."""

from dataclasses import replace

import pytest

from costmodel.estimate import Time, step_time
from costmodel.layouts import Layouts
from costmodel.problem import Problem
from costmodel.traffic import network_share, pipeline_send
from tests.strategies import problem

STEP, LAYER, SEND = 40e-6, 2.5e-3, 1e-4
QUIET = {"straggler": 0.0, "contention": 0.0, "layer_floor": 0.0, "kernel": 0.0}


def case(framework: str = "nanotron", model: str = "llama-3.1-8b", gpus: int = 64, **rates: float) -> Problem:
    found = problem(model, gpus=gpus, framework=framework, seq_len=4096, global_batch=256)
    time = replace(found.profile.time, **(QUIET | rates))
    return replace(found, profile=replace(found.profile, time=time))


def spent(job: Problem, tp: int, pp: int = 1, zero_stage: int = 0) -> Time:
    dp = job.workload.gpus // (tp * pp)
    layout = Layouts.of(tp=tp, pp=pp, dp=dp, zero_stage=zero_stage, sequence_parallel=1)
    return step_time(job, layout, job.split([pp]))


def more(changed: Time, base: Time, term: str) -> float:
    return float(getattr(changed, term)[0] - getattr(base, term)[0])


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b"])
def test_a_ring_across_nodes_pays_for_each_step_whatever_the_hidden_size(model):
    """Ten collectives a layer of TP - 1 steps: nanotron's layers take 7 and 15 ms more at TP 16 and 32."""
    with_steps, without = case(model=model, ring_step=STEP), case(model=model, ring_step=0.0)
    assert more(spent(with_steps, 8), spent(without, 8), "tensor_parallel") == 0.0
    for tp in (16, 32):
        micro_batches, layers = 256 / (64 / tp), without.model.layers
        expected = 10 * (tp - 1) * STEP * layers * micro_batches
        assert more(spent(with_steps, tp), spent(without, tp), "tensor_parallel") == pytest.approx(expected)


def test_the_hosts_of_a_group_across_nodes_have_their_own_time():
    slow = {"layer_floor": 1.9e-3, "tp_floor": 0.7e-3}
    inside = spent(case(**slow, tp_floor_network=0.7e-3), 16)
    across = spent(case(**slow, tp_floor_network=0.9e-3), 16)
    assert more(across, inside, "kernel_gaps") == pytest.approx(3 * 15 * 0.2e-3 * 32 * 64)


def test_zero_exchanges_shards_layer_by_layer_and_rank_by_rank():
    job, free = case(shard_layer=LAYER, ring_step=STEP), case(shard_layer=0.0, ring_step=0.0)
    expected = 32 * (LAYER + 31 * STEP)
    assert more(spent(job, 2, zero_stage=1), spent(free, 2, zero_stage=1), "data_parallel") == pytest.approx(expected)
    assert more(spent(job, 2), spent(free, 2), "data_parallel") == 0.0


def test_weights_gathered_after_the_optimizer_hide_behind_nothing():
    behind = case(dp_overlap=1.0)
    after = replace(behind, profile=replace(behind.profile, gathers_beside_forward=False))
    behind = replace(behind, profile=replace(behind.profile, gathers_beside_forward=True))
    assert more(spent(after, 2, zero_stage=1), spent(behind, 2, zero_stage=1), "data_parallel") > 0.01
    assert more(spent(after, 2), spent(behind, 2), "data_parallel") == 0.0


def test_every_micro_batch_pays_for_its_sends():
    sending, free = case(send=SEND), case(send=0.0)
    assert more(spent(sending, 2, pp=4), spent(free, 2, pp=4), "pipeline_send") == pytest.approx(2 * (32 + 3) * SEND)
    assert more(spent(sending, 2), spent(free, 2), "pipeline_send") == 0.0


def test_an_unfused_optimizer_reaches_a_part_of_the_bandwidth():
    whole, part = spent(case(optimizer=1.0), 2), spent(case(optimizer=0.25), 2)
    assert part.optimizer[0] == pytest.approx(4 * whole.optimizer[0])


def test_a_recomputed_layer_is_launched_once_more():
    """vTrain's layers of 1,024 elements take 3.6 ms at any TP: four passes of the host with full recomputation."""
    job = case("megatron-2021", layer_floor=0.1)
    full = job.profile.recompute_code("full")
    layout = Layouts.of(dp=64, recompute=full), Layouts.of(dp=64)
    again, once = (float(step_time(job, each, job.split([1])).total[0]) for each in layout)
    assert again - once == pytest.approx(0.1 * 32 * 4, rel=1e-6)


def test_ranks_of_a_tensor_parallel_group_send_a_share_each():
    """Megatron scatters activations before the network and gathers them behind it, sequence parallelism or not."""
    job = case("megatron-2021", gpus=128)
    split, whole = (pipeline_send(job, Layouts.of(tp=tp, pp=4, dp=32 // tp, micro_batch=8))[0] for tp in (8, 1))
    assert split < whole / 4


def test_a_tapered_network_gives_a_job_less_the_more_nodes_it_spans():
    """nanotron's slow state logged 331 GB/s on two nodes and 13 on 64."""
    gather = []
    for gpus in (16, 128):
        base, tapered = (case(gpus=gpus, network=1.0, network_taper=taper, shard_layer=0.0) for taper in (0.0, 0.5))
        gather.append(network_share(tapered) / network_share(base))
        slow, fast = spent(tapered, 8, zero_stage=1), spent(base, 8, zero_stage=1)
        assert (more(slow, fast, "data_parallel") > 0.0) == (gpus > 16)
    assert gather == pytest.approx([1.0, (16 / 2) ** -0.5])


def test_gradients_meet_the_rings_of_tensor_parallelism_across_nodes():
    """Without ZeRO the last backward pass's six rings a layer take twice their steps, inside a node nothing changes."""
    job, free = case(ring_step=STEP, dp_overlap=0.0), case(ring_step=0.0, dp_overlap=0.0)
    assert more(spent(job, 8), spent(free, 8), "data_parallel") == 0.0
    assert more(spent(job, 16), spent(free, 16), "data_parallel") == pytest.approx(32 * 6 * 15 * STEP)
    assert more(spent(job, 64), spent(free, 64), "data_parallel") == 0.0
