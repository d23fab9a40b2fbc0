"""What a benchmark measures: seconds and memory beside its work, as a ratio to a reference timed in the same run.

A shared machine changes its speed from minute to minute; the ratio of two times taken in turn does so much less. Times
are the processor's, threads and child processes added up, so that others who wait for it do not count; the wall's stand
beside them. Of several rounds the least counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

ROWS = 65_536


class Seconds(NamedTuple):
    """Of the processor, and of the clock on the wall."""

    cpu: float
    wall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure: `work` in units of `unit`, its seconds, those of the reference, peak memory in bytes (0: not taken).

    `ratio`, processor seconds over the reference's, is what to compare between versions.
    """

    name: str
    work: int
    unit: str
    seconds: Seconds
    reference: Seconds
    memory: int = 0

    @property
    def ratio(self) -> float:
        return self.seconds.cpu / self.reference.cpu

    def record(self) -> dict[str, object]:
        """As plain values, the ratio among them."""
        return asdict(self) | {"ratio": self.ratio}

    def __str__(self) -> str:
        rate = f"{self.work / self.seconds.cpu:,.0f} {self.unit}/s" if self.work > 1 else ""
        memory = f"{self.memory / 1e6:,.0f} MB" if self.memory else ""
        times = f"{self.seconds.cpu:>9.4f} s, wall {self.seconds.wall:.4f} s"
        return f"{self.name:<24} {times} {rate:>25} {memory:>8}   ratio {self.ratio:,.3f}"


def in_turn(rounds: int, *calls: Callable[[], object]) -> list[Seconds]:
    """The least seconds of each call, all of them in every round."""
    times = [[timed(call) for call in calls] for _ in range(rounds)]
    return [Seconds(*map(min, zip(*column, strict=True))) for column in zip(*times, strict=True)]


def timed(call: Callable[[], object]) -> Seconds:
    """What a call takes, with its threads and the processes that it waits for."""
    cpu, wall = _cpu(), perf_counter()
    call()
    return Seconds(_cpu() - cpu, perf_counter() - wall)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def kernel() -> Callable[[], object]:
    """The reference: 100 multiply-adds on a float64 column of ROWS."""
    column = np.linspace(1.0, 2.0, ROWS)

    def run() -> object:
        total = np.zeros_like(column)
        for _ in range(100):
            total = total * column + column
        return total

    return run


def process(arguments: Sequence[str], folder: Path | None = None) -> Callable[[], object]:
    """A Python process with these arguments, its output thrown away. Raises RuntimeError if it fails."""

    def run() -> object:
        done = subprocess.run([sys.executable, *arguments], capture_output=True, cwd=folder, env=_environment())
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stderr.decode()[-2000:]}")
        return done

    return run


def peak_memory(arguments: Sequence[str], folder: Path) -> int:
    """Peak resident memory in bytes of a Python process with these arguments."""
    program = "import resource, subprocess, sys; subprocess.run([sys.executable, *sys.argv[1:]], capture_output=True); "
    told = "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run(
        [sys.executable, "-c", program + told, *arguments],
        capture_output=True,
        cwd=folder,
        env=_environment(),
        check=True,
    )
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


def _environment() -> dict[str, str]:
    """This process's, with the same packages found first, and bytecode kept as an installation has it."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": path}
