"""`python -m benchmarks run [NAME ...]` runs benchmarks; `compare BASE HEAD` runs them on two commits in turn."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from benchmarks import (
    bench_billion,
    bench_growth,
    bench_import,
    bench_pareto,
    bench_score,
    bench_search,
    bench_skeletons,
    bench_sweep,
)
from benchmarks.compare import compare, table
from benchmarks.history import append
from benchmarks.measure import Measure

BENCHMARKS = {
    "import": bench_import.run,
    "skeletons": bench_skeletons.run,
    "score": bench_score.run,
    "pareto": bench_pareto.run,
    "search": bench_search.run,
    "growth": bench_growth.run,
    "sweep": bench_sweep.run,
    "billion": bench_billion.run,
}
USUAL = [name for name in BENCHMARKS if name != "billion"]
"""Those that run where none is named: the others take minutes."""
REGRESSION = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; exit code 4 if a comparison finds a regression."""
    arguments = _parser().parse_args(argv)
    if arguments.command == "compare":
        found = compare(arguments.base, arguments.head, arguments.only or USUAL, arguments.rounds)
        print(table(found, arguments.fail_over))
        return REGRESSION if any(one.slower > arguments.fail_over for one in found) else 0
    measures = []
    for measure in _run(arguments.names or USUAL, arguments.rounds):
        measures.append(measure)
        if not arguments.json:
            print(measure, flush=True)
    if arguments.json:
        print(json.dumps([measure.record() for measure in measures], indent=2))
    if arguments.record:
        append(measures)
    return 0


def _run(names: Sequence[str], rounds: int) -> Iterator[Measure]:
    for name in names:
        yield from BENCHMARKS[name](rounds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="time this checkout (without a word: all but billion)")
    run.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; default: all but billion")
    run.add_argument("--rounds", type=int, default=5, help="the least of so many counts (5)")
    run.add_argument("--json", action="store_true", help="print JSON")
    run.add_argument("--record", action="store_true", help="append the ratios to benchmarks/history.csv")
    pair = commands.add_parser("compare", help="time two commits in turn; exit 4 on a regression")
    pair.add_argument("base", help="commit, branch or tag")
    pair.add_argument("head", help="the one that may be slower")
    pair.add_argument("--only", nargs="+", choices=BENCHMARKS, help="default: all but billion")
    pair.add_argument("--rounds", type=int, default=3, help="processes of each commit, in turn (3)")
    pair.add_argument("--fail-over", type=float, default=30.0, metavar="PERCENT", help="rise that fails (30)")
    parser.set_defaults(command="run", names=[], rounds=5, json=False, record=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
