"""Two commits timed in turn in one job: the same benchmarks, each commit's own packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Compared:
    """A measure's least ratio on two commits."""

    name: str
    base: float
    head: float

    @property
    def slower(self) -> float:
        """By how much the second is slower, percent; below 0 it is faster."""
        return 100.0 * (self.head / self.base - 1.0)


def compare(base: str, head: str, names: Sequence[str], rounds: int) -> list[Compared]:
    """The benchmarks of this checkout, run on the packages of two commits, `rounds` processes of each in turn.

    What the first cannot run is left out; what the second alone cannot ends all with its error.
    """
    least: tuple[dict[str, float], dict[str, float]] = ({}, {})
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "benchmarks", Path(folder) / "own" / "benchmarks")
        with _worktree(base, Path(folder) / "base") as one, _worktree(head, Path(folder) / "head") as two:
            for _ in range(rounds):
                for tree, found in zip((one, two), least, strict=True):
                    for name, ratio in _ratios(Path(folder) / "own", tree, names):
                        found[name] = min(ratio, found.get(name, ratio))
    lost = [name for name in least[0] if name not in least[1]]
    if lost:
        raise SystemExit(f"{head} cannot run what {base} can: {', '.join(lost)}")
    return [Compared(name, ratio, least[1][name]) for name, ratio in least[0].items()]


def table(found: Sequence[Compared], limit: float) -> str:
    """The ratios side by side; what is slower by more than `limit` percent is marked."""
    lines = [f"{'measure':<26} {'base':>10} {'head':>10} {'change':>9}"]
    for one in found:
        mark = "  regression" if one.slower > limit else ""
        lines.append(f"{one.name:<26} {one.base:>10.3f} {one.head:>10.3f} {one.slower:>+8.1f}%{mark}")
    return "\n".join(lines)


@contextmanager
def _worktree(commit: str, folder: Path) -> Iterator[Path]:
    _git("worktree", "add", "--detach", "--quiet", str(folder), commit)
    try:
        yield folder
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")


def _ratios(own: Path, tree: Path, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Name and ratio of each measure in one process; a benchmark that the commit cannot run is told and left out."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(own), str(tree)])}
    for name in names:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", "run", name, "--rounds", "1", "--json"],
            capture_output=True, text=True, cwd=own, env=environment,
        )  # fmt: skip
        if done.returncode:
            print(f"{tree.name} cannot run {name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            continue
        yield from ((one["name"], one["ratio"]) for one in json.loads(done.stdout))
