from collections.abc import Callable
from pathlib import Path

import pytest

from hardware.errors import InputError
from hardware.reader import Table


def table(tmp_path: Path, text: str) -> Table:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    return Table.load(path)


def line_of(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_number_is_plain_or_a_text_with_a_unit_or_a_fact_with_its_source(tmp_path: Path) -> None:
    t = table(
        tmp_path,
        """
        a = 12.5
        b = "80 GB"
        [sub]
        c = {value = "3.35 TB/s", source = "data sheet", tag = "spec"}
        """,
    )
    assert t.number("a") == 12.5
    assert t.number("b", unit="B") == 80e9
    assert t.table("sub").number("c", above=0, unit="B/s") == 3.35e12
    assert t.sources["sub.c"] == ("spec", "data sheet")
    assert t.sources["a"].tag == "assumed"
    assert "machine.toml" in t.sources["a"].source
    t.finish()


def test_the_source_of_a_table_holds_for_its_plain_numbers_and_those_below(tmp_path: Path) -> None:
    t = table(
        tmp_path,
        """
        source = "a paper"
        tag = "measured"
        a = [1, 2]
        [sub]
        b = 3
        [own]
        source = "another"
        tag = "inherited"
        c = 4
        """,
    )
    assert t.numbers("a") == (1.0, 2.0)
    assert t.table("sub").number("b") == 3
    assert t.table("own").number("c") == 4
    assert t.sources == {
        "a": ("measured", "a paper"),
        "sub.b": ("measured", "a paper"),
        "own.c": ("inherited", "another"),
    }
    t.finish()


def test_what_is_not_there_takes_the_default_or_none(tmp_path: Path) -> None:
    t = table(tmp_path, "")
    assert t.number("a", default=3.0) == 3.0
    assert t.integer("b", default=4) == 4
    assert t.text("c", default="x") == "x"
    assert t.flag("d", default=True) is True
    assert t.texts("e", default=()) == ()
    assert t.optional_number("f") is None
    assert t.optional_integer("g") is None
    assert t.optional_text("h") is None
    assert t.optional_table("i") is None
    assert t.tables("j", default=()) == ()
    assert t.sources == {}


def test_an_unknown_key_names_file_path_and_the_nearest_known_key(tmp_path: Path) -> None:
    t = table(tmp_path, "[gpu]\nmemry = 1\n")
    t.table("gpu").number("memory", default=1.0)
    t.table("gpu").number("power", default=1.0)
    line = line_of(t.finish)
    assert line.startswith(f"{tmp_path / 'machine.toml'}: unknown key 'gpu.memry'")
    assert "did you mean 'memory'?" in line
    assert "known keys of 'gpu': memory, power" in line


def test_an_unknown_key_in_a_list_of_tables_has_its_index(tmp_path: Path) -> None:
    t = table(tmp_path, "[[part]]\na = 1\n[[part]]\na = 1\nzzz = 2\n")
    assert [part.number("a") for part in t.tables("part")] == [1, 1]
    assert "unknown key 'part[1].zzz'; known keys of 'part[1]': a" in line_of(t.finish)


@pytest.mark.parametrize(
    ("text", "read", "says"),
    [
        ("a = -1", lambda t: t.number("a", above=0), "a = -1: must be above 0"),
        ("a = 0", lambda t: t.number("a", above=0), "a = 0: must be above 0"),
        ("a = 0.5", lambda t: t.number("a", minimum=1), "a = 0.5: must be at least 1"),
        ("a = 2", lambda t: t.number("a", maximum=1), "a = 2: must be at most 1"),
        ("a = true", lambda t: t.number("a"), "a = true: expected a number"),
        ('a = "80 GB"', lambda t: t.number("a", unit="B/s"), "a = '80 GB': 'GB' is a unit of another kind"),
        ('a = "80 GX"', lambda t: t.number("a", unit="B"), "a = '80 GX': unknown unit 'GX'"),
        ("a = nan", lambda t: t.number("a"), "a = nan: nan is not a finite number"),
        ("a = [1]", lambda t: t.number("a"), "a = [1]: expected"),
        ("", lambda t: t.number("a"), "a is missing"),
        ("a = {value = -1}", lambda t: t.number("a", above=0), "a = -1: must be above 0"),
        ("a = {source = 's'}", lambda t: t.number("a"), "a.value is missing"),
        ("a = {value = 1, sorce = 's'}", lambda t: t.number("a"), "a.sorce is unknown"),
        ("a = {value = 1, tag = 'guess'}", lambda t: t.number("a"), "a.tag = 'guess': must be one of spec"),
        ("a = {value = 1, source = 3}", lambda t: t.number("a"), "a.source = 3: expected a text"),
        ("a = 8.5", lambda t: t.integer("a"), "a = 8.5: expected a whole number"),
        ("a = '8'", lambda t: t.integer("a"), "a = '8': expected a whole number"),
        ("a = 0", lambda t: t.integer("a", minimum=1), "a = 0: must be at least 1"),
        ("a = 3", lambda t: t.text("a"), "a = 3: expected a text"),
        ("a = ' '", lambda t: t.text("a"), "a = ' ': expected a text"),
        ("a = 'mal'", lambda t: t.text("a", choices=["gqa", "mla"]), "must be one of gqa, mla; did you mean"),
        ("a = 1", lambda t: t.flag("a"), "a = 1: expected true or false"),
        ("a = ['x', 1]", lambda t: t.texts("a"), "a = ['x', 1]: expected a list of texts"),
        ("a = []", lambda t: t.numbers("a"), "a = []: expected a list that is not empty"),
        ("a = [1, 'x']", lambda t: t.numbers("a"), "a = 'x': expected a number"),
        ("a = [[1, 2], [3]]", lambda t: t.rows("a"), "a: rows of different lengths: 2, 1"),
        ("a = 1", lambda t: t.table("a"), "a = 1: expected a table"),
        ("a = [1]", lambda t: t.tables("a"), "a[0] = 1: expected a table"),
    ],
)
def test_a_wrong_value_is_one_line_with_file_key_and_value(
    tmp_path: Path, text: str, read: Callable[[Table], object], says: str
) -> None:
    t = table(tmp_path, text)
    line = line_of(lambda: read(t))
    assert line.startswith(f"{tmp_path / 'machine.toml'}: ")
    assert says in line


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert line_of(lambda: Table.load(tmp_path / "no.toml")) == f"{tmp_path / 'no.toml'}: no such file"
    assert "is a folder" in line_of(lambda: Table.load(tmp_path))
    assert "not a TOML file" in line_of(lambda: table(tmp_path, "a = = 1"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "not a TOML file" in line_of(lambda: Table.load(tmp_path / "binary.toml"))
    deep = "a = " + "[" * 5000
    assert "not a TOML file" in line_of(lambda: table(tmp_path, deep))


def test_a_long_value_is_shortened_and_a_key_with_a_newline_stays_on_its_line(tmp_path: Path) -> None:
    t = table(tmp_path, f'a = "{"x" * 500}"\n"b\\nc" = -1\n')
    assert len(line_of(lambda: t.number("a"))) < 250
    assert "b\\nc" in line_of(lambda: t.number("b\nc", above=0))
