"""A worker process ends soon after the process that it works for, however that one ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import NoReturn

from onnxtile.system.files import remove_temporary
from onnxtile.system.limits import stop_runs
from onnxtile.system.process import imports_compiled, silence_finalisers

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
