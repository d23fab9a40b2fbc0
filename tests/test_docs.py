"""The worked examples are what their commands print today, and answer what the chapter asks."""

import importlib.util
import re
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
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_worked_examples.py."""
    return script("make_worked_examples")


def test_the_accuracy_tables_have_not_drifted() -> None:
    """If this fails, predictions have changed: run `python docs/make_accuracy.py` and read the difference."""
    page, readme = script("make_accuracy").page()
    assert (DOCS / "accuracy.md").read_text() == page
    assert (DOCS.parent / "README.md").read_text() == readme


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
