"""Guards of the architecture; each is shown to fail on a tree that breaks it."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("hardware", "costmodel", "search")
HEAVY = ("numpy", "ortools", "pandas", "pyarrow")
ALLOWED = {
    "numpy": ("costmodel/", "search/"),
    "ortools": ("search/skeletons.py", "search/stages.py", "search/why.py"),
    "pandas": ("costmodel/calibration/", "search/"),
    "distributed": ("search/sweep/executors.py",),
    "pyarrow": ("search/frontier.py", "search/sweep/file.py"),
    "scipy": ("costmodel/calibration/",),
}


def broken_imports(root: Path) -> list[str]:
    """Imports that go upward, are relative, or use a package outside of the files that may."""
    return [
        f"{path.relative_to(root)} imports {name}"
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
        for name in imports(path)
        if not allowed(path.relative_to(root).as_posix(), name)
    ]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def allowed(path: str, name: str) -> bool:
    package, top = path.split("/")[0], name.split(".")[0]
    if top in PACKAGES:
        return PACKAGES.index(top) <= PACKAGES.index(package)
    if top in ALLOWED:
        return path.startswith(ALLOWED[top])
    return top in sys.stdlib_module_names


def loaded_by(*argv: str, before: str = "", names: tuple[str, ...] = HEAVY) -> set[str]:
    """The heavy packages, or the modules of `names`, that a fresh interpreter holds after running one command."""
    program = (
        f"import sys\n{before}\nfrom search.cli import main\n"
        f"try: main({list(argv)!r})\nexcept SystemExit: pass\n"
        f"print(*sorted(set({names!r}) & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stderr.split())


def unpacked_files(root: Path, package_data: dict[str, list[str]]) -> list[str]:
    """Files beside the code that the wheel would leave out."""
    return [
        str(path.relative_to(root))
        for package in PACKAGES
        for path in sorted((root / package).rglob("*"))
        if path.is_file() and path.suffix not in (".py", ".pyc")
        if not any(path in (root / package).glob(pattern) for pattern in package_data.get(package, []))
    ]


def test_imports_go_downward() -> None:
    assert broken_imports(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("hardware/gpu.py", "import numpy"),
        ("hardware/gpu.py", "from costmodel.model import Model"),
        ("costmodel/memory.py", "def f():\n    import search.engine"),
        ("costmodel/memory.py", "from ortools.sat.python import cp_model"),
        ("search/engine.py", "import pyarrow.parquet"),
        ("search/engine.py", "from . import pareto"),
        ("search/cli.py", "import requests"),
    ],
)
def test_the_import_guard_can_fail(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_text(line)
    assert len(broken_imports(tmp_path)) == 1


@pytest.mark.parametrize(
    "argv",
    [
        *(f"{command} --help".split() for command in ("", "search", "explain", "why", "plan")),
        ["--version"],
        ["search", "--gpus", "0"],
    ],
)
def test_help_loads_nothing_heavy(argv: list[str]) -> None:
    assert not loaded_by(*argv) & set(HEAVY)


@pytest.mark.parametrize("kind", ["clusters", "gpus", "models", "profiles", "spaces"])
def test_list_loads_nothing_heavy(kind: str) -> None:
    assert not loaded_by("list", kind) & set(HEAVY)


def test_a_search_that_writes_its_frontier_needs_no_pandas(tmp_path: Path) -> None:
    argv = f"search llama-3.1-8b dgx-h100 --gpus 8 --tp 8 -o {tmp_path}/frontier.parquet".split()
    assert loaded_by(*argv) & set(HEAVY) == {"numpy", "ortools", "pyarrow"}


@pytest.mark.parametrize("balance", [[], ["--balance"]])
def test_a_search_loads_what_balances_stages_on_demand(tmp_path: Path, balance: list[str]) -> None:
    """And even then without pandas, which takes as long to load as all the rest."""
    argv = f"search llama-3.1-8b dgx-h100 --gpus 8 --tp 8 -o {tmp_path}/frontier.parquet".split()
    names = ("search.balance", "search.stages", "search.stage_choices", "ortools.sat.python.cp_model", "pandas")
    assert loaded_by(*argv, *balance, names=names) & set(names) == (set(names[:3]) if balance else set())


@pytest.mark.parametrize("option", ["--help", "-h", "--version"])
def test_the_help_and_the_version_need_no_parser(option: str) -> None:
    program = f"import sys; sys.argv[1:] = [{option!r}]; from search.__main__ import run; code = run(); "
    told = "print(code, *sorted({'argparse', 'dataclasses', 'json', 'pathlib', 're'} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-S", "-c", program + told], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "0"
    assert run.stdout.startswith("meshscout " if option == "--version" else "usage: meshscout ")


def test_the_load_guard_can_fail() -> None:
    assert "numpy" in loaded_by("--help", before="import numpy")


def test_every_data_file_is_packed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert unpacked_files(ROOT, settings["package-data"]) == []


def test_the_packing_guard_can_fail(tmp_path: Path) -> None:
    (tmp_path / "search" / "spaces").mkdir(parents=True)
    (tmp_path / "search" / "spaces" / "new.toml").touch()
    assert unpacked_files(tmp_path, {"search": ["*.toml"]}) == ["search/spaces/new.toml"]
    assert unpacked_files(tmp_path, {"search": ["spaces/*.toml"]}) == []
