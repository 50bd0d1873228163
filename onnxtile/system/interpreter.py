"""Python in this process: when its garbage collector runs, what libraries and finalisers write, and when a worker ends."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from onnxtile.system.files import remove_temporary
from onnxtile.system.long_work import stop_runs
from onnxtile.system.posix import return_free_memory
from onnxtile.system.registry import defer_libraries

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


# The end of worker processes: soon after the process that they work for, however that one ended.

_EVERY = 0.5
"""Seconds between two looks."""
_GRACE = 2.0
"""Seconds in which what is under way is undone: temporary files are removed."""
_CODE = 128 + signal.SIGTERM


def end_with(parent: int) -> None:
    """Let this process, a child of `parent`, end within seconds of that one; at once where `parent` has gone already.

    It is called before anything heavy is imported, which takes seconds of its own, and before there is anything to be undone. Windows does
    not say who the parent is where Python runs in a virtual environment; there, a worker ends when it has had no work for some minutes.
    """
    if os.name == "nt":
        return
    if os.getppid() != parent:
        os._exit(_CODE)
    signal.signal(signal.SIGTERM, _end)
    silence_finalisers()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY)
    os.kill(os.getpid(), signal.SIGTERM)
    stop_runs()
    time.sleep(_GRACE)
    remove_temporary()
    os._exit(_CODE)


def _end(_signal: int, frame: FrameType | None) -> NoReturn:
    if imports_compiled(frame):
        remove_temporary()
        os._exit(_CODE)
    raise SystemExit(_CODE)


def begin_worker(parent: int, folder: Path) -> None:
    """Make this process a worker of `parent`, which stands in `folder`.

    joblib uses the workers of an earlier run again only where both are the same.
    """
    os.chdir(folder)
    end_with(parent)
    silence_libraries()
    defer_libraries()
