"""The errors onnxtile raises on purpose; each carries one line for the user and, where there is one, a hint what to do next."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping

from onnxtile.system.dataclass import dataclass

# Text that a model or a user gave, as a terminal may show it: nothing in it moves the cursor, and no line is without end.

MOST = 500
"""Characters of an error's line."""
_END = 3
"""One part in so many that is kept of a long text is its end."""
_LEAST = 40
"""Characters of a reason or a hint that say something yet."""


def escaped(text: str) -> str:
    r"""Return `text` with each character that is not printable as Python escapes it: control characters, marks of direction, halves.

    >>> escaped("a\x1b]0;title\x07")
    'a\\x1b]0;title\\x07'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def capped(text: str, most: int = MOST) -> str:
    """Return `text` in at most `most` characters: its start and its end, and between them a mark that something is left out."""
    if len(text) <= most:
        return text
    end = most // _END
    return f"{text[: most - end - 3]}...{text[len(text) - end :]}"


def error_line(reason: str, hint: str | None, most: int = MOST) -> str:
    """Return the first line of `reason`, with the `hint` in brackets, printable and in at most `most` characters."""
    first = escaped(reason.partition("\n")[0])
    if not hint:
        return capped(first, most)
    advice = escaped(hint)
    limit = most - len(" ()")
    first = capped(first, max(limit - len(advice), limit * 2 // 3))
    left = limit - len(first)
    return f"{first} ({capped(advice, left)})" if left >= min(len(advice), _LEAST) else first


_SHOWN = 240
"""Characters of a line that is shown with a caret."""


NAME_ONLY = object()
"""Stands for the value of a parameter of which a message shows the name alone."""


@dataclass(frozen=True)
class Entry:
    """One entry of a table that a parameter was given."""

    key: str
    value: object


Wording = Callable[[str, object], str]
"""Returns how a parameter and its value are written: `--io 'foo'` on the command line, `io='foo'` in Python."""


def in_python(name: str, value: object) -> str:
    """Return a parameter and its value as a call in Python has them.

    >>> in_python("io", "foo"), in_python("dims", Entry("N", 0)), in_python("io", NAME_ONLY)
    ("io='foo'", "dims={'N': 0}", 'io')
    """
    if value is NAME_ONLY:
        return name
    return f"{name}={{{value.key!r}: {value.value!r}}}" if isinstance(value, Entry) else f"{name}={value!r}"


class OnnxtileError(Exception):
    """Bad input or usage. `message` says what is wrong, `hint` what to do next, and `str()` both; the command line ends with exit code 2.

    With `given`, the message and the hint name parameters of a verb as {name}, and `given` has their values (or NAME_ONLY). The library
    shows them as a call in Python has them, the command line as options, a pipeline as keys of its file.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, given: Mapping[str, object] | None = None) -> None:
        self._message, self._hint, self.given = message, hint, dict(given or {})
        text, self.hint = self.worded(in_python)
        super().__init__(text)

    @property
    def message(self) -> str:
        """What is wrong, without the hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        first, line_end, rest = self.message.partition("\n")
        return f"{first} ({self.hint}){line_end}{rest}" if self.hint else self.message

    def worded(self, wording: Wording) -> tuple[str, str | None]:
        """Return the message and the hint, with each parameter as `wording` has it."""
        shown = {name: wording(name, value) for name, value in self.given.items()}
        return _filled(self._message, shown), None if self._hint is None else _filled(self._hint, shown)

    def drop_hint(self, words: str) -> None:
        """Leave out the parts of the hint, which "; " joins, that have `words` in them."""
        kept = "; ".join(part for part in (self._hint or "").split("; ") if words not in part) or None
        if kept != self._hint:
            self._hint = kept
            self.hint = self.worded(in_python)[1]

    def say(self, message: str, hint: str | None) -> None:
        """Let the error have another message and hint."""
        self._message, self._hint, self.hint, self.given = message, hint, hint, {}
        self.args = (message,)


class ModelError(OnnxtileError):
    """A model that cannot be read, is not valid ONNX, or that onnxruntime refuses."""


class NoKernel(ModelError):
    """A model with an operator that onnxruntime's CPU has no kernel for, so that it cannot be run here."""


