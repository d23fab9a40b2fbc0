import subprocess
import sys

import pytest

from hardware.catalog import cluster_names, gpu_names, load_cluster, load_gpu
from hardware.cluster import OPERATIONS
from hardware.errors import InputError
from hardware.listing import describe_clusters, describe_gpus

MIB = 2.0**20


def test_the_names_that_scripts_use_are_shipped() -> None:
    assert cluster_names() == ("dgx-a100", "dgx-b200", "dgx-h100", "gb200-nvl72", "hgx-h800")
    assert gpu_names() == ("A100-SXM-80G", "B200", "GB200", "H100-SXM", "H800")


@pytest.mark.parametrize("name", cluster_names())
def test_every_number_shipped_has_a_source(name: str) -> None:
    cluster = load_cluster(name)
    sources = {**cluster.provenance, **cluster.gpu.provenance}
    assert "memory" in sources
    assert "levels.leaf.bandwidth" in sources
    for key, provenance in sources.items():
        assert len(provenance.source) > 3, key
        assert "no source given" not in provenance.source, key


@pytest.mark.parametrize(
    ("name", "fast", "nvlink", "nic", "node"),
    [
        ("dgx-a100", 8, 300e9, 25e9, 8),
        ("dgx-h100", 8, 450e9, 50e9, 8),
        ("hgx-h800", 8, 200e9, 50e9, 8),
        ("dgx-b200", 8, 900e9, 50e9, 8),
        ("gb200-nvl72", 72, 900e9, 50e9, 4),
    ],
)
def test_links_are_per_gpu_and_direction(name: str, fast: int, nvlink: float, nic: float, node: int) -> None:
    cluster = load_cluster(name)
    assert cluster.fast_domain == fast
    assert cluster.gpus_per_node == node
    assert [level.bandwidth for level in cluster.levels] == [nvlink, nic, nic]
    assert cluster.levels[-1].size == 0


@pytest.mark.parametrize("name", cluster_names())
def test_every_level_has_every_operation_and_larger_messages_are_no_slower(name: str) -> None:
    for level in load_cluster(name).levels:
        assert set(level.curves) == set(OPERATIONS)
        for curve in level.curves.values():
            assert curve.size == (MIB, 8 * MIB, 64 * MIB, 512 * MIB)
            for row in curve.efficiency:
                assert list(row) == sorted(row)
            assert all(0 < latency < 5e-3 for latency in curve.latency)


def test_the_measured_bus_bandwidth_of_nvlink_is_kept() -> None:
    """nccl-tests on 8 GPUs at 512 MiB, in GB/s."""
    measured = {"dgx-a100": (222, 205), "dgx-h100": (445, 335), "dgx-b200": (704, 617)}
    for name, figures in measured.items():
        level = load_cluster(name).levels[0]
        for op, figure in zip(("all_reduce", "all_gather"), figures, strict=True):
            curve = level.curves[op]
            assert curve.group[-1] == 8
            assert curve.efficiency[-1][-1] * level.bandwidth == pytest.approx(figure * 1e9)


def test_a_nic_gives_46_to_48_gigabytes_a_second_at_best() -> None:
    level = load_cluster("dgx-h100").levels[1]
    for curve in level.curves.values():
        assert 46e9 <= curve.efficiency[0][-1] * level.bandwidth <= 48e9


def test_precisions_are_those_that_the_gpu_has() -> None:
    assert set(load_gpu("A100-SXM-80G").peak) == {"bf16", "fp16"}
    assert set(load_gpu("H100-SXM").peak) == {"bf16", "fp16", "fp8"}
    assert set(load_gpu("GB200").peak) == {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"}
    for name in gpu_names():
        gpu = load_gpu(name)
        assert gpu.peak["fp16"] == gpu.peak["bf16"]
        assert set(gpu.gemm) == ({"bf16", "fp8", "fp8_block"} if "fp8" in gpu.peak else {"bf16"})


def test_gemm_tables_are_measured_or_scaled_from_a_relative() -> None:
    h100, a100 = load_gpu("H100-SXM"), load_gpu("A100-SXM-80G")
    assert h100.gemm["bf16"].eta[0][0] == 0.147
    assert h100.gemm["fp8"].eta[-1] == (0.398, 0.59, 0.677)
    assert a100.gemm["bf16"].eta[0][0] == pytest.approx(0.147 * 0.869 / 0.803, rel=1e-3)
    assert a100.provenance["gemm.bf16.eta"].tag == "inherited"
    assert load_gpu("H800").gemm == h100.gemm


def test_usable_memory_is_what_the_driver_leaves() -> None:
    assert load_gpu("H100-SXM").usable_memory == pytest.approx(79.1 * 2**30)
    assert load_gpu("H100-SXM").memory == 80e9


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: load_cluster("dgx-h10"),
         "unknown cluster 'dgx-h10'; did you mean 'dgx-h100'? known: dgx-a100,"),
        (lambda: load_cluster("DGX-H100"), "did you mean 'dgx-h100'?"),
        (lambda: load_cluster("zzzz"), "unknown cluster 'zzzz'; known: dgx-a100"),
        (lambda: load_cluster(""), "unknown cluster ''"),
        (lambda: load_cluster("x" * 5000), "unknown cluster"),
        (lambda: load_cluster("no/such.toml"), "no/such.toml: no such file"),
        (lambda: load_gpu("h100"), "unknown GPU 'h100'"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_one_line_with_the_known_ones(call: object, says: str) -> None:
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_listing_shows_key_numbers_with_their_sources() -> None:
    clusters = {entry.name: entry for entry in describe_clusters()}
    assert tuple(clusters) == cluster_names()
    figures = {figure.label: figure for figure in clusters["dgx-h100"].figures}
    assert figures["nvlink per GPU and direction"].text == "450 GB/s"
    assert figures["leaf joins"].text == "256 GPUs"
    assert figures["price per GPU-hour"].provenance.tag == "assumed"
    gpus = {entry.name: entry for entry in describe_gpus()}
    assert tuple(gpus) == gpu_names()
    for entry in (*clusters.values(), *gpus.values()):
        assert entry.summary != entry.name
        assert all("no source" not in f.provenance.source for f in entry.figures)


def test_importing_the_catalogue_needs_the_standard_library_only() -> None:
    code = (
        "import sys, hardware.listing\n"
        "print({'numpy', 'pandas', 'pyarrow', 'ortools', 'difflib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
