import subprocess
import sys
from pathlib import Path

import pytest

from hardware.catalog import cluster_for, cluster_names, gpu_alias, gpu_names, load_cluster, load_gpu
from hardware.cluster import OPERATIONS
from hardware.errors import InputError
from hardware.listing import describe_clusters, describe_gpus
from hardware.shipped import gpu_aliases

MIB = 2.0**20


def test_the_names_that_scripts_use_are_shipped() -> None:
    clusters = (
        "dgx-a100 dgx-a100-40g dgx-b200 dgx-b300 dgx-h100 dgx-h200 gb200-nvl72 gb300-nvl72 gh200-nvl32 gh200-quad"
    )
    clusters += " hgx-a800 hgx-h20 hgx-h800 mi300x-8 mi325x-8 mi355x-8 pcie-a100 pcie-a100-40g pcie-h100 pcie-h100-nvl"
    gpus = "A100-PCIe-40G A100-PCIe-80G A100-SXM-40G A100-SXM-80G A800 B200 B300 GB200 GB300 GH200 GH200-141G H100-NVL"
    gpus += " H100-PCIe H100-SXM H20 H200 H800 MI300X MI325X MI355X"
    assert cluster_names() == tuple(clusters.split())
    assert gpu_names() == tuple(gpus.split())


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
        ("dgx-a100-40g", 8, 300e9, 25e9, 8),
        ("hgx-a800", 8, 200e9, 25e9, 8),
        ("pcie-a100", 8, 32e9, 25e9, 8),
        ("pcie-a100-40g", 8, 32e9, 25e9, 8),
        ("pcie-h100", 8, 64e9, 50e9, 8),
        ("dgx-h200", 8, 450e9, 50e9, 8),
        ("hgx-h20", 8, 450e9, 50e9, 8),
        ("gh200-quad", 4, 450e9, 25e9, 4),
        ("gh200-nvl32", 32, 450e9, 50e9, 2),
        ("dgx-b300", 8, 900e9, 100e9, 8),
        ("gb300-nvl72", 72, 900e9, 100e9, 4),
        ("mi300x-8", 8, 448e9, 50e9, 8),
        ("mi325x-8", 8, 448e9, 50e9, 8),
        ("mi355x-8", 8, 537.6e9, 50e9, 8),
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
    measured = {
        "dgx-a100": (222, 205), "dgx-h100": (445, 335), "dgx-h200": (460, 337), "dgx-b200": (704, 617),
        "dgx-b300": (704, 621),
    }  # fmt: skip
    for name, figures in measured.items():
        cluster = load_cluster(name)
        level = cluster.levels[0]
        assert cluster.provenance["levels.nvlink.curves.all_reduce.busbw"].tag == "measured"
        for op, figure in zip(("all_reduce", "all_gather"), figures, strict=True):
            curve = level.curves[op]
            assert curve.group[-1] == 8
            assert curve.efficiency[-1][-1] * level.bandwidth == pytest.approx(figure * 1e9)


def test_collectives_measured_on_another_gpu_are_inherited() -> None:
    """The H20 has the link of the H100, so nothing is rescaled; it still was not measured on an H20."""
    h20, h100 = load_cluster("hgx-h20"), load_cluster("dgx-h100")
    assert h20.levels[0].curves == h100.levels[0].curves
    assert h20.provenance["levels.nvlink.curves.all_gather.busbw"].tag == "inherited"
    assert "H100-SXM" in h20.provenance["levels.nvlink.curves.all_gather.busbw"].source


@pytest.mark.parametrize(("name", "pair", "whole"), [("mi300x-8", 47.7, 313), ("gh200-quad", 106, 350)])
def test_two_gpus_see_only_their_own_link_where_there_is_no_switch(name: str, pair: float, whole: float) -> None:
    """MI300X, measured: 47.7 GB/s for two GPUs (one link of seven), 313 for all eight. GH200: 6 links of 18."""
    level = load_cluster(name).levels[0]
    curve = level.curves["all_reduce"]
    assert curve.group[0] == 2
    assert curve.group[-1] == level.size
    assert curve.efficiency[0][-1] * level.bandwidth == pytest.approx(pair * 1e9)
    assert curve.efficiency[-1][-1] * level.bandwidth == pytest.approx(whole * 1e9)
    links = level.size - 1
    for operation in level.curves.values():
        assert max(operation.efficiency[0]) < 1 / links


def test_bridged_cards_are_fast_in_pairs_only() -> None:
    levels = load_cluster("pcie-h100-nvl").levels
    assert [(level.name, level.size, level.bandwidth) for level in levels[:2]] == [
        ("nvlink", 2, 300e9),
        ("pcie", 8, 64e9),
    ]
    assert load_cluster("pcie-h100").levels[0].name == "pcie"


