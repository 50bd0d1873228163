"""The command line: arguments, exit codes and messages, nothing else. Results on stdout, everything else on stderr."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from onnxtile.cli.app import build
from onnxtile.cli.warned import show_warnings
from onnxtile.errors import OnnxtileError

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of the signal."""

_NEW_OBJECTS = 50_000
"""Python looks for cycles of garbage after so many new objects: a graph has very many, and none of them is garbage."""


def main() -> None:
    """Run the command; end with 0 (done), 1 (a check said no), 2 (bad input or usage) or 130 (Ctrl-C)."""
    show_warnings()
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)  # nor need it look through all that is left when the process ends
    if threading.current_thread() is threading.main_thread():  # no other may say what signals do
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = build()(prog_name="onnxtile", standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", None, INTERRUPTED)
    except typer.TyperException as error:
        _fail(_one_line(error), _help_of(error), 2)
    except BrokenPipeError:  # as in `onnxtile ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if "--debug" in sys.argv:
            raise
        _fail(*_said(error))
    if code == INTERRUPTED:  # typer has caught it first
        _fail("interrupted", None, INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _said(error: Exception) -> tuple[str, str | None, int]:
    """Return what is wrong, what to do, and the exit code. The last is the line of defence: a traceback is no message for a user."""
    if isinstance(error, OnnxtileError):
        return str(error), error.hint, error.exit_code
    if isinstance(error, MemoryError):
        return "there is not enough memory for this model", "smaller --dim or --shape, or --no-verify, take less", 2
    if isinstance(error, OSError):
        return f"{error.filename or 'stdout'}: {error.strerror or _one_line(error)}", None, 2
    reason = f"internal error: {type(error).__name__}: {_one_line(error)}"
    return reason, "this is a bug in onnxtile; --debug shows where", 2


def _terminate(_signal: int, _frame: object) -> NoReturn:
    """End like an error does, so that no temporary file stays."""
    sys.exit(128 + signal.SIGTERM)


def _one_line(error: Exception) -> str:
    formatted: Callable[[], str] = getattr(error, "format_message", lambda: str(error))
    return " ".join(formatted().split())


def _help_of(error: Exception) -> str:
    """Return where the help of the command is that the error is about."""
    context: Any = getattr(error, "ctx", None)
    path = "onnxtile" if context is None else " ".join(context.command_path.split())
    return f"{path} --help shows what there is"


def _fail(message: str, hint: str | None, code: int) -> NoReturn:
    """End with one line that says what is wrong and what to do; a query at fault follows with its caret."""
    first, newline, rest = message.partition("\n")
    sys.stderr.write(f"error: {first}{f' ({hint})' if hint else ''}{newline}{rest}\n")
    sys.exit(code)
