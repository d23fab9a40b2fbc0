"""A group sees the links that its members' places give it: one NIC for one member a node, eight for eight."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.collectives import Runs, collective, members, point_to_point, wire_seconds
from hardware.catalog import load_cluster
from hardware.cluster import Cluster

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
CLUSTERS = ("dgx-a100", "dgx-h100", "hgx-h800", "dgx-b200", "gb200-nvl72")


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def faster(cluster: Cluster, level: int) -> Cluster:
    levels = list(cluster.levels)
    levels[level] = replace(levels[level], bandwidth=2 * levels[level].bandwidth)
    return replace(cluster, levels=tuple(levels))


def test_one_member_a_node_gets_one_nic_and_eight_get_eight():
    """The worked examples divide by the node's 400 GB/s where each ring has 50 GB/s: seven to eight times too fast."""
    dgx = load_cluster("dgx-h100")
    gradients = column(17.5e9)
    alone = collective(dgx, "all_reduce", gradients, column(8), column(8))[0]
    whole = collective(dgx, "all_reduce", gradients, column(64), column(1))[0]
    ideal = 2 * 7 / 8 * 17.5e9 / 50e9
    assert ideal < alone < 1.2 * ideal
    assert alone > 5 * whole


def test_all_to_all_does_not_pool_nics():
    dgx = load_cluster("dgx-h100")
    tokens = column(512 * 2**20)
    across = collective(dgx, "all_to_all", tokens, column(16), column(1))[0]
    assert across >= tokens[0] * 8 / 16 / 50e9


def test_the_fast_domain_of_an_nvl72_is_72_gpus():
    rack, node = load_cluster("gb200-nvl72").used_by(1024), load_cluster("dgx-b200")
    message = column(512 * 2**20)
    inside = collective(rack, "all_to_all", message, column(64), column(1))[0]
    outside = collective(node, "all_to_all", message, column(64), column(1))[0]
    assert outside > 5 * inside


def test_members_of_a_domain():
    nvlink = load_cluster("dgx-h100").levels[0]
    assert members(nvlink, column(16, 16, 16, 4), column(1, 2, 8, 1)).tolist() == [8, 4, 1, 4]


def test_members_of_a_domain_that_lie_in_runs():
    """TP 2 x CP 2 x PP 4 x DP 8 on nodes of 8: two ranks side by side, six ranks skipped twice, then the next node."""
    nvlink, leaf = load_cluster("dgx-h100").levels[:2]
    runs = Runs(column(2, 2, 1), column(4, 1, 4))
    group = (column(16, 16, 16), column(2, 2, 2), runs)
    assert members(nvlink, *group).tolist() == [2, 4, 1]
    assert (members(leaf, *group) >= [16, 16, 16]).all()


def test_groups_that_do_not_divide_a_rack_lie_across_its_border():
    """72 GPUs hold four groups of 16 and half of a fifth, whose other half lies in the next rack."""
    rack = load_cluster("gb200-nvl72")
    assert members(rack.levels[0], column(8, 16, 36, 64, 72), column(1, 1, 1, 1, 1)).tolist() == [8, 8, 36, 8, 72]
    message = column(512 * 2**20)
    whole, torn = (collective(rack, "all_to_all", message, column(size), column(1))[0] for size in (8, 16))
    assert torn > 3 * whole


@pytest.mark.parametrize(
    ("name", "gpus", "sizes"),
    [
        ("gb200-nvl72", 64, [0]),
        ("gb200-nvl72", 144, [72, 0]),
        ("gb200-nvl72", 1024, [64, 512, 0]),
        ("gb200-nvl72", 76, [72, 0]),
        ("dgx-h100", 8, [0]),
        ("dgx-h100", 64, [8, 0]),
    ],
)
def test_a_job_fills_every_rack_alike(name, gpus, sizes):
    """1,024 GPUs take 64 of each rack's 72; a level that joins all of a job has no limit for it."""
    assert [level.size for level in load_cluster(name).used_by(gpus).levels] == sizes


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_group_of_one_takes_no_time(op):
    assert collective(load_cluster("dgx-h100"), op, column(1e9), column(1), column(8))[0] == 0.0


def test_measured_points_come_back():
    """512 MiB over 8 H100: 445 GB/s all-reduce, 335 GB/s all-gather (aiconfigurator@095f58a5)."""
    dgx, size = load_cluster("dgx-h100"), float(512 * 2**20)
    reduce = collective(dgx, "all_reduce", column(size), column(8), column(1))[0]
    gather = collective(dgx, "all_gather", column(size), column(8), column(1))[0]
    assert reduce == pytest.approx(2 * 7 / 8 * size / 445e9, rel=0.01)
    assert gather == pytest.approx(7 / 8 * size / 335e9, rel=0.01)


@given(
    name=st.sampled_from(CLUSTERS),
    op=st.sampled_from(OPERATIONS),
    volume=st.floats(1e3, 1e11),
    size=st.sampled_from([2, 3, 4, 8, 16, 64, 100, 512]),
    stride=st.sampled_from([1, 2, 4, 8, 64]),
    level=st.integers(0, 2),
)
def test_twice_the_bandwidth_halves_the_wire_and_never_costs(name, op, volume, size, stride, level):
    cluster = load_cluster(name)
    level = min(level, len(cluster.levels) - 1)
    better = faster(cluster, level)
    arguments = (op, column(volume), column(size), column(stride))
    assert collective(better, *arguments)[0] <= collective(cluster, *arguments)[0]
    wire = (op, column(volume), column(volume), column(size))
    assert wire_seconds(better.levels[level], *wire)[0] == wire_seconds(cluster.levels[level], *wire)[0] / 2


def test_point_to_point_uses_the_level_that_its_distance_crosses():
    dgx = load_cluster("dgx-h100")
    near, far = point_to_point(dgx, column(1e9, 1e9), column(2, 2), column(1, 8))
    assert near == pytest.approx(1e9 / 450e9, rel=0.7)
    assert far == pytest.approx(1e9 / 50e9, rel=0.15)


def test_a_pipeline_that_leaves_its_node_goes_at_the_pace_of_the_network():
    """Four stages four GPUs apart: two hops stay in a node, one does not, and sets the pace."""
    dgx = load_cluster("dgx-h100")
    inside, across, alone = point_to_point(dgx, column(1e9, 1e9, 1e9), column(2, 4, 1), column(4, 4, 4))
    assert across == pytest.approx(1e9 / 50e9, rel=0.15)
    assert inside < across / 4
    assert alone == 0.0
