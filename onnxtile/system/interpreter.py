"""Python in this process: when its garbage collector runs, and what libraries and finalisers write."""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

from onnxtile.system.posix import return_free_memory

# The cyclic garbage collector: held while much is made and nothing thrown away, and asked for what one block of code threw away.


_FROZEN_BY_PYTHON = 1_000 if sys.version_info[:2] == (3, 12) else 0
"""Objects, at most, that Python itself has frozen when a program begins: 375 in 3.12.1, none in other versions."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Hold the collector, also as a decorator: it would walk every live object again and again, and find none to free.

    On a graph of 50,000 nodes this halves the time to load; of a plan for 100,000 buffers it is a fourth. What reference counts free is
    freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_MANY = 100_000
"""Objects: where more are freed, the memory that the C library holds free for others is given back to the system, too."""


@contextmanager
def cycles_freed() -> Iterator[None]:
    """Free at the end of the block the objects made in it that nothing outside refers to, also as a decorator.

    Nodes and values of a graph refer to each other, so a copy of a graph is freed by the collector alone, and in the meantime it would be
    held beside the next one. Objects made before the block are frozen (gc.freeze), so that the collector does not walk them. Nothing is
    done in a process that has frozen objects already.
    """
    if gc.get_freeze_count() > _FROZEN_BY_PYTHON:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        if gc.collect() > _MANY:
            return_free_memory()
        gc.unfreeze()


# Libraries warn and log for programmers; a user of the command reads results and errors only.

_WARNINGS = "PYTHONWARNINGS"
"""Environment variable that Python reads at its start and passes on to worker processes."""


_silenced: list[bool] = []


def is_silenced() -> bool:
    """Return whether this process is one in which no library is to print: a command, or a worker of a pipeline."""
    return bool(_silenced)


def silence_libraries() -> None:
    """Let no library log or warn on stderr, in this process and in those that it starts.

    Warnings stay where Python was told what to do with them, by -W or PYTHONWARNINGS.
    """
    _silenced.append(True)
    root = logging.getLogger()
    if not root.handlers:  # without any, Python would print what is a warning or worse
        root.addHandler(logging.NullHandler())
    if not sys.warnoptions:
        os.environ[_WARNINGS] = "ignore"
        warnings.simplefilter("ignore")


def silence_finalisers() -> None:
    """Let Python not print what cannot be raised in a finaliser: an exit that a signal asked for, and a lack of memory.

    The signal is known anyway, and the next piece of memory that is asked for is refused, too.
    """
    sys.unraisablehook = _without_exits(sys.unraisablehook)


def _without_exits(hook: Any) -> Any:
    def heard(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, SystemExit | KeyboardInterrupt | MemoryError):
            hook(unraisable)

    return heard


def imports_compiled(frame: FrameType | None) -> bool:
    """Return whether `frame`, or one that called it, imports a compiled module.

    An exception that a signal's handler raises there passes through C++, which may end the process by std::terminate.
    """
    while frame is not None:
        if frame.f_code.co_name in {"create_module", "exec_module"}:
            loader = frame.f_locals.get("self")
            if isinstance(loader, ExtensionFileLoader):
                return True
        frame = frame.f_back
    return False
