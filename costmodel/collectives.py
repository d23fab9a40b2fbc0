"""One collective: bytes, group and link level -> seconds.

A group of `size` ranks that lie `stride` apart in the order of the ranks has `min(size, domain / stride)` members in
each link domain (`Runs` where they do not all lie as far apart). A ring crosses a domain's border once per NIC of those
members, so a group with one member a node sees one NIC and a group that holds all 8 GPUs of each node sees 8; an
all-to-all cannot pool NICs, each rank sends through its own. Ranks fill domains in order, so a group that fits a domain
lies inside of it where groups of its size divide the domain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.layouts import Column
from costmodel.tables import bilinear
from hardware.cluster import Cluster, Curve, Level

VOLUMES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Bytes on the wire per byte of the full tensor and (n - 1)/n (nccl-tests, PERFORMANCE.md)."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Groups made of runs of `length` ranks, a stride apart; the next run lies `gap` times as far on as the next rank
    would. `length` divides the size of the group."""

    length: Column
    gap: Column


def members(level: Level, size: Column, stride: Column, runs: Runs | None = None) -> Column:
    """Ranks of a group inside one domain of a link level (at least 1, at most `size`); without `runs` all are `stride`
    apart.
    """
    if runs is None:
        return _members(level, size, stride)
    length, apart = runs.length, stride * runs.length * runs.gap
    one = _members(level, length, stride)
    inside: Column = np.where(one < length, one, length * _members(level, size / length, apart))
    return inside


def _members(level: Level, size: Column, stride: Column) -> Column:
    """Ranks inside one domain of a group whose ranks are `stride` apart.

    Ranks fill domains in order: of groups that fit but do not divide a domain some lie across its border, in parts of
    the greatest common divisor at least (groups of 16 on 72 GPUs: 8 and 8), and a step waits for these.
    """
    if level.size == 0:
        return size
    span = size * stride
    parts = np.gcd(np.rint(span).astype(np.int64), level.size) / stride
    across = (span < level.size) & (np.fmod(level.size, span) != 0.0)
    inside: Column = np.clip(np.floor(np.where(across, parts, level.size / stride)), 1.0, size)
    return inside


def leaves_node(cluster: Cluster, size: Column) -> Column:
    """1 where a group of neighbouring ranks does not fit the innermost level, else 0."""
    return 1.0 * (members(cluster.levels[0], size, np.ones_like(size)) < size)


def collective(
    cluster: Cluster, op: str, volume: Column, size: Column, stride: Column, *,
    network: float = 1.0, runs: Runs | None = None,
) -> Column:  # fmt: skip
    """Seconds of one collective; `volume` is the full tensor in bytes, all arguments float64 columns.

    At each link level t = max(latency, volume * q / busbw) with q = 2(n-1)/n for all-reduce and (n-1)/n else; the
    slowest level counts. `network` is the share of the bandwidth beyond the first level that the run gets. A group of
    one takes no time.
    """
    first, ring = cluster.levels[0], op != "all_to_all"
    inside = members(first, size, stride, runs)
    share = VOLUMES[op] * (size - 1.0) / size
    sent = volume * share if ring else volume * (inside - 1.0) / size
    tensor = volume if ring else volume * inside / size
    seconds = (inside > 1.0) * _link_seconds(first, op, sent, tensor, np.maximum(inside, 2.0), 1.0)
    domains = np.maximum(np.ceil(size / inside), 2.0)
    for inner, level in zip(cluster.levels[:-1], cluster.levels[1:], strict=True):
        below = members(inner, size, stride, runs)
        sent = volume * share / inside if ring else volume * (size - below) / size
        tensor = volume / inside if ring else volume
        here = _link_seconds(level, op, sent, tensor, domains, network)
        seconds = np.maximum(seconds, (below < size) * here)
    return seconds


def point_to_point(cluster: Cluster, volume: Column, size: Column, stride: Column, *, network: float = 1.0) -> Column:
    """Seconds of the slowest hop along a chain or ring of `size` ranks that lie `stride` apart, `volume` bytes each.

    A chain that does not fit into one domain crosses its border somewhere, and a pipeline or ring goes no faster than
    its slowest hop. A chain of one sends nothing.
    """
    two = np.full_like(stride, 2.0)
    seconds = np.zeros_like(stride)
    missing = 1.0 * (size > 1.0)
    for number, level in enumerate(cluster.levels):
        holds = missing * (members(level, size, stride) >= size)
        share = 1.0 if number == 0 else network
        seconds = seconds + holds * _link_seconds(level, "p2p", volume, volume, two, share)
        missing = missing - holds
    return seconds


def wire_seconds(level: Level, op: str, sent: Column, tensor: Column, group: Column, share: float = 1.0) -> Column:
    """Seconds on the wire of one level: bytes over the bus bandwidth at this message and group size."""
    return sent / (level.effective_bandwidth * share * _efficiency(level.curves[op], tensor, group))


def _link_seconds(level: Level, op: str, sent: Column, tensor: Column, group: Column, share: float) -> Column:
    """The time of a tiny message, or what the wire takes where that is more."""
    curve = level.curves[op]
    knots = np.log2(np.asarray(curve.group, dtype=np.float64))
    latency = np.interp(np.log2(group), knots, np.asarray(curve.latency))
    seconds: Column = np.maximum(latency, wire_seconds(level, op, sent, tensor, group, share))
    return seconds


def _efficiency(curve: Curve, tensor: Column, group: Column) -> Column:
    """Share of the level's bandwidth, interpolated in the logarithms of message and group size."""
    groups = np.log2(np.asarray(curve.group, dtype=np.float64))
    sizes = np.log2(np.asarray(curve.size, dtype=np.float64))
    return bilinear(groups, sizes, curve.efficiency, np.log2(group), np.log2(np.maximum(tensor, 1.0)))
