"""Make the intervals, and every page and picture here, again: `python docs/make.py`; needs the extra `dev`.

The intervals, for which each source is left out of the fits, take some minutes on all cores; `--pages` leaves them as
they are, which takes one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FRONTIER = ("search", "llama-3.1-70b", "dgx-h100", "--gpus", "64")
"""The search that README's picture shows."""


def run(*arguments: str | Path) -> None:
    """One command of this project's Python, from its root; ends all if it fails."""
    print(" ".join(map(str, arguments)), file=sys.stderr, flush=True)
    here = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    call = [sys.executable, *map(str, arguments)]
    subprocess.run(call, cwd=HERE.parent, env=here, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """The order matters: pages quote what is made before them."""
    if "--pages" not in sys.argv:
        run(HERE / "make_intervals.py")
    run(HERE / "make_accuracy.py")
    run(HERE / "make_worked_examples.py")
    run(HERE / "refresh.py", HERE / "procurement.md", HERE / "pipelines.md")
    with tempfile.TemporaryDirectory() as folder:
        frontier = Path(folder) / "frontier.parquet"
        run("-m", "search", *FRONTIER, "-o", frontier)
        run(HERE / "draw_frontier.py", frontier, HERE / "frontier.svg")
    run(HERE / "draw_performance.py")


if __name__ == "__main__":
    main()
