"""The benchmarks run, and a comparison finds a planted slowdown; how fast is for `python -m benchmarks` to say."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import bench_pareto
from benchmarks.__main__ import main
from benchmarks.compare import Compared, table
from benchmarks.history import COLUMNS, FILE, append

ROOT = Path(__file__).parents[1]
PLANTED = """

_fast = Frontier.add


def _slow(self, points):
    for _ in range(9):
        _fast(self, points)


Frontier.add = _slow
"""


def git(*arguments: str, cwd: Path) -> str:
    own = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    return subprocess.run(["git", *own, *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


def test_a_measure_tells_its_work_and_its_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pareto", "--rounds", "1", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["name"], found["work"], found["unit"]) == ("frontier", 16 * 65_536, "points")
    assert found["ratio"] == found["seconds"][0] / found["reference"][0] > 0


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not an archive of it")
def test_a_planted_slowdown_is_found(tmp_path: Path) -> None:
    git("clone", "--quiet", str(ROOT), "copy", cwd=tmp_path)
    copy = tmp_path / "copy"
    for folder in ("benchmarks", "search", "costmodel", "hardware"):
        subprocess.run(["cp", "-r", str(ROOT / folder), str(copy)], check=True)
    git("add", "-A", cwd=copy)
    git("commit", "--quiet", "--allow-empty", "-m", "as it is", cwd=copy)
    file = copy / "search" / "pareto.py"
    file.write_text(file.read_text() + PLANTED)
    git("commit", "--quiet", "-am", "slow", cwd=copy)

    def compared(base: str, head: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "benchmarks", "compare", base, head, "--only", "pareto", "--rounds", "2"]
        return subprocess.run(argv, cwd=copy, capture_output=True, text=True)

    slow, fast = compared("HEAD~1", "HEAD"), compared("HEAD", "HEAD~1")
    assert (slow.returncode, fast.returncode) == (4, 0), slow.stderr + fast.stderr
    assert "regression" in slow.stdout
    assert "regression" not in fast.stdout
    assert git("worktree", "list", cwd=copy).count("\n") == 0


def test_what_is_slower_than_the_limit_is_marked() -> None:
    lines = table([Compared("a", 1.0, 1.25), Compared("b", 1.0, 1.35)], 30.0).splitlines()
    assert lines[1].endswith("+25.0%")
    assert lines[2].endswith("+35.0%  regression")


def test_the_history_grows_by_a_line_a_measure(tmp_path: Path) -> None:
    measures = list(bench_pareto.run(1))
    append(measures, tmp_path / "history.csv")
    append(measures, tmp_path / "history.csv")
    for file, known in ((tmp_path / "history.csv", {"frontier"}), (FILE, {"help", "frontier", "growth, scored"})):
        header, *rows = csv.reader(file.read_text().splitlines())
        assert header == list(COLUMNS)
        assert {len(row) for row in rows} == {len(COLUMNS)}
        assert known <= {row[header.index("measure")] for row in rows}
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 3
