"""Reasons why a test is false, with the values it read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.query.compare import listed
from onnxtile.query.evaluate import TestContext, TestSubject, Unknown, evaluate, holds
from onnxtile.query.syntax import Comparison, Expression, ListOf, Logic, Not, Number, Text

_SHOWN = 4


def why_not(test: Expression, scope: TestSubject, facts: TestContext) -> str:
    """Return why `test` does not hold in `scope`: `axis is 1, not -1`."""
    match test:
        case Logic():
            failing = [operand for operand in test.operands if not holds(operand, scope, facts)]
            told = failing[:1] if test.operator == "and" else failing
            return "; ".join(dict.fromkeys(why_not(operand, scope, facts) for operand in told))
        case Comparison():
            return _why_not_so(test, scope, facts)
        case Not():
            result = evaluate(test.operand, scope, facts)
            return result.reason if isinstance(result, Unknown) else f"{_text(test.operand, facts)} holds"
    return _is(test, scope, facts)


def _why_not_so(test: Comparison, scope: TestSubject, facts: TestContext) -> str:
    whole = evaluate(test, scope, facts)
    if isinstance(whole, Unknown):
        return whole.reason
    if isinstance(test.left, Number | Text | ListOf):
        return f"{_is(test.right, scope, facts)}, so {_text(test, facts)} is false"
    right = _value(test.right, scope, facts)
    if test.operator == "==":
        return f"{_is(test.left, scope, facts)}, not {right}"
    if test.operator == "!=":
        return _is(test.left, scope, facts)
    relation = {"in": "in", "≈": "about"}.get(test.operator, test.operator)
    return f"{_is(test.left, scope, facts)}, not {relation} {right}"


def _is(reference: Expression, scope: TestSubject, facts: TestContext) -> str:
    value = evaluate(reference, scope, facts)
    if isinstance(value, Unknown):
        return value.reason
    return f"{_text(reference, facts)} is {_shown(value, facts)}"


def _value(expression: Expression, scope: TestSubject, facts: TestContext) -> str:
    return _shown(evaluate(expression, scope, facts), facts)


def _shown(value: Any, facts: TestContext) -> str:
    if isinstance(value, ir.Value):
        content = f" = {_shown(facts.constants.array(value), facts)}" if value in facts.constants else ""
        return f"{value.name!r}{content}"
    if isinstance(value, ir.Node):
        return f"{value.op_type} {value.name!r}"
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return str(array.tolist()) if array.size <= _SHOWN else f"{array.size:,} numbers"
    if isinstance(value, list) and any(isinstance(item, ir.Value) for item in value):
        return f"[{', '.join(_shown(item, facts) for item in value)}]"
    return repr(value) if isinstance(value, str) else listed(value)


def _text(expression: Expression, facts: TestContext) -> str:
    start, stop = _span(expression)
    return facts.text[start:stop]


def _span(expression: Expression) -> tuple[int, int]:
    match expression:
        case Number() | Text():
            return (0, 0)
        case Not():
            return _span(expression.operand)
        case Logic() | ListOf():
            parts = expression.operands if isinstance(expression, Logic) else expression.items
            spans = [_span(part) for part in parts] or [(0, 0)]
            return (min(start for start, _ in spans), max(stop for _, stop in spans))
    return expression.span
