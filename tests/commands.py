"""What a command did, for tests that run one."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """Exit code and what was printed."""

    code: int
    out: str
    err: str
