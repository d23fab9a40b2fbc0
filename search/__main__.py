"""`python -m search` is the `meshscout` command."""

import os
import signal
import sys
from types import FrameType


def _leave(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


def run() -> int:
    """Run the command as a process: Ctrl-C is quiet from its first import to its last step."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from search.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(run())