def test_a_nic_gives_46_to_48_gigabytes_a_second_at_best() -> None:
    level = load_cluster("dgx-h100").levels[1]
    for curve in level.curves.values():
        assert 46e9 <= curve.efficiency[0][-1] * level.bandwidth <= 48e9


FACTS = {
    "A100-SXM-40G": (40, 1.555, 312, None, 400),
    "A100-SXM-80G": (80, 2.039, 312, None, 400),
    "A100-PCIe-40G": (40, 1.555, 312, None, 250),
    "A100-PCIe-80G": (80, 1.935, 312, None, 300),
    "A800": (80, 2.039, 312, None, 400),
    "H100-SXM": (80, 3.35, 989, 1979, 700),
    "H100-PCIe": (80, 2.0, 756, 1513, 350),
    "H100-NVL": (94, 3.9, 835, 1671, 400),
    "H800": (80, 3.35, 989, 1979, 700),
    "H20": (96, 4.0, 148, 296, 500),
    "H200": (141, 4.8, 989, 1979, 700),
    "GH200": (96, 4.0, 989, 1979, 1000),
    "GH200-141G": (141, 4.8, 989, 1979, 1000),
    "B200": (180, 8.0, 2250, 4500, 1000),
    "B300": (288, 8.0, 2250, 4500, 1100),
    "GB200": (186, 8.0, 2500, 5000, 1200),
    "GB300": (288, 8.0, 2500, 5000, 1400),
    "MI300X": (192, 5.3, 1307, 2615, 750),
    "MI325X": (256, 6.0, 1307, 2615, 1000),
    "MI355X": (288, 8.0, 2500, 5000, 1400),
}


@pytest.mark.parametrize("name", gpu_names())
def test_a_gpu_is_what_its_data_sheet_says(name: str) -> None:
    memory, bandwidth, bf16, fp8, power = FACTS[name]
    gpu = load_gpu(name)
    assert (gpu.memory, gpu.memory_bandwidth, gpu.power) == (memory * 1e9, bandwidth * 1e12, power)
    assert gpu.peak["bf16"] == bf16 * 1e12
    assert gpu.peak.get("fp8") == (None if fp8 is None else fp8 * 1e12)
    for key, provenance in gpu.provenance.items():
        assert len(provenance.source) > 3, key
        assert "no source given" not in provenance.source, key


@pytest.mark.parametrize("name", gpu_names())
def test_usable_memory_is_a_little_less_than_the_card_holds(name: str) -> None:
    """The card holds at most its nominal figure read in GiB."""
    gpu = load_gpu(name)
    assert 0.92 * gpu.memory / 1e9 < gpu.usable_memory / 2**30 < gpu.memory / 1e9


@pytest.mark.parametrize("name", cluster_names())
def test_a_node_draws_more_than_its_gpus(name: str) -> None:
    cluster = load_cluster(name)
    assert 1.05 < cluster.node_power / (cluster.gpus_per_node * cluster.gpu.power) < 2.5


def test_precisions_are_those_that_the_gpu_has() -> None:
    assert set(load_gpu("A100-SXM-80G").peak) == {"bf16", "fp16"}
    assert set(load_gpu("H100-SXM").peak) == {"bf16", "fp16", "fp8"}
    assert set(load_gpu("GB200").peak) == {"bf16", "fp16", "fp8", "mxfp8", "nvfp4"}
    assert load_gpu("B300").peak["nvfp4"] == 14e15
    assert load_gpu("GB300").peak["nvfp4"] == 15e15
    assert set(load_gpu("MI300X").peak) == {"bf16", "fp16", "fp8"}
    assert set(load_gpu("MI355X").peak) == {"bf16", "fp16", "fp8", "mxfp8"}
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
    h200 = load_gpu("H200")
    assert h200.gemm["bf16"].eta[0] == (0.176, 0.269, 0.328)
    assert h200.gemm["fp8_block"].eta[-1] == (0.423, 0.543, 0.574)
    assert h200.provenance["gemm.bf16.eta"].tag == "measured"


