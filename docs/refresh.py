"""Run the commands of a page again and put what they print below them: `python docs/refresh.py docs/procurement.md`.

A block of a page that starts with `$ meshscout` holds one command and its output. The commands of a page share a
folder, which is empty at the start. Output that changes fails a test; then run this and read the difference.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from search import cli

BLOCK = re.compile(
    r"^```console\n\$ meshscout (?P<command>(?:[^\n]*\\\n)*[^\n]*)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)


def refreshed(text: str) -> str:
    """The page with the output of its commands as they print it now."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return BLOCK.sub(_block, text)


def _block(found: re.Match[str]) -> str:
    command = found["command"]
    return f"```console\n$ meshscout {command}\n{output(shlex.split(command.replace(chr(92) + chr(10), ' ')))}```"


def output(argv: list[str]) -> str:
    """What a command prints, talk included."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        cli.main(argv)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONIOENCODING", "utf-8")
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(refreshed(page.read_text()))