class ModelWarning(UserWarning):
    """A model that ONNX's checker or a declaration in the model contradicts, and that onnxruntime runs: it is taken as it runs."""


class UsageError(OnnxtileError):
    """An option that makes no sense: a bound of 0, an unknown dimension, an output that exists already."""


_PARAMETER = re.compile(r"\{(\w+)\}")


def about_options(message: str, *, hint: str = "", **values: object) -> UsageError:
    """Return the error for options that make no sense together: `message` and `hint` name each as {name}; some show their `values`.

    >>> error = about_options("{target} excludes {max}", hint="leave out {max}", target="npu.toml")
    >>> error.message, error.hint
    ("target='npu.toml' excludes max", 'leave out max')
    """
    names = _PARAMETER.findall(f"{message} {hint}")
    return UsageError(message, hint=hint or None, given={**dict.fromkeys(names, NAME_ONLY), **values})


def invalid(name: str, value: object, choices: Iterable[str] = (), *, reason: str = "", hint: str = "") -> UsageError:
    """Return the error for a `value` that the parameter `name` does not take: for the `reason`, or since it is none of `choices`.

    The hint is the nearest choice, whatever its case; the list of all where none is near.

    >>> error = invalid("io", "foo", ["outputs", "inside", "outside"])
    >>> error.message, error.hint
    ("invalid io='foo'", 'choose outputs, inside, outside')
    """
    known = list(choices)
    shown = value.value if isinstance(value, Entry) else value
    hint = hint or (nearest(shown, known) if known else "")
    message = f"invalid {{{name}}}" + (f": {reason}" if reason else "")
    return UsageError(message, hint=hint or None, given={name: value})


def nearest(value: object, choices: Iterable[str], otherwise: str = "") -> str:
    """Return a hint: the choice nearest to `value`, whatever its case; where none is near, `otherwise`, or the list of all.

    >>> nearest("Pixls", ["pixels", "mask"]), nearest("image", ["pixels"], "its inputs are pixels")
    ("did you mean 'pixels'?", 'its inputs are pixels')
    """
    by_case = {choice.casefold(): choice for choice in choices}
    near = difflib.get_close_matches(str(value).casefold(), by_case, n=1)
    return f"did you mean {by_case[near[0]]!r}?" if near else otherwise or f"choose {', '.join(by_case.values())}"


def _filled(text: str, shown: Mapping[str, str]) -> str:
    for name, form in shown.items():
        text = text.replace(f"{{{name}}}", form)
    return text


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for a `name` that is not one of the `known` names of its `kind` ("pattern", "planner").

    The hint is the nearest known name, whatever its case; the list of all where none is near.

    >>> unknown("planner", "Bset", ["best", "exact"]).hint
    "did you mean 'best'?"
    """
    return UsageError(f"unknown {kind} {name!r}", hint=nearest(name, sorted(known)))


def of_extra(name: str) -> str:
    """Return the hint where a package of the extra `name` is missing. No index has onnxtile: it comes from a clone, or a wheel of one."""
    return f"pip install '.[{name}]' in the clone of onnxtile, or 'FILE.whl[{name}]' of its wheel"


class OverLimit(OnnxtileError):
    """A run that would take more time or memory than it may."""


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


def first_cause(error: BaseException) -> str:
    """Return the words of the error that `error` was raised from first, on one line. Raises that error where it is a MemoryError."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, MemoryError):
        raise error
    return " ".join(str(error).split())


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
    at, stop = start - line_start, max(start + 1, min(stop, line_start + len(line))) - line_start
    before, marked, after = escaped(line[:at]), escaped(line[at:stop]), escaped(line[stop:])
    if (
        len(before) + len(marked) + len(after) > _SHOWN
    ):  # what is around the span is shortened, and what it marks if need be
        marked = capped(marked, _SHOWN // 2)
        before = before if len(before) <= _SHOWN // 4 else f"...{before[-_SHOWN // 4 :]}"
        after = after if len(after) <= _SHOWN // 4 else f"{after[: _SHOWN // 4]}..."
    return f"{label}{before}{marked}{after}\n{' ' * (len(label) + len(before))}{'^' * max(1, len(marked))}"
