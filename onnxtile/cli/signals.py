"""Signals that ask the command to end: it ends as an error does, so that no temporary file stays, and says so by its exit code."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType

from onnxtile.quiet import silence_finalisers

_ASKED = ("SIGINT", "SIGTERM", "SIGHUP")
"""By name: Windows lacks the last."""


@dataclass
class Signals:
    """What has been asked of this process: the first signal ends it, and others do not disturb its end."""

    received: list[int] = field(default_factory=list)
    done: bool = False
    """Whether all work is done, so that nothing is left to be undone."""

    @property
    def code(self) -> int | None:
        """The exit code that shells know for the signal: 128 and its number; None where there was none."""
        return 128 + self.received[0] if self.received else None

    def heed(self) -> None:
        """End on signals from now on, save those that the caller has this process ignore, as nohup does."""
        if threading.current_thread() is not threading.main_thread():  # no other may say what signals do
            return
        asked = [getattr(signal, name) for name in _ASKED if hasattr(signal, name)]
        for number in asked:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._end)
        silence_finalisers()

    def finish(self) -> None:
        """Note that all work is done: what comes now ends the process at once, with Ctrl-C as Python has it again."""
        self.done = True
        if signal.getsignal(signal.SIGINT) == self._end:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self.done:
            os._exit(128 + number)
        if self.received:
            return
        self.received.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)
