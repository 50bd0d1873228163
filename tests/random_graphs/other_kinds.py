"""Values that are no numbers: strings, sequences and optional values. Each step takes what fits from the scope."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from tests.random_graphs.picks import Step
from tests.random_graphs.scope import BOOL, FLOAT, INT64, Scope, Tensor

STRING = TensorProto.STRING
_WORDS = ("a", "bb", "Größe", "", "a\nb", "日本", "x y", "0")


def _words(scope: Scope, *dims: int) -> Tensor:
    """Return a constant of words."""
    found = [scope.random.choice(_WORDS) for _ in range(math.prod(dims))]
    return scope.constant(np.asarray(found, object).reshape(dims), STRING)


def _strings(scope: Scope) -> Tensor | None:
    return scope.pick(lambda t: not t.constant, types=(STRING,))


def words(scope: Scope) -> object:
    """A movement of strings."""
    x = _strings(scope)
    if x is None:
        return None
    kind = scope.random.choice(["Identity", "Concat", "Unsqueeze", "Gather", "Expand"])
    if kind == "Concat" and x.rank == 1 and x.is_static:
        more = _words(scope, 2)
        parts = [x, more] if scope.chance(0.5) else [more, x]
        return scope.one(kind, parts, STRING, (x.at(0) + 2,), axis=0)
    if kind == "Unsqueeze" and scope.opset >= 13 and x.rank < 3:
        return scope.one(kind, [x, scope.ints(0)], STRING, (1, *x.dims))
    if kind == "Gather" and x.rank >= 1 and isinstance(x.dims[0], int):
        return scope.one(kind, [x, scope.ints(0, 0)], STRING, (2, *x.dims[1:]), axis=0)
    return scope.one("Identity", [x], STRING, x.dims)


def compared_words(scope: Scope) -> object:
    """A comparison of strings, and a choice between them."""
    x = _strings(scope)
    if x is None or scope.opset < 19:
        return None
    made = scope.one("Equal", [x, scope.random.choice([x, _words(scope)])], BOOL, x.dims)
    if scope.chance(0.5):
        return scope.one("Where", [made, x, _words(scope)], STRING, x.dims)
    return scope.one("Cast", [made], FLOAT, x.dims, to=FLOAT)


def made_words(scope: Scope) -> object:
    """Strings that operators make: of numbers, of two strings, or of parts of one."""
    x = _strings(scope)
    kind = scope.random.choice(["Cast", "StringConcat", "StringSplit", "RegexFullMatch"])
    if kind == "Cast":
        number = scope.pick(lambda t: t.dtype == INT64)
        return None if number is None else scope.one(kind, [number], STRING, number.dims, to=STRING)
    if x is None or scope.opset < 20:
        return None
    if kind == "StringConcat":
        return scope.one(kind, [x, scope.random.choice([x, _words(scope)])], STRING, x.dims)
    if kind == "RegexFullMatch":
        return scope.one(kind, [x], BOOL, x.dims, pattern="a+|bb")
    _, counts = scope.put(kind, [x], [(STRING, (*x.dims, scope.unknown())), (INT64, x.dims)])
    return counts


def _sequence(scope: Scope) -> Tensor | None:
    return scope.pick_form("sequence")


def _whole(scope: Scope) -> Tensor | None:
    return scope.pick(lambda t: t.dtype == FLOAT and t.rank >= 1 and t.size <= 512)


def sequence(scope: Scope) -> object:
    """A sequence of tensors of one shape."""
    x = _whole(scope)
    if x is None or scope.opset < 11:
        return None
    others = [t for t in scope.values if (t.dtype, t.dims) == (x.dtype, x.dims) and not t.constant]
    if scope.chance(0.3):
        empty = scope.hold("SequenceEmpty", [], x, "sequence")
        scope.own_forms.remove(empty)  # a node that reads its first element has none
        return scope.hold("SequenceInsert", [empty, x], x, "sequence")
    if scope.chance(0.3) and isinstance(x.dims[0], int) and x.at(0) >= 1:
        row = Tensor("", FLOAT, (1, *x.dims[1:]))
        return scope.hold("SplitToSequence", [x], row, "sequence", axis=0)
    parts = [x, *(scope.random.choice(others or [x]) for _ in range(scope.random.choice([0, 1, 2])))]
    return scope.hold("SequenceConstruct", parts, x, "sequence")


def from_sequence(scope: Scope) -> object:
    """A tensor of a sequence, its length, or a longer sequence."""
    x = _sequence(scope)
    if x is None:
        return None
    kind = scope.random.choice(["at", "at", "length", "insert", "stack"])
    if kind == "insert":
        fit = scope.pick(lambda t: (t.dtype, t.dims) == (x.dtype, x.dims))
        return None if fit is None else scope.hold("SequenceInsert", [x, fit], x, "sequence")
    if kind == "length":
        return scope.one("SequenceLength", [x], INT64, ())
    if kind == "stack" and x.rank:
        stacked = scope.one("ConcatFromSequence", [x], FLOAT, (*x.dims[:-1], scope.unknown()), axis=-1)
        return scope.one("ReduceMax", [stacked], FLOAT, (), keepdims=0)
    return scope.one("SequenceAt", [x, scope.constant(np.asarray(0, np.int64))], FLOAT, x.dims)


def optional(scope: Scope) -> object:
    """An optional value, and its content."""
    x = _whole(scope)
    if x is None or scope.opset < 15 or scope.shared.ir_version < 8:
        return None
    held = scope.hold("Optional", [x], x, "optional")
    if scope.chance(0.3):
        scope.one("OptionalHasElement", [held], BOOL, ())
    return scope.one("OptionalGetElement", [held], FLOAT, x.dims)


OTHER_KINDS: tuple[Step, ...] = (
    words,
    words,
    compared_words,
    made_words,
    sequence,
    sequence,
    from_sequence,
    from_sequence,
    from_sequence,
    optional,
)
