"""The machine that a run states: its GPU's usual cluster, with the network that the row describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from hardware.catalog import cluster_for, gpu_alias, load_cluster
from hardware.cluster import Cluster

_cluster = lru_cache(load_cluster)


def cluster_of(row: Mapping[str, str]) -> Cluster:
    """The catalogue's cluster for the run's GPU, with the network that the row states or logged."""
    cluster = _cluster(cluster_for(gpu_alias(row["gpu"])))
    nic = _nic(row.get("interconnect", ""), cluster)
    if nic is None:
        return cluster
    levels = [cluster.levels[0], *(replace(level, bandwidth=nic) for level in cluster.levels[1:])]
    return replace(cluster, levels=tuple(levels))


def _nic(text: str, cluster: Cluster) -> float | None:
    """B/s per GPU and direction that a description of the network gives, None where it gives none."""
    node = float(cluster.gpus_per_node)
    if found := re.search(r"(\d+) ?Gb/?p?s? ?(?:/s)? per GPU", text):
        return float(found.group(1)) / 8e-9
    if found := re.search(r"(\d+) ?x ?(\d+) ?Gb", text):
        return float(found.group(1)) * float(found.group(2)) / 8e-9 / node
    if found := re.search(r"\((\d+) Gb/s a node\)|(\d+) Gbps", text):
        return float(found.group(1) or found.group(2)) / 8e-9 / node
    speeds = {"Omni-Path": 100.0, "HDR": 200.0, "NDR": 400.0}
    if found := re.search(r"(\d+) ?x (Omni-Path|[^;,]*HDR|[^;,]*NDR)", text):
        kind = next(name for name in speeds if name in found.group(2))
        return float(found.group(1)) * speeds[kind] / 8e-9 / node
    return None
