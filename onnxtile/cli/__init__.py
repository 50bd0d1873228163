"""The command line: arguments, exit codes and messages, nothing else. Results on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys

from onnxtile.cli.command import DEBUG, CommandRefused, run_plain, verbs, worded
from onnxtile.cli.streams import Signals, leads_nowhere, open_streams, say, show_warnings
from onnxtile.system.errors import MOST, OnnxtileError, capped, error_line, escaped
from onnxtile.system.files import remove_temporary
from onnxtile.system.interpreter import silence_libraries

INTERRUPTED = 130
"""The exit code after Ctrl-C, as typer gives it and shells have it: 128 and the number of the signal."""

READER_GONE = 141
"""The exit code of a command whose output nobody reads any more, as shells have it: 128 and the number of SIGPIPE."""


def main() -> None:
    """Run the command; end with 0 (done), 1 (a check failed), 2 (bad input or usage), or 128 and the number of a signal."""
    open_streams()
    silence_libraries()
    show_warnings()
    signals = Signals()
    signals.heed()
    code = _run()
    if signals.code is not None:  # workers end by themselves when this process ends
        remove_temporary()
        os._exit(signals.code)
    signals.finish()
    sys.exit(code)


def _run() -> int:
    """Run the command and return its exit code, its results and errors written."""
    try:
        code = _code(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _failed("interrupted", None, INTERRUPTED)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer has caught it first
            return READER_GONE
        return end.code if isinstance(end.code, int) else 2
    except CommandRefused as error:
        return _failed(str(error), error.hint, 2)
    except BrokenPipeError:  # as in `onnxtile ... | head`: the reader has seen enough
        leads_nowhere(1)
        return READER_GONE
    except Exception as error:
        if DEBUG in sys.argv:
            raise
        return _failed(*_message_of(error))
    if code == INTERRUPTED:  # typer has caught it first
        return _failed("interrupted", None, INTERRUPTED)
    return code


def _code(words: list[str]) -> int:
    code = run_plain(words)
    if code is not None:
        return code
    from onnxtile.cli import application  # typer takes longer to load than all else that a command needs of onnxtile

    return application.run()


def _message_of(error: Exception) -> tuple[str, str | None, int]:
    """Return the message, the hint and the exit code. Any other exception is caught here, since a traceback is not a message for a user."""
    if isinstance(error, OnnxtileError):
        message, hint = error.worded(worded(lambda: (verb.command for verb in verbs().values())))
        return message, hint, error.exit_code
    if isinstance(error, MemoryError):
        return "there is not enough memory for this model", "smaller --dim or --shape take less", 2
    if isinstance(error, OSError):
        return f"{error.filename or 'stdout'}: {error.strerror or _one_line(error)}", None, 2
    reason = f"internal error: {type(error).__name__}: {_one_line(error)}"
    return reason, "this is a bug in onnxtile; onnxtile --debug ... shows where", 2


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _parts(message: str) -> list[str]:
    """Return what is wrong, as one line, and where the message ends with a query and its caret, these two lines."""
    lines = message.split("\n")
    count = 2 if len(lines) > 2 and "^" in lines[-1] and set(lines[-1]) <= {" ", "^"} else 0
    stop = len(lines) - count
    return ["\\n".join(lines[:stop]), *lines[stop:]]


def _failed(message: str, hint: str | None, code: int) -> int:
    """Say in one line what is wrong and what to do; a query at fault follows with its caret. Return `code`."""
    first, *rest = _parts(message)
    start = "error: "
    lines = [start + error_line(first, hint, MOST - len(start)), *(capped(escaped(text)) for text in rest)]
    say("\n".join(lines) + "\n")
    return code
