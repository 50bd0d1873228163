"""The start of worker processes: a terminal's signals to its whole group reach this process alone, with which they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_OF_TERMINALS = ("SIGINT", "SIGHUP")
"""By name: Windows lacks the last."""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start processes in the block that never see Ctrl-C or the end of a terminal: a new process inherits what is blocked.

    Else one of them, still importing modules, prints a traceback, or a report says that a worker died.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        _start_trackers()
        yield
        return
    blocked = [getattr(signal, name) for name in _OF_TERMINALS if hasattr(signal, name)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    _start_trackers()
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # Python has let some through again
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_trackers() -> None:
    """Start the processes that remove shared memory and semaphores of workers without a stderr.

    One prints a traceback where two processes that end at once both say that a semaphore is not needed. One that a terminal's end has
    killed is started again by Python, with stderr: so it must not see that.
    """
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as of_joblib

    with _without_stderr():
        resource_tracker.ensure_running()
        of_joblib.ensure_running()


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Let the descriptor 2, which a new process inherits, lead nowhere in the block."""
    nowhere, own = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)
