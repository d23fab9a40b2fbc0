"""The README is true: its commands run, and its tree is the tree."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from search.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FOLDERS = ("hardware", "costmodel", "search", "benchmarks")


def commands(text: str) -> list[list[str]]:
    """The arguments of every `meshscout ...` in the bash blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    calls = re.findall(r"(?:^|[ /])meshscout (.+)$", "".join(blocks), re.MULTILINE)
    return [shlex.split(call, comments=True) for call in calls]


def listed_files(text: str) -> list[str]:
    """The files and folders of the tree, from its top to its bottom."""
    block = re.search(r"^## The tree\n.*?^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found, folder = [], ""
    for line in filter(None, block[1].splitlines() if block else []):
        name = line.split()[0]
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
        elif folder:
            found.append(folder + name)
    return found


def modules(root: Path) -> set[str]:
    """What the tree must list: every module, and every folder of data."""
    found = set()
    for folder in FOLDERS:
        for path in (root / folder).iterdir():
            if path.suffix == ".py" and path.name not in ("__init__.py", "__main__.py"):
                found.add(f"{folder}/{path.name}")
            elif path.is_dir() and path.name != "__pycache__":
                found.add(f"{folder}/{path.name}/")
    return found


def downward(text: str, root: Path) -> list[str]:
    """Imports of what stands further down in the tree."""
    places = {name: place for place, name in enumerate(listed_files(text))}
    found = []
    for name, place in places.items():
        for path in [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py")):
            for module in imported(path):
                folder = "/".join(module.split(".")[:2])
                if any(places.get(f"{folder}{end}", 0) > place for end in (".py", "/")):
                    found.append(f"{name} imports {module}")
    return found


def imported(path: Path) -> set[str]:
    """The modules that a file imports, `from package import module` among them."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def blocks(kind: str) -> list[str]:
    """The README's blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_commands_run_and_the_frontier_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its TOML files and its Python included."""
    monkeypatch.chdir(tmp_path)
    names = re.findall(r"`(\w+\.toml)`", README)
    for name, text in zip(names, blocks("toml"), strict=True):
        Path(name).write_text(text)
    assert len(commands(README)) >= 2
    for arguments in commands(README):
        assert main(arguments) == 0, arguments
    capsys.readouterr()
    for code in blocks("python"):
        exec(code, {})
    assert capsys.readouterr().out.startswith("B ")


def test_a_wrong_command_is_noticed() -> None:
    (arguments,) = commands("```bash\n.venv/bin/meshscout search no-such-model dgx-h100 --gpus 8\n```\n")
    assert main(arguments) == 2


def test_the_tree_is_the_tree() -> None:
    listed = listed_files(README)
    assert set(listed) == modules(ROOT)
    assert len(set(listed)) == len(listed)


def test_imports_go_upward_in_the_tree() -> None:
    assert downward(README, ROOT) == []


def test_an_import_that_goes_down_the_tree_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "search" / "lower").mkdir(parents=True)
    (tmp_path / "search" / "lower" / "each.py").touch()
    (tmp_path / "search" / "upper.py").write_text("def late():\n    from search.lower.each import thing\n")
    tree = "## The tree\n\n```text\nsearch/\n    {}\n    {}\n```\n"
    assert downward(tree.format("upper.py", "lower/"), tmp_path) == ["search/upper.py imports search.lower.each.thing"]
    assert downward(tree.format("lower/", "upper.py"), tmp_path) == []


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "search" / "new.py").touch()
    text = "## The tree\n\n```text\nsearch/\n    old.py    what it does\n```\n"
    assert listed_files(text) == ["search/old.py"]
    assert modules(tmp_path) == {"search/new.py"}
