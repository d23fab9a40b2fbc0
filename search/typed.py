"""Errors and commands in the words of the command line: what was typed, and what to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from search.options import Parser, add_axes, add_job


def _job() -> Parser:
    """A parser of the job and the axes alone."""
    parser = Parser()
    add_job(parser, required=False)
    add_axes(parser, many=True)
    return parser


def as_typed(message: str) -> str:
    """An error that begins with the names of inputs, or says that one is unknown, with their options in place."""
    options = {action.dest: action.option_strings[-1] for action in _job()._actions if action.option_strings}
    options |= {"zero_stage": "--zero", "model_type": options["family"]}
    unknown = re.match(r"unknown (\w+) ", message)
    if unknown and unknown[1] in options:
        return f"{options[unknown[1]]}: {message}"
    head = re.match(r"\w+ [^ ]+( x \w+ [^ ]+)*", message)
    if head is None:
        return message
    typed = re.sub(r"(^| x )(\w+)", lambda found: f"{found[1]}{options.get(found[2], found[2])}", head[0])
    return typed + message[head.end() :]


def command_line(command: str, given: Mapping[str, object]) -> str:
    """What to type for another command on the same job and axes; `given` holds arguments by their names."""
    usual = vars(_job().parse_args([]))
    words = ["meshscout", command, str(given["model"]), str(given["cluster"])]
    for name, default in usual.items():
        value = given.get(name, default)
        if value == default or name in ("model", "cluster", "given"):
            continue
        words.append("--as" if name == "family" else f"--{name.replace('_', '-')}")
        if value is not True:
            parts = value if isinstance(value, tuple | list) else (value,)
            words.append(",".join(f"{part:.15g}" if isinstance(part, float) else str(part) for part in parts))
    return shlex.join(words)
