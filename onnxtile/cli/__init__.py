"""The command line: arguments, exit codes and messages, nothing else. Results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

import typer

from onnxtile.cli.app import build
from onnxtile.errors import OnnxtileError


def main() -> None:
    """Run the command; end with 0 (done), 1 (a check said no) or 2 (bad input or usage)."""
    debug = "--debug" in sys.argv
    try:
        code = build()(prog_name="onnxtile", standalone_mode=False)
    except typer.Abort:
        _fail("interrupted", None, 130)
    except typer.TyperException as error:
        _fail(_one_line(error), "onnxtile --help shows the commands and their options", 2)
    except OnnxtileError as error:
        if debug:
            raise
        _fail(str(error), error.hint, error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", None, 130)
    except MemoryError:
        _fail("there is not enough memory for this model", None, 2)
    except Exception as error:  # the last line of defence: a traceback is no message for a user
        if debug:
            raise
        _fail(
            f"internal error: {type(error).__name__}: {_one_line(error)}",
            "this is a bug in onnxtile; --debug shows where",
            2,
        )
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: Exception) -> str:
    formatted: Callable[[], str] = getattr(error, "format_message", lambda: str(error))
    return " ".join(formatted().split())


def _fail(message: str, hint: str | None, code: int) -> NoReturn:
    """End with one line that says what is wrong and what to do; a query at fault follows with its caret."""
    first, newline, rest = message.partition("\n")
    sys.stderr.write(f"error: {first}{f' ({hint})' if hint else ''}{newline}{rest}\n")
    sys.exit(code)
