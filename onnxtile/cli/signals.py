"""Signals that ask the command to end: it ends as an error does, so that no temporary file stays, and says so by its exit code.

Python calls a signal's handler between two of its own instructions: not before a call of a library ends, such as a run of a model, which
may take minutes. So a thread is told of the signal too. It stops such runs at once, and ends the process where that has not helped.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from onnxtile.cli.streams import descriptor_of_errors
from onnxtile.model.temporary import remove_temporary
from onnxtile.quiet import imports_compiled, silence_finalisers
from onnxtile.run_limits import stop_runs

_ASKED = ("SIGINT", "SIGTERM", "SIGHUP")
"""By name: Windows lacks the last."""
_GRACE = 3.0
"""Seconds from a signal until the process ends without waiting for the library that it is in."""


@dataclass
class Signals:
    """What has been asked of this process: the first signal ends it, and others do not disturb its end."""

    received: list[int] = field(default_factory=list)
    done: bool = False
    """Whether all work is done, so that nothing is left to be undone."""
    _pipe: int | None = None
    """The end of a pipe into which Python writes the number of each signal when it comes."""

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
        if os.name == "posix":
            self._listen({int(number) for number in asked})

    def finish(self) -> None:
        """Note that all work is done: what comes now ends the process at once, with Ctrl-C as Python has it again."""
        self.done = True
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            os.close(self._pipe)
            self._pipe = None
        if signal.getsignal(signal.SIGINT) == self._end:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _listen(self, asked: set[int]) -> None:
        """Let a thread know of the signals `asked`. It ends when the pipe is closed."""
        told, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        threading.Thread(target=_end_in_time, args=(told, asked), name="onnxtile signals", daemon=True).start()

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self.done:
            os._exit(128 + number)
        if self.received:
            return
        if imports_compiled(frame):
            _leave(number)
        self.received.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


def _end_in_time(pipe: int, asked: set[int]) -> None:
    """Wait for one of the signals `asked`; then stop runs, and end the process where it has not ended after some seconds."""
    number = 0
    while number not in asked:
        sent = os.read(pipe, 1)
        if not sent:
            os.close(pipe)
            return
        number = sent[0]
    stop_runs()
    time.sleep(_GRACE)
    _leave(number)


def _leave(number: int) -> NoReturn:
    """End the process at once, without leaving its blocks."""
    if number == signal.SIGINT:
        os.write(descriptor_of_errors(), b"error: interrupted\n")
    remove_temporary()
    os._exit(128 + number)
