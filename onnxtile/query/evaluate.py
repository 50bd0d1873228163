"""Tests: `Conv[group == 1]`, `Producer[value ≈ 0.5]`, `Softmax[axis == -1 and inputs[0].rank == 4]`.

A test is evaluated over the node's attributes (with the defaults of its schema), and over the shapes, element types and
constant values of its inputs and outputs. What is not known makes a comparison false, and `Unknown` says why.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.errors import QueryError
from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.query.syntax import Comparison, Expression, Field, Index, ListOf, Logic, Name, Not, Number, Text
from onnxtile.query.vertex import Vertex, is_constant

_WORDS = {"true": True, "false": False}
_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FIELDS = ("shape", "rank", "dtype", "value")


@dataclass(frozen=True)
class Unknown:
    """Stands for what a test asks for and the model does not say."""

    reason: str


@dataclass(frozen=True)
class Facts:
    """What a test may ask about: the constants of the model, and its shapes, which are inferred when the first test asks."""

    constants: Constants
    shapes: Callable[[], Shapes]
    opsets: dict[str, int]
    text: str


def holds(test: Expression, vertex: Vertex, facts: Facts) -> bool:
    """Tell whether `test` is true of `vertex`. Raises QueryError for a name that the operator does not have."""
    result = _evaluate(test, vertex, facts)
    return not isinstance(result, Unknown) and bool(np.all(result))


def _evaluate(test: Expression, vertex: Vertex, facts: Facts) -> Any:
    match test:
        case Number() | Text():
            return test.value
        case ListOf():
            return [_evaluate(item, vertex, facts) for item in test.items]
        case Not():
            result = _evaluate(test.operand, vertex, facts)
            return result if isinstance(result, Unknown) else not bool(np.all(result))
        case Logic():
            ways = (holds(operand, vertex, facts) for operand in test.operands)
            return all(ways) if test.operator == "and" else any(ways)
        case Comparison():
            return _compare(test, vertex, facts)
        case _:
            return _look_up(test, vertex, facts)


def _look_up(reference: Name | Index | Field, vertex: Vertex, facts: Facts) -> Any:
    match reference:
        case Name():
            return _named(reference, vertex, facts)
        case Index():
            base = _evaluate(reference.base, vertex, facts)
            return _element(base, reference, facts)
        case Field():
            base = _evaluate(reference.base, vertex, facts)
            if not isinstance(base, ir.Value):
                raise QueryError("only inputs[i] and outputs[i] have properties", facts.text, reference.span)
            return _property(base, reference, facts)


def _element(base: Any, reference: Index, facts: Facts) -> Any:
    if isinstance(base, Unknown):
        return base
    if not isinstance(base, list | tuple | np.ndarray):
        raise QueryError("this has no elements", facts.text, reference.span)
    if not -len(base) <= reference.position < len(base):
        return Unknown(f"there is no element {reference.position}")
    element = base[reference.position]
    return Unknown("it is not given") if element is None else element


def _named(name: Name, vertex: Vertex, facts: Facts) -> Any:
    word = name.value
    if word in _WORDS:
        return _WORDS[word]
    if word == "value" and is_constant(vertex, facts.constants):
        return facts.constants.array(vertex if isinstance(vertex, ir.Value) else vertex.outputs[0])
    if isinstance(vertex, ir.Value):
        outputs = [vertex]
        return outputs if word == "outputs" else _property(vertex, Field(name, word, name.span), facts)
    if word == "inputs":
        return list(vertex.inputs)
    if word == "outputs":
        return list(vertex.outputs)
    return _attribute(vertex, name, facts)


def _property(value: ir.Value, reference: Field, facts: Facts) -> Any:
    if reference.name not in _FIELDS:
        raise QueryError(f"there is no {reference.name!r}; there are {', '.join(_FIELDS)}", facts.text, reference.span)
    if reference.name == "value":
        return facts.constants.array(value) if value in facts.constants else Unknown(f"{value.name!r} is not constant")
    shapes = facts.shapes()
    if reference.name == "dtype":
        dtype = shapes.dtype(value)
        return Unknown(f"the element type of {value.name!r} is not known") if dtype is None else dtype.name.lower()
    dims = shapes.dims(value)
    if dims is None:
        return Unknown(f"the shape of {value.name!r} is not known")
    return len(dims) if reference.name == "rank" else list(dims)


def _attribute(node: ir.Node, name: Name, facts: Facts) -> Any:
    attribute = node.attributes.get(name.value)
    if attribute is not None:
        return Unknown("the function's caller says it") if attribute.is_ref() else _plain(attribute.value)
    defaults = _defaults(node.domain, node.op_type, facts.opsets.get(node.domain, 1))
    if defaults is None or name.value in defaults:
        default = defaults and defaults[name.value]
        return Unknown(f"{node.op_type} {node.name!r} does not give {name.value!r}") if default is None else default
    listed = ", ".join(sorted(defaults)) or "none"
    raise QueryError(f"{node.op_type} has no attribute {name.value!r}; it has {listed}", facts.text, name.span)


@cache
def _defaults(domain: str, op_type: str, version: int) -> dict[str, Any] | None:
    """Return the attributes of an operator with their default values (None: no default); None where no schema knows it."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    found: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        given = attribute.default_value.name
        found[name] = _plain(onnx.helper.get_attribute_value(attribute.default_value)) if given else None
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if isinstance(value, tuple) else value


def _compare(test: Comparison, vertex: Vertex, facts: Facts) -> Any:
    left, right = _evaluate(test.left, vertex, facts), _evaluate(test.right, vertex, facts)
    for side in (left, right):
        if isinstance(side, Unknown):
            return side
    if test.operator == "in":
        return any(_equal(left, item) for item in right)
    if test.operator == "≈":
        return _close(left, right)
    if test.operator in {"==", "!="}:
        return _equal(left, right) == (test.operator == "==")
    try:
        return np.all(_ORDER[test.operator](left, right))
    except TypeError:
        raise QueryError("these cannot be compared", facts.text, test.span) from None


def _equal(left: Any, right: Any) -> bool:
    """Tell whether two values are the same; a single number equals an array all of whose elements are that number."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        a, b = np.asarray(left), np.asarray(right)
        if a.size != b.size and 1 not in {a.size, b.size}:
            return False
        return bool(np.all(a.ravel() == b.ravel()))
    return bool(left == right)


def _close(left: Any, right: Any) -> bool:
    """Tell whether all elements agree within the precision of the coarser element type (4 units in the last place)."""
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype.kind not in "fiuV" or b.dtype.kind not in "fiuV" or (a.size != b.size and 1 not in {a.size, b.size}):
        return False
    precision = max(_precision(a), _precision(b))
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return bool(np.all(np.abs(x - y) <= 4 * precision * np.maximum(np.abs(x), np.abs(y))))


def _precision(array: np.ndarray[Any, Any]) -> float:
    if array.dtype.kind in "iu":
        return 0.0
    if array.dtype.kind == "V":
        import ml_dtypes

        return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]
    return float(np.spacing(np.ones(1, array.dtype))[0])
