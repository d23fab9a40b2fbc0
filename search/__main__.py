"""`python -m search` is the `meshscout` command."""

import os
import sys

DONE, INTERRUPTED = 0, 130


def run() -> int:
    """Run the command as a process: Ctrl-C is quiet from its first import to its last step."""
    try:
        return DONE if _answered() else _command()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def _answered() -> bool:
    """Whether the help or the version was asked for and is printed; they need no more than an interpreter."""
    from search.help import answer

    text = answer(sys.argv[1:])
    if not text or sys.stdout is None:
        return False
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, UnicodeError):
        return False
    return True


def _command() -> int:
    import signal
    from contextlib import suppress

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
    from search.cli import main

    code = main()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # Arrow's threads may abort an interpreter that ends soon after a read


if __name__ == "__main__":
    sys.exit(run())
