"""The journal of a sweep: each result on disk as soon as it is there, so that what was done is never done again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hardware.errors import InputError
from search.sweep.unit import Result


class Journal:
    """Results by the unit's key, a line of JSON each; a line that a kill cut short is dropped."""

    def __init__(self, path: Path, done: dict[str, Result], size: int) -> None:
        self.path, self.done, self._size = path, done, size

    def add(self, key: str, result: Result) -> None:
        """Keep a result; it is on disk when this returns."""
        line = json.dumps({"key": key, "result": result}).encode() + b"\n"
        with open(self.path, "r+b") as file:
            file.seek(self._size)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._size += len(line)
        self.done[key] = result


@contextmanager
def journal(output: Path, *, resume: bool) -> Iterator[Journal]:
    """The journal beside the output file. What it holds stays where the sweep is stopped, and goes when the block ends.

    Raises InputError if one is there and the sweep is not to be resumed, or if another process writes it.
    """
    path = output.with_name(f"{output.name}.journal")
    if path.exists() and not resume:
        raise InputError(f"{path}: a sweep that was stopped left it; --resume goes on from it, or delete it")
    try:
        file = open(path, "a+b")  # noqa: SIM115 (held open: its lock ends with it)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{path}: another sweep is writing it") from None
        done, size = _read(path)
        os.truncate(path, size)
        kept = Journal(path, done, size)
        try:
            yield kept
        except BaseException:
            if not kept.done:
                path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, Result], int]:
    """The results of whole lines, and where they end."""
    done: dict[str, Result] = {}
    size = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            entry = json.loads(line)
            done[entry["key"]] = entry["result"]
        except (ValueError, LookupError, TypeError):
            break
        if not line.endswith(b"\n"):
            break
        size += len(line)
    return done, size
