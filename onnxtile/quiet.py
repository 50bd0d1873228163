"""Libraries warn and log for programmers; a user of the command reads results and errors only."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import Any

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
