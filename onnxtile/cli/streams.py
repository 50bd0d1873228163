"""Standard streams that a caller has closed, as daemons do: each leads nowhere, and no file of ours takes its number."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import field
from io import TextIOWrapper
from types import FrameType
from typing import NoReturn, TextIO

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelWarning, UsageError, error_line
from onnxtile.system.files import remove_temporary
from onnxtile.system.interpreter import imports_compiled, silence_finalisers
from onnxtile.system.long_work import stop_runs


def open_streams() -> None:
    """Open what is closed of stdin, stdout and stderr on the null device.

    Without that, the next file that is opened would have the number of the stream, and what a library prints would end in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - a stream is known by its number
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        _admit_every_character(stream)


def keep_stderr() -> None:
    """Let `sys.stderr` alone lead to the stream of errors: what libraries write to the descriptor 2 goes nowhere.

    The C library writes there why it aborts the process, and that of C++ which exception nobody caught.
    """
    if not isinstance(sys.stderr, TextIOWrapper) or descriptor_of_errors() != 2:
        return
    before, duplicate = sys.stderr, os.dup(2)
    sys.stderr = open(duplicate, "w", 1, before.encoding, before.errors, closefd=False)  # noqa: SIM115
    sys.__stderr__ = sys.stderr  # type: ignore[misc]  # rich asks it for the width of the terminal
    leads_nowhere(2)


def descriptor_of_errors() -> int:
    """Return the descriptor of `sys.stderr`; 2 where a caller has put something without one in its place."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2


def _admit_every_character(stream: TextIO) -> None:
    """Let `stream` take every character: a pipe whose encoding nobody chose is UTF-8, any other shows "?" for what it lacks.

    Windows gives pipes the encoding of its region, in which "×" or a name in a model may be missing.
    """
    if not isinstance(stream, TextIOWrapper) or stream.encoding.lower().replace("-", "") == "utf8":
        return
    if stream.isatty() or os.environ.get("PYTHONIOENCODING"):
        stream.reconfigure(errors="replace")
    else:
        stream.reconfigure(encoding="utf-8")


def require_stdout(option: str) -> None:
    """Raise UsageError where `option` asks for a result on stdout, and that was closed from the start."""
    if sys.__stdout__ is None:
        raise UsageError(f"{option} -: stdout is closed", hint="name a file")


def say(text: str) -> None:
    """Write `text` to stderr; where nobody reads that any more, the exit code has to say it."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()
        return
    leads_nowhere(descriptor_of_errors())


def show_warnings() -> None:
    """Print each ModelWarning once, as one line on stderr, and none with --quiet; other warnings stay as they are."""
    usual, shown = warnings.showwarning, set[str]()
    quiet = not {"-q", "--quiet"}.isdisjoint(sys.argv)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, ModelWarning):
            usual(message, category, filename, lineno, file, line)
            return
        text = error_line(str(message), None)
        if not quiet and text not in shown:
            shown.add(text)
            sys.stderr.write(f"warning: {text}\n")

    warnings.showwarning = show
    warnings.filterwarnings("always", category=ModelWarning)


def leads_nowhere(number: int) -> None:
    """Let the stream `number` lead nowhere, since its reader has gone: what is left in it would fail once more at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


# A library that crashes on a model, as onnxruntime does where it divides a whole number by zero, ends the command as an error does.

_CRASHES = ("SIGSEGV", "SIGFPE", "SIGBUS", "SIGILL", "SIGABRT")
"""By name: Windows has other ones, and no handler is set there."""
_CODE = 2
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


def heed() -> None:
    """Let a crash of this process be one line on stderr and exit code 2 from now on; with --debug the C library and the system report it.

    Python's own handlers run after the instruction that failed, which would then fail without end.
    """
    if os.name != "posix" or "--debug" in sys.argv:
        return
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = [ctypes.c_int, _HANDLER], ctypes.c_void_p
    for name in _CRASHES:
        set_handler(getattr(signal, name), _END)
    keep_stderr()


def _end(number: int) -> None:
    what = signal.strsignal(number) or f"signal {number}"
    advice = "the model has values that a kernel cannot take; --no-verify, where there is one, does not run it"
    os.write(descriptor_of_errors(), f"error: a library crashed on this model: {what} ({advice})\n".encode())
    os._exit(_CODE)


_END = _HANDLER(_end)
"""It has to live as long as the process."""


# Signals that ask the command to end: it ends as an error does, so that no temporary file stays, and says so by its exit code.
#
# Python calls a signal's handler between two of its own instructions: only after a call of a library ends, such as a run of a model, which
# may take minutes. So a thread waits for the signal, too. It stops such runs at once, and ends the process if they do not stop.

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
        reading_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        threading.Thread(target=_end_in_time, args=(reading_end, asked), name="onnxtile signals", daemon=True).start()

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
