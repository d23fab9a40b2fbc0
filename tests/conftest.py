"""What holds for every test."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> Iterator[None]:
    """Ctrl-C reaches Python in the tests' process and in those that it starts, also where a shell in the background
    had it ignored."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)
