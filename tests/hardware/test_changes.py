"""What if a figure of a cluster were another: the path leads there, everything else stays as it is."""

from dataclasses import replace
from pathlib import Path

import pytest

from hardware.catalog import load_cluster
from hardware.errors import InputError


def test_a_level_is_named_or_counted_from_the_inside() -> None:
    by_name = load_cluster("dgx-h100", {"levels.leaf.bandwidth": "25 GB/s"})
    assert [level.bandwidth for level in by_name.levels] == [450e9, 25e9, 50e9]
    assert load_cluster("dgx-h100", {"levels.1.bandwidth": "200 Gb/s"}).levels == by_name.levels
    usual = load_cluster("dgx-h100")
    assert replace(by_name, levels=usual.levels, provenance=usual.provenance) == usual


def test_what_was_set_is_tagged_so() -> None:
    cluster = load_cluster("dgx-h100", {"price": 2.1})
    assert cluster.price == 2.1
    assert cluster.provenance["price"] == ("assumed", "what-if: set by the user")


def test_usable_memory_follows_the_memory_of_the_gpu() -> None:
    usual, larger = load_cluster("dgx-h100").gpu, load_cluster("dgx-h100", {"gpu.memory": "160 GB"}).gpu
    assert larger.memory == 2 * usual.memory
    assert larger.usable_memory == pytest.approx(2 * usual.usable_memory)
    both = {"gpu.memory": "160 GB", "gpu.usable_memory": "150 GB"}
    assert load_cluster("dgx-h100", both).gpu.usable_memory == 150e9


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("levels.spin.bandwidth", "25 GB/s", "there is no table 'levels.spin'; did you mean 'spine'?"),
        ("levels.7.bandwidth", "25 GB/s", "tables there: nvlink, leaf, spine"),
        ("levels.1.bandwith", "25 GB/s", "did you mean 'bandwidth'?"),
        ("levels.1.bandwidth", "25", "25 B/s is too little"),
        ("levels.1.size", "12", "must be a multiple of"),
        ("gpu.memry", "80 GB", "did you mean 'memory'?"),
        ("node_power", "12", "12 W is too little"),
        ("pue", "0.5", "must be at least 1"),
        ("price", "cheap", "price"),
    ],
)
def test_a_path_that_leads_nowhere_or_a_wrong_value(path: str, value: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("?", r"\?")) as raised:
        load_cluster("dgx-h100", {path: value})
    assert "\n" not in str(raised.value)


def test_a_node_of_half_the_gpus_draws_half_the_power(tmp_path: Path) -> None:
    usual = load_cluster("dgx-h100").node_power
    assert load_cluster("dgx-h100", {"gpus_per_node": "4"}).node_power == usual / 2
    own = tmp_path / "own.toml"
    own.write_text('base = "dgx-h100"\ngpus_per_node = 4\n')
    assert load_cluster(own).node_power == usual / 2
    own.write_text('base = "dgx-h100"\ngpus_per_node = 4\nnode_power = "6 kW"\n')
    assert load_cluster(own).node_power == 6000.0


def test_other_gpus_have_no_price_of_the_old_ones() -> None:
    other = load_cluster("dgx-h100", {"gpu": "H200-SXM"})
    assert other.price is None
    assert other.node_power == other.gpu.power * 8 * 1.8
    assert load_cluster("dgx-h100", {"gpu": "H200-SXM", "price": 3.5}).price == 3.5


def test_a_file_with_a_base_can_be_changed(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('base = "dgx-h100"\npue = 1.3\n')
    assert load_cluster(own, {"price": 2.0}).price == 2.0
    assert load_cluster(own, {"price": 2.0}).pue == 1.3
