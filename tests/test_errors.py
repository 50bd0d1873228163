"""Errors: one line for the user, a hint, an exit code."""

from __future__ import annotations

import pytest

from onnxtile.system.errors import (
    CheckFailed,
    Infeasible,
    Mismatch,
    ModelError,
    OnnxtileError,
    PatternError,
    QueryError,
    UsageError,
    caret,
    first_cause,
)


@pytest.mark.parametrize("kind", [OnnxtileError, ModelError, UsageError, PatternError])
def test_bad_input_ends_with_2(kind: type[OnnxtileError]) -> None:
    error = kind("no", hint="do this")
    assert (str(error), error.hint, error.exit_code) == ("no", "do this", 2)


@pytest.mark.parametrize("kind", [CheckFailed, Infeasible, Mismatch])
def test_a_check_that_says_no_ends_with_1(kind: type[OnnxtileError]) -> None:
    assert kind("no").exit_code == 1
    assert kind("no").hint is None


def _wrapped(error: Exception) -> Exception:
    """Return `error` as onnx_ir wraps it: in one error for each function on the way."""
    for name in ("serialize_graph_into", "serialize_model"):
        outer = RuntimeError(f"Error calling {name} with: len(nodes)=441127")
        outer.__cause__ = error
        error = outer
    return error


def test_the_words_of_an_error_are_those_of_its_first_cause() -> None:
    assert first_cause(_wrapped(ValueError("no\nsuch type"))) == "no such type"


def test_a_lack_of_memory_stays_one_where_it_was_wrapped() -> None:
    with pytest.raises(MemoryError):
        first_cause(_wrapped(MemoryError()))


def test_a_query_error_shows_the_place() -> None:
    error = QueryError("unknown type", "MatMul->Ad", (8, 10))
    assert str(error) == "unknown type\nline 1: MatMul->Ad\n                ^^"
    assert (error.reason, error.span, error.exit_code) == ("unknown type", (8, 10), 2)


@pytest.mark.parametrize(
    ("text", "span", "shown"),
    [
        ("", (0, 0), "line 1: \n        ^"),
        ("ab", (2, 2), "line 1: ab\n          ^"),
        ("ab\ncd", (3, 4), "line 2: cd\n        ^"),
        ("ab\ncd", (1, 5), "line 1: ab\n         ^"),
        ("ab\n", (3, 3), "line 2: \n        ^"),
    ],
)
def test_the_caret_is_below_the_span(text: str, span: tuple[int, int], shown: str) -> None:
    assert caret(text, span) == shown