@pytest.mark.parametrize(
    ("name", "most"),
    [("A100-PCIe-80G", 252.9), ("A100-SXM-40G", 271.2), ("GH200", 828.6), ("B300", 1769), ("GB200", 1822),
     ("MI300X", 668.4), ("MI325X", 784.9), ("MI355X", 1565)],
)  # fmt: skip
def test_the_best_gemm_is_near_the_best_one_measured(name: str, most: float) -> None:
    """TFLOP/s of bf16 in ml-engineering's table of maxima; those of Blackwell are of larger shapes than the table's."""
    gpu = load_gpu(name)
    best = max(map(max, gpu.gemm["bf16"].eta)) * gpu.peak["bf16"] / 1e12
    assert best == pytest.approx(most, rel=0.11)


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
        (lambda: load_gpu("h10"), "unknown GPU 'h10'; did you mean 'H100'?"),
        (lambda: load_cluster("H100"), "unknown cluster 'H100'; a cluster of H100-SXM is 'dgx-h100'"),
    ],
)  # fmt: skip
def test_an_unknown_name_is_one_line_with_the_known_ones(call: object, says: str) -> None:
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("H100-SXM", "H100-SXM"), ("A100-80G", "A100-SXM-80G"), ("GB200", "GB200"), ("GB300", "GB300"),
        ("B200", "B200"), ("A100-40G", "A100-SXM-40G"), ("A100-PCIe", "A100-PCIe-80G"), ("H200", "H200"),
        ("A800", "A800"), ("A100", "A100-SXM-80G"), ("H800", "H800"), ("H100", "H100-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80G"), ("NVIDIA H100 80GB HBM3", "H100-SXM"), ("h200_sxm", "H200"),
        ("AMD Instinct MI300X", "MI300X"), ("GH200 480GB", "GH200"),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_the_names_in_tables_of_runs(called: str, name: str) -> None:
    assert gpu_alias(called) == name
    assert load_cluster(cluster_for(called)).gpu.name == name


def test_a_users_file_may_call_a_gpu_by_any_of_its_names(tmp_path: Path) -> None:
    """H100 is no misspelt H800."""
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\ngpu = "H100"\n')
    assert load_cluster(path).gpu == load_gpu("H100-SXM") == load_gpu("nvidia h100 80gb")
    path.write_text('base = "dgx-h100"\n[gpu]\nmemory = "90 GB"\nmemory_bandwidth = "3 TB/s"\npower = "700 W"\n')
    with path.open("a") as file:
        file.write('peak = {bf16 = "900 TFLOP/s"}\ngemm = {like = "A100"}\n')
    assert load_cluster(path).gpu.gemm["bf16"].eta == load_gpu("A100-SXM-80G").gemm["bf16"].eta


def test_every_gpu_has_a_cluster_and_no_name_means_two() -> None:
    names = gpu_names()
    assert len({cluster_for(name) for name in names}) == len(names)
    assert set(gpu_aliases()) == set(names)
    others = [other for aliases in gpu_aliases().values() for other in aliases]
    assert len({other.casefold() for other in (*others, *names)}) == len(others) + len(names)


@pytest.mark.parametrize(("name", "says"), [("H10", "did you mean 'H100'?"), ("TPU", "known: A100-"), ("", "known:")])
def test_an_unknown_gpu_of_a_table_is_one_line(name: str, says: str) -> None:
    for call in (gpu_alias, cluster_for):
        with pytest.raises(InputError) as caught:
            call(name)
        assert str(caught.value).startswith(f"unknown GPU {name!r}")
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_listing_shows_key_numbers_with_their_sources() -> None:
    clusters = {entry.name: entry for entry in describe_clusters()}
    assert tuple(clusters) == cluster_names()
    figures = {figure.label: figure for figure in clusters["dgx-h100"].figures}
    assert figures["nvlink per GPU and direction"].text == "450 GB/s"
    assert figures["leaf joins"].text == "256 GPUs"
    assert figures["price per GPU-hour"].provenance.tag == "assumed"
    assert figures["nvlink, all-reduce reaches"].text == "445 GB/s"
    assert figures["nvlink, all-reduce reaches"].provenance.tag == "measured"
    bridged = {figure.label: figure.text for figure in clusters["pcie-h100-nvl"].figures}
    assert bridged["nvlink, all-reduce reaches"] == "212 GB/s"
    above = {entry.name for entry in clusters.values() if any("in-switch" in part.text for part in entry.figures)}
    assert "dgx-h200" in above
    assert "dgx-h100" not in above
    gpus = {entry.name: entry for entry in describe_gpus()}
    assert tuple(gpus) == gpu_names()
    assert [part.text for part in gpus["B200"].figures[:2]] == ["180 GiB, sold as 180 GB", "178 GiB"]
    assert gpus["A800"].figures[-2].text == "hgx-a800"
    assert "A800-80G" in gpus["A800"].figures[-1].text
    for entry in (*clusters.values(), *gpus.values()):
        assert entry.summary != entry.name
        assert all("no source" not in f.provenance.source for f in entry.figures)


def test_importing_the_catalogue_needs_the_standard_library_only() -> None:
    code = (
        "import sys, hardware.listing\nprint({'numpy', 'pandas', 'pyarrow', 'ortools', 'difflib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
