import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from hardware.catalog import load_cluster, load_gpu
from hardware.cluster import OPERATIONS
from hardware.errors import InputError

GPU = """
[gpu]
memory = "96 GB"
memory_bandwidth = "4 TB/s"
power = "500 W"
[gpu.peak]
bf16 = "148 TFLOP/s"
"""
OWN = """
gpus_per_node = 8
[levels.nvlink]
size = 8
bandwidth = "450 GB/s"
[levels.net]
size = 0
bandwidth = "200 Gb/s"
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def line_of(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_small_file_of_the_user_is_enough(write: Write) -> None:
    cluster = load_cluster(write(OWN + GPU))
    assert cluster.name == "mine"
    assert cluster.gpu.peak == {"bf16": 148e12, "fp16": 148e12}
    assert cluster.fast_domain == 8
    assert [level.bandwidth for level in cluster.levels] == [450e9, 25e9]
    assert cluster.price is None
    assert cluster.gpu.usable_memory < 96e9
    assert cluster.gpu.provenance["gemm.bf16.eta"].tag == "assumed"
    assert cluster.provenance["levels.nvlink.curves.all_reduce.busbw"].tag == "assumed"
    assert cluster.provenance["pue"].tag == "assumed"


def test_the_gpu_is_a_shipped_name_a_table_or_a_file_beside_the_cluster(write: Write, tmp_path: Path) -> None:
    assert load_cluster(write('gpu = "B200"\n' + OWN)).gpu == load_gpu("B200")
    (tmp_path / "card.toml").write_text(GPU.replace("[gpu]\n", "").replace("gpu.", ""))
    assert load_cluster(write('gpu = "card.toml"\n' + OWN)).gpu.memory == 96e9


def test_curves_may_be_of_the_user(write: Write, tmp_path: Path) -> None:
    curve = "group = [2]\nlatency = [1e-6]\nbusbw = [[100e9]]\n"
    text = 'bandwidth = "200 GB/s"\nsize = ["1 MiB"]\n' + "".join(f"[{op}]\n{curve}" for op in OPERATIONS)
    (tmp_path / "measured.toml").write_text(text)
    own = OWN.replace('"450 GB/s"', '"200 GB/s"\ncurves = "measured.toml"')
    level = load_cluster(write('gpu = "B200"\n' + own)).levels[0]
    assert level.curves["all_reduce"].efficiency == ((0.5,),)
    (tmp_path / "measured.toml").write_text(text.replace("[[100e9]]", "[[300e9]]", 1))
    assert "measured.toml: all_reduce.busbw: must be above 0 and at most" in line_of(tmp_path / "mine.toml")


def test_only_all_reduce_may_exceed_the_link(write: Write, tmp_path: Path) -> None:
    """A switch that reduces sends the tensor once instead of 2 (n - 1)/n times: 460 GB/s on an H200's 450."""
    curve = "group = [8]\nlatency = [1e-6]\nbusbw = [[100e9]]\n"
    text = 'bandwidth = "200 GB/s"\nsize = ["1 MiB"]\n' + "".join(f"[{op}]\n{curve}" for op in OPERATIONS)
    path = write('gpu = "B200"\n' + OWN.replace('"450 GB/s"', '"200 GB/s"\ncurves = "measured.toml"'))
    (tmp_path / "measured.toml").write_text(text.replace("[[100e9]]", "[[340e9]]", 1))
    assert load_cluster(path).levels[0].curves["all_reduce"].efficiency == ((1.7,),)
    (tmp_path / "measured.toml").write_text(text.replace("[[100e9]]", "[[360e9]]", 1))
    assert "measured.toml: all_reduce.busbw: must be above 0 and at most" in line_of(path)
    (tmp_path / "measured.toml").write_text(
        text.replace("[all_gather]\n" + curve, "[all_gather]\n" + curve.replace("100", "201"))
    )
    assert "measured.toml: all_gather.busbw" in line_of(path)


def test_a_base_keeps_what_is_not_overridden(write: Write) -> None:
    base = load_cluster("dgx-h100")
    path = write('base = "dgx-h100"\nprice = 4\n[levels.spine]\noversubscription = 3\n')
    cluster = load_cluster(path)
    assert cluster.name == "mine"
    assert cluster.price == 4
    assert cluster.gpu == base.gpu
    assert cluster.levels[:2] == base.levels[:2]
    assert cluster.levels[2].bandwidth == base.levels[2].bandwidth
    assert cluster.levels[2].effective_bandwidth == pytest.approx(50e9 / 3)
    assert cluster.provenance["price"].source == "mine.toml, no source given"


