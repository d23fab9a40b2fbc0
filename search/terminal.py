"""What a command has around it: signals that stop it, streams that may be closed, a line that shows progress."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from types import FrameType

from hardware.errors import InputError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 0.5
"""Seconds that a command has to clean up after one signal before the next stops that too."""


class Stopped(KeyboardInterrupt):
    """Raised where a signal that ends the command arrives."""


class Signals:
    """Which signal arrived, 0 for none: libraries may swallow what a handler raises, or make another error of it."""

    number: int = 0
    held: bool = False
    deaf_until: float = 0.0

    def arrive(self, number: int, _: FrameType | None) -> None:
        self.number = self.number or number
        if not self.held and time.monotonic() >= self.deaf_until:
            self.deaf_until = time.monotonic() + PATIENCE
            raise Stopped

    def load(self, *modules: str) -> None:
        """Import modules; a signal waits for their end, as compiled ones lose it or fail with an error of theirs."""
        self.held = True
        try:
            for module in modules:
                if not self.number:
                    import_module(module)
        finally:
            self.held = False
        if self.number:
            raise Stopped


@contextmanager
def signals() -> Iterator[Signals]:
    """SIGINT and SIGTERM raise Stopped within the block; not where ignored (nohup), nor off the main thread."""
    caught = Signals()
    usual = {number: signal.getsignal(number) for number in SIGNALS}
    mine = [number for number, handler in usual.items() if handler not in (signal.SIG_IGN, None)]
    if threading.current_thread() is not threading.main_thread():
        mine = []
    try:
        for number in mine:
            signal.signal(number, caught.arrive)
        yield caught
    finally:
        for number in mine:
            signal.signal(number, usual[number])


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C waits for the end of the block; a thread or a process that is started within never gets one."""
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def end_with_parent() -> None:
    """This process, which multiprocessing started, ends as soon as its parent is gone, however that ended."""
    from multiprocessing import parent_process

    def follow() -> None:
        if parent := parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def open_streams() -> None:
    """Closed standard streams lead to nowhere: else the next file that is opened would take their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _to(1)
    if sys.stderr is None:
        sys.stderr = _to(2)
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def _to(number: int) -> TextIOWrapper:
    return TextIOWrapper(os.fdopen(number, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")


def put(text: str) -> None:
    """Results go to stdout. A reader that has left (| head) stops no command and changes no exit code.

    Raises InputError if stdout cannot be written, as where a disk is full.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        with suppress(OSError):  # what is left in the buffer goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise InputError(f"standard output: cannot be written: {error.strerror}") from None


def say(text: str) -> None:
    """Talk goes to stderr; one that takes nothing (a full disk, a closed pipe) stops no command."""
    with suppress(OSError):
        print(f"meshscout: {text}", file=sys.stderr, flush=True)


@contextmanager
def progress(what: str = "skeletons") -> Iterator[Callable[[int, int], None] | None]:
    """Shows how far the work is, in `what`, and the time left at its mean pace, on a terminal that can erase a line
    only; an unfinished line is ended."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield None
        return
    unfinished, start = False, time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal unfinished
        unfinished = done < total
        left = (time.monotonic() - start) * (total - done) / max(done, 1)
        write(f"\r\033[K{done:,} of {total:,} {what}, {left:.0f} s left" if unfinished else "\r\033[K")

    def write(text: str) -> None:
        with suppress(OSError):
            print(text, end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if unfinished:
            write("\n")
