"""The pages are what their scripts make today; the worked examples answer what the chapter asks."""

import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from itertools import zip_longest
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(DOCS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


NUMBER = re.compile(r"([-+]?\d+(?:,\d{3})*(?:\.\d+)?)")


def drift(old: str, new: str) -> list[str]:
    """Lines that differ by more than 1 in the last decimal of a number: as much as the sums of another CPU may."""
    lines = zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
    return [f"{was}  ->  {now}" for was, now in lines if was != now and not _alike(was, now)]


def _alike(was: str, now: str) -> bool:
    before, after = NUMBER.split(was), NUMBER.split(now)
    return before[::2] == after[::2] and all(map(_near, before[1::2], after[1::2]))


def _near(was: str, now: str) -> bool:
    decimals = {len(text.partition(".")[2]) for text in (was, now)}
    if len(decimals) > 1 or decimals == {0}:
        return was == now
    return abs(float(was.replace(",", "")) - float(now.replace(",", ""))) < 1.5 * 10.0 ** -decimals.pop()


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_worked_examples.py."""
    return script("make_worked_examples")


@pytest.fixture(scope="module")
def accuracy() -> dict[Path, str]:
    """The files that docs/make_accuracy.py makes now."""
    files: dict[Path, str] = script("make_accuracy").made()
    return files


def test_the_accuracy_pages_have_not_drifted(accuracy: dict[Path, str]) -> None:
    """If this fails, predictions have changed: run `python docs/make_accuracy.py` and read the difference."""
    assert {path.name for path in (DOCS / "accuracy").iterdir()} == {p.name for p in accuracy if p.suffix == ".svg"}
    for path, text in accuracy.items():
        assert not drift(path.read_text(), text), path


def test_a_drift_is_noticed_and_a_last_digit_is_none() -> None:
    was = '| nanotron | 407 | 3.3% | +0.0% |\n<path d="M12.4 30.0h0"/>'
    assert not drift(was, was.replace("3.3%", "3.4%").replace("+0.0%", "-0.1%").replace("30.0", "29.9"))
    for change in (("3.3%", "3.5%"), ("407", "408"), ("nanotron", "nanotron-slow"), ("M12.4 30.0h0", "")):
        assert len(drift(was, was.replace(*change))) == 1
    assert drift(was, was + "\n| more |")


def test_each_framework_has_a_plot_that_both_schemes_can_read(accuracy: dict[Path, str]) -> None:
    page = accuracy[DOCS / "accuracy.md"]
    plots = {path: text for path, text in accuracy.items() if path.suffix == ".svg"}
    assert {"megatron", "nanotron", "torchtitan", "llm-foundry"} <= {path.stem for path in plots}
    for path, text in plots.items():
        assert ET.fromstring(text).tag.endswith("svg")
        assert f"(accuracy/{path.name})" in page
        assert "prefers-color-scheme: dark" in text


def test_a_plot_shows_each_run_where_it_lies() -> None:
    """A prediction that is right lies on the diagonal, one 20 % too high on the band's edge."""
    draw = script("draw_accuracy")
    text = draw.draw("title", [("step time [s]", "2 runs", {"B200": [(1.0, 1.0), (5.0, 6.0)]})])
    (marks,) = re.findall(r'class="run" stroke="#\w+" d="(M[^"]+h0M[^"]+)"', text)
    first, second = ([float(x) for x in mark.split()] for mark in re.findall(r"M([\d.]+ [\d.]+)h0", marks))
    assert first == [0.0, draw.SIDE]
    edge = float(re.search(r'class="band"[^>]*L290 (-?[\d.]+)L0', text)[1])  # type: ignore[index]
    assert draw.SIDE - second[0] - second[1] == pytest.approx(-edge, abs=0.2)


@pytest.fixture(scope="module")
def made(maker: ModuleType) -> str:
    """The page as its commands make it now."""
    page: str = maker.page()
    return page


def test_the_page_has_not_drifted(made: str) -> None:
    """If this fails, the cost model has changed: run `python docs/make_worked_examples.py` and read the difference."""
    assert (DOCS / "worked_examples.md").read_text() == made


def test_every_figure_of_the_template_is_filled_in(made: str) -> None:
    assert not re.findall(r"\{\w*\}", made)
    assert "nan" not in made


def test_the_four_walks_the_summary_and_the_five_questions_are_there(maker: ModuleType, made: str) -> None:
    for command in maker.EXAMPLES.values():
        assert f"meshscout explain {command}" in made
    assert re.findall(r"^\*\*(\d)\. .*\?\*\*", made, re.MULTILINE) == ["1", "2", "3", "4", "5"]
    (head, *rows) = re.findall(r"^\| (?:model|8B|70B|405B|671B MoE) \|.*$", made.split("## Summary")[1], re.MULTILINE)[
        :5
    ]
    assert "comm overhead" in head
    assert len(rows) == 4


def test_the_figures_that_the_chapter_gets_wrong_are_right(made: str) -> None:
    for figure in ("612 ms", "1.9 s", "32.1 GB", "3.16 GB", "44,040,192", "0.0303", "2.68 ms", "38.9%"):
        assert figure in made, figure


def test_lines_of_prose_are_at_most_120_characters(made: str) -> None:
    prose = [line for line in made.splitlines() if not line.startswith(("|", "meshscout", "- "))]
    assert max(map(len, prose)) <= 120


def test_the_page_shows_the_models_formula_where_it_is_another(made: str) -> None:
    assert "| states | 16 N; model: 18 N |" in made
    assert "backward / (backward + exposed); model: 1 - exposed / step time" in made
    assert "35.3 GB by hand with fp32 gradients" in made


def test_the_procurement_case_has_not_drifted() -> None:
    """If this fails, run `python docs/refresh.py docs/procurement.md` and read the difference."""
    page = (DOCS / "procurement.md").read_text()
    assert len(script("refresh").BLOCK.findall(page)) == 5
    assert script("refresh").refreshed(page) == page


def test_the_page_about_pipelines_has_not_drifted() -> None:
    """If this fails, run `python docs/refresh.py docs/pipelines.md` and read the difference."""
    page = (DOCS / "pipelines.md").read_text()
    assert len(script("refresh").BLOCK.findall(page)) == 10
    assert drift(page, script("refresh").refreshed(page)) == []


def test_the_intervals_have_not_drifted() -> None:
    """If this fails, rates or runs have changed: run `python docs/make_intervals.py`."""
    made = script("make_intervals")
    runs = made.read_runs(made.RUNS)[0]
    for path, text in made.texts(runs, made.read_left_out(runs)).items():
        assert path.read_text() == text