def test_slower_nvlink_keeps_the_overhead_of_small_messages() -> None:
    """An H800 is an H100 with a slower link: large messages slow down by the link, small ones by less."""
    h100, h800 = (load_cluster(name).levels[0] for name in ("dgx-h100", "hgx-h800"))
    fast, slow = (level.curves["all_to_all"] for level in (h100, h800))
    assert slow.latency == fast.latency
    busbw = [value * h800.bandwidth for value in slow.efficiency[-1]]
    assert busbw[-1] == pytest.approx(155e9, rel=0.001)
    ratio = [mine / (other * h100.bandwidth) for mine, other in zip(busbw, fast.efficiency[-1], strict=True)]
    assert ratio == sorted(ratio, reverse=True)
    assert ratio[0] > 0.8


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"450 GB/s"', '"450 GB"', "levels.nvlink.bandwidth = '450 GB': 'GB' is a unit of another kind"),
        ('"450 GB/s"', "0", "levels.nvlink.bandwidth = 0: must be above 0"),
        ('"450 GB/s"', "-450e9", "levels.nvlink.bandwidth = -450000000000.0: must be above 0"),
        ('"450 GB/s"', "450", 'bandwidth = 450: 450 B/s is too little; write a bandwidth, for example "450 GB/s"'),
        ('"450 GB/s"', '"450"', "levels.nvlink.bandwidth = '450': 450 B/s is too little"),
        ('"96 GB"', "96", 'gpu.memory = 96: 96 B is too little; write an amount of memory, for example "80 GB"'),
        ('"96 GB"', '"96 GB"\nusable_memory = 90', "gpu.usable_memory = 90: 90 B is too little"),
        ('"4 TB/s"', "4", "gpu.memory_bandwidth = 4: 4 B/s is too little"),
        ('"148 TFLOP/s"', "148", 'gpu.peak.bf16 = 148: 148 FLOP/s is too little; write a rate of arithmetic'),
        ('"148 TFLOP/s"', '"148 TFLOP/s"\nfp8 = 296', "gpu.peak.fp8 = 296: 296 FLOP/s is too little"),
        ('"500 W"', "0.5", 'gpu.power = 0.5: 0.5 W is too little; write a power, for example "700 W"'),
        ("size = 0", "size = 0\nlatency = 14", 'levels.net.latency = 14: 14 s is too much; write a time, for example'),
        ('bandwidth = "450', 'bandwith = "450', "levels.nvlink.bandwidth is missing"),
        ("size = 0", "size = 0\nlatncy = 1", "unknown key 'levels.net.latncy'; did you mean 'latency'?"),
        ("size = 0", "size = 0\noversubscription = 0.5",
         "levels.net.oversubscription = 0.5: must be at least 1"),
        ("size = 0", "size = 64", "levels.net.size = 64: the last level must be 0"),
        ("size = 8", "size = 1", "levels.nvlink.size = 1: must be at least 2"),
        ("size = 8", "size = 12", "gpus_per_node = 8: does not fit levels.nvlink.size = 12"),
        ("gpus_per_node = 8", "gpus_per_node = 0", "gpus_per_node = 0: must be at least 1"),
        ("gpus_per_node = 8", "gpus_per_node = 8.5", "gpus_per_node = 8.5: expected a whole number"),
        ("gpus_per_node = 8", "gpus_per_node = 8\npue = 0.9", "pue = 0.9: must be at least 1"),
        ("gpus_per_node = 8", "gpus_per_node = 8\nprice = -1", "price = -1: must be at least 0"),
        ("gpus_per_node = 8", "gpus_pernode = 8", "gpus_per_node is missing"),
        ("[gpu]", "[gpu]\nmemry = 1", "unknown key 'gpu.memry'; did you mean 'memory'?"),
        ('"96 GB"', '"96 GB"\nusable_memory = "120 GB"',
         "gpu.usable_memory = 1.2e+11 B: is more than memory"),
        ('"148 TFLOP/s"', '"148 TB/s"', "gpu.peak.bf16 = '148 TB/s': 'TB/s' is a unit of another kind"),
        ("bf16 =", "int8 = 1\nbf16 =", "unknown key 'gpu.peak.int8'"),
        ("[gpu]", "[gpu]\ngemm = {like = 'H10'}", "gpu.gemm.like: unknown GPU 'H10'"),
        (OWN, OWN.replace("size = 8", 'size = 8\ncurves = "nvlink9"'),
         "unknown set of curves 'nvlink9'; did you"),
        (OWN, 'base = "dgx-h10"\n' + OWN, "base: unknown cluster 'dgx-h10'; did you mean 'dgx-h100'?"),
        (GPU, "", "gpu is missing"),
    ],
)  # fmt: skip
def test_a_wrong_cluster_file_is_one_line_with_file_and_key(write: Write, old: str, new: str, says: str) -> None:
    text = OWN + GPU
    assert old in text
    path = write(text.replace(old, new, 1))
    line = line_of(path)
    assert line.startswith(f"{path}: ")
    assert says in line


def test_an_unknown_gpu_in_a_cluster_file_names_the_nearest(write: Write) -> None:
    line = line_of(write('gpu = "H100-SMX"\n' + OWN))
    assert "mine.toml: gpu: unknown GPU 'H100-SMX'; did you mean 'H100-SXM'?" in line


def test_levels_must_nest_from_the_inside_out(write: Write) -> None:
    text = 'base = "dgx-h100"\n[levels.leaf]\nsize = 100\n'
    assert "levels.leaf.size = 100: must be a multiple of levels.nvlink.size = 8" in line_of(write(text))


def test_a_cluster_can_be_sent_to_another_process() -> None:
    cluster = load_cluster("gb200-nvl72")
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_a_slightly_faster_link_keeps_what_in_switch_reduction_gives():
    """H200's all-reduce reaches more than its link: 450.1 GB/s must not be slower than 450."""
    curve = load_cluster("dgx-h200").levels[0].curves["all_reduce"]
    faster = curve.rebased(450e9, 450.1e9)
    for before, after in zip(curve.efficiency, faster.efficiency, strict=True):
        assert all(new * 450.1e9 >= old * 450e9 for old, new in zip(before, after, strict=True))
