"""The journal of a sweep: each result on disk as soon as it is there, so that what was done is never done again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from hardware.errors import InputError
from search.sweep.unit import Result
from search.terminal import say


class Journal:
    """Results by the unit's key, a line of JSON each; a line that a kill cut short is dropped."""

    def __init__(self, path: Path, file: BinaryIO, done: dict[str, Result], size: int) -> None:
        self.path, self.done, self._file, self._size = path, done, file, size

    def add(self, key: str, result: Result) -> None:
        """Keep a result; it is on disk when this returns. Raises InputError if the disk does not take it."""
        line = json.dumps({"key": key, "result": result}).encode() + b"\n"
        try:
            self._file.seek(self._size)
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None
        self._size += len(line)
        self.done[key] = result


@contextmanager
def journal(output: Path, *, resume: bool) -> Iterator[Journal]:
    """The journal beside the output file. What it holds stays where the sweep is stopped, and goes when the block ends.

    Raises InputError if one is there and the sweep is not to be resumed, or if another process writes it.
    """
    path = output.with_name(f"{output.name}.journal")
    left = path.exists()
    try:
        file = open(path, "r+b" if left else "x+b")  # noqa: SIM115 (held open: its lock ends with it)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{path}: another sweep is writing it") from None
        if left and not resume:
            raise InputError(f"{path}: a sweep that was stopped left it; --resume goes on from it, or delete it")
        done, size = _read(file.read())
        if resume and not left:
            say(f"{path}: there is none to resume; the sweep starts anew")
        if left:
            say(f"{path}: {len(done):,} searches are done already")
        file.truncate(size)
        kept = Journal(path, file, done, size)
        try:
            yield kept
        except BaseException:
            if kept.done:
                say(f"what is done is kept in {path}: --resume goes on from it")
            else:
                path.unlink(missing_ok=True)
            raise
        path.unlink(missing_ok=True)


def _read(content: bytes) -> tuple[dict[str, Result], int]:
    """The results of whole lines, and where they end."""
    done: dict[str, Result] = {}
    size = 0
    for line in content.splitlines(keepends=True):
        try:
            entry = json.loads(line)
            key, result = entry["key"], entry["result"]
            if not (line.endswith(b"\n") and isinstance(result["rows"], list) and isinstance(result["reason"], str)):
                break
        except (ValueError, LookupError, TypeError):
            break
        done[key] = result
        size += len(line)
    return done, size
