"""The command line: what was typed -> the command, its signals and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hardware.errors import InfeasibleError, InputError
from search.commands import (
    INFEASIBLE,
    run_calibrate,
    run_explain,
    run_list,
    run_plan,
    run_report,
    run_search,
    run_sweep,
    run_validate,
    run_why,
)
from search.help import COMMANDS, help_text
from search.options import (
    Parser,
    add_calibrate,
    add_explain,
    add_list,
    add_plan,
    add_report,
    add_search,
    add_validate,
    add_why,
    show_examples,
)
from search.sweep.options import add_sweep
from search.terminal import Signals, open_streams, say, signals
from search.typed import as_typed
from search.version import VERSION

FAULT, USAGE, STOPPED = 1, 2, 128
MODULES = {
    "run_search": (
        "search.defaults",
        "search.engine",
        "search.explain",
        "search.frontier",
        "search.inputs",
        "search.table",
    ),
    "run_explain": ("search.balance", "search.explain", "search.inputs", "search.narrative"),
    "run_why": ("search.inputs", "search.table", "search.why"),
    "run_plan": ("search.inputs", "search.plan", "search.table"),
    "run_sweep": ("search.sweep.command",),
    "run_report": ("search.report.page",),
    "run_validate": ("search.measured",),
    "run_calibrate": ("search.calibrated",),
}
"""What is heavy in a command: loaded before it starts, as a signal must not meet a module that is half loaded."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, 128 + the signal that stopped it (Ctrl-C: 130).

    A fault of ours escapes, which Python turns into exit code 1.
    """
    open_streams()
    with signals() as stop:
        try:
            code = _run(argv, stop)
        except BaseException as error:
            if not stop.number and not isinstance(error, KeyboardInterrupt):
                raise
            return STOPPED + (stop.number or 2)
        return STOPPED + stop.number if stop.number else code


def _run(argv: Sequence[str] | None, stop: Signals) -> int:
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments = _parser(words[0] if words else None).parse_args(words)
        stages = ("search.balance",) if getattr(arguments, "balance", False) else ()
        stop.load(*MODULES.get(arguments.run.__name__, ()), *stages)
        return int(arguments.run(arguments))
    except InputError as error:
        return _fail(as_typed(" ".join(str(error).split())), USAGE)
    except InfeasibleError as error:
        return _fail(str(error), INFEASIBLE)
    except OSError as error:
        return _fail(str(error), FAULT)


def _fail(message: str, code: int) -> int:
    say(f"error: {message}")
    return code


class _Main(Parser):
    def format_help(self) -> str:
        return help_text()


def _parser(only: str | None = None) -> Parser:
    """The parser of all commands, or of one if `only` is one."""
    parser = _Main(prog="meshscout")
    parser.add_argument("--version", action="version", version=f"meshscout {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name, add, run in (
        ("search", add_search, run_search),
        ("explain", add_explain, run_explain),
        ("why", add_why, run_why),
        ("plan", add_plan, run_plan),
        ("sweep", add_sweep, run_sweep),
        ("report", add_report, run_report),
        ("validate", add_validate, run_validate),
        ("calibrate", add_calibrate, run_calibrate),
        ("list", add_list, run_list),
    ):
        if only in COMMANDS and only != name:
            continue
        command = commands.add_parser(name)
        add(command)
        show_examples(command, name)
        command.set_defaults(run=run)
    return parser
