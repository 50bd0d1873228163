"""The errors onnxtile raises on purpose; each carries one line for the user and, where there is one, a hint what to do next."""

from __future__ import annotations


class OnnxtileError(Exception):
    """Bad input or usage. `hint` says what to do next; the command line ends with exit code 2."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ModelError(OnnxtileError):
    """A model that cannot be read, is not valid ONNX, or that onnxruntime refuses."""


class ModelWarning(UserWarning):
    """A model that ONNX's checker or a declaration in the model contradicts, and that onnxruntime runs: it is taken as it runs."""


class UsageError(OnnxtileError):
    """An option that makes no sense: a bound of 0, an unknown dimension, an output that exists already."""


class QueryError(OnnxtileError):
    """A query that cannot be read or can never match.

    `text` is the query, `span` the half-open range of characters at fault, counted from 0; the message of the exception
    shows the line with a caret below it.
    """

    def __init__(self, reason: str, text: str, span: tuple[int, int], *, hint: str | None = None) -> None:
        self.reason = reason
        self.text = text
        self.span = span
        super().__init__(f"{reason}\n{caret(text, span)}", hint=hint)


class PatternError(OnnxtileError):
    """A pattern file that cannot be read; the message names the file."""


class CheckFailed(OnnxtileError):
    """A check said no about good input; the command line ends with exit code 1."""

    exit_code = 1


class Infeasible(CheckFailed):
    """No plan or tiling meets the limits that were given."""


class Mismatch(CheckFailed):
    """What was written does not compute what was read."""


def caret(text: str, span: tuple[int, int], *, first: int = 1) -> str:
    """Return the line of `text` in which `span` begins, its number, and a line of carets below the span.

    `first` is the number of the first line.

    >>> print(caret("MatMul->Ad", (8, 10)))
    line 1: MatMul->Ad
                    ^^
    """
    start, stop = span
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    label = f"line {text.count(chr(10), 0, start) + first}: "
    width = max(1, min(stop, line_start + len(line)) - start)
    return f"{label}{line}\n{' ' * (len(label) + start - line_start)}{'^' * width}"
