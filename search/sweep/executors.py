"""Where units run: threads, processes or a Dask cluster; each is a concurrent.futures Executor."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import AbstractContextManager, contextmanager
from threading import Thread

from hardware.errors import InputError
from search.sweep.journal import Journal
from search.sweep.unit import Unit, run
from search.terminal import end_with_parent, held, say

TRIES = 4
"""Times that a pool which lost a worker is opened again."""
GRACE = 1.0
"""Seconds for a pool to free its semaphores: one whose worker was killed amid a result waits for the rest of it."""
Opened = Callable[[], AbstractContextManager[Executor]]


@contextmanager
def threads(number: int) -> Iterator[Executor]:
    """Threads of this process, a unit each."""
    pool = ThreadPoolExecutor(number)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def processes(number: int) -> Iterator[Executor]:
    """Processes of this machine: they end with the block, whatever they are at, and with this process."""
    pool = ProcessPoolExecutor(number, multiprocessing.get_context("spawn"), end_with_parent)
    try:
        yield pool
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        closing = Thread(target=pool.shutdown, kwargs={"cancel_futures": True}, daemon=True)
        closing.start()
        closing.join(GRACE)


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """The workers of a Dask scheduler at `address` (tcp://host:8786), which must have meshscout installed.

    Raises InputError if Dask is not installed or nobody answers.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask needs Dask: pip install 'meshscout[dask]'") from None
    try:
        client = Client(address, timeout="10s", set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(f"--dask {address}: no scheduler answers: {' '.join(str(error).split())}") from None
    with client:
        yield client.get_executor(retries=TRIES)  # type: ignore[no-untyped-call]


def run_all(
    units: Sequence[Unit], opened: Opened, journal: Journal, inner: int, progress: Callable[[int, int], None] | None
) -> None:
    """Run the units that the journal lacks, on `inner` threads each; what a dead worker was at is done again."""
    left = {unit.key: unit for unit in units if unit.key not in journal.done}
    total = len({unit.key for unit in units})
    for tried in range(TRIES):
        try:
            with opened() as pool:
                with held():
                    futures = {pool.submit(run, unit, inner): key for key, unit in left.items()}
                for future in as_completed(futures):
                    key = futures[future]
                    journal.add(key, future.result())
                    del left[key]
                    if progress:
                        progress(total - len(left), total)
                return
        except (BrokenExecutor, CancelledError) as error:
            if tried == TRIES - 1:
                raise InputError(f"workers died {TRIES} times ({type(error).__name__})") from None
            say(f"a worker died; {len(left)} of {total} searches are done again")
        except Exception as error:
            if type(error).__module__.split(".")[0] != "distributed":
                raise
            raise InputError(f"--dask: {' '.join(str(error).split())}") from None
