"""Standard streams that a caller has closed, as daemons do: each leads nowhere, and no file of ours takes its number."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

from onnxtile.errors import UsageError


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
    before, own = sys.stderr, os.dup(2)
    sys.stderr = open(own, "w", 1, before.encoding, before.errors, closefd=False)  # noqa: SIM115
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


def leads_nowhere(number: int) -> None:
    """Let the stream `number` lead nowhere, since its reader has gone: what is left in it would fail once more at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
