"""Tests: `Conv[group == 1]`, `Producer[value ≈ 0.5]`, `Softmax[axis == -1 and inputs[0].rank == 4]`.

A test is evaluated over the node's attributes (with the defaults of its schema), and over the shapes, element types and
constant values of its inputs and outputs. What is not known makes a comparison false, and `Unknown` says why.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.opset import Opsets
from onnxtile.model.topology import is_read, is_read_outside
from onnxtile.operators.node_view import Dims, given_input
from onnxtile.query.graph import Vertex, is_constant
from onnxtile.query.language import (
    TRUTHS,
    Comparison,
    ElementOf,
    Expression,
    ListOf,
    Logic,
    Name,
    Not,
    Number,
    PropertyOf,
    Text,
)
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, QueryError
from onnxtile.system.runtime import Array

# When two values of a test are the same, or about the same.


def is_open(left: Any, right: Any) -> bool:
    """Tell whether it is open if two dimensions, or lists of them, are the same: one is a symbol or unknown, the other a number."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = list(zip(left, right, strict=True))
        sure = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
        return not sure and any(is_open(a, b) for a, b in pairs)
    if left is None or right is None:
        return True
    return (
        isinstance(left, str | int) and isinstance(right, str | int) and isinstance(left, str) != isinstance(right, str)
    )


def listed(side: Any) -> str:
    """Return a value as a message shows it."""
    return str(["?" if item is None else item for item in side]) if isinstance(side, list) else str(side)


def equal(left: Any, right: Any) -> bool:
    """Tell whether two values are the same; a single number equals an array all of whose elements are that number."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        pair = _arrays(left, right)
        return pair is not None and bool(np.all(pair[0] == pair[1]))
    return bool(left == right)


def close(left: Any, right: Any) -> bool:
    """Tell whether all elements agree within the precision of the coarser element type (4 units in the last place)."""
    pair = _arrays(left, right)
    if pair is None or any(array.dtype.kind not in "fiuV" for array in pair):
        return False
    precision = max(map(_precision, pair))
    x, y = (array.astype(np.float64) for array in pair)
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= 4 * precision * np.maximum(np.abs(x), np.abs(y))
    return bool(np.all(np.where(np.isfinite(x) & np.isfinite(y), near, x == y)))


def _arrays(left: Any, right: Any) -> tuple[Array, Array] | None:
    """Return both as flat arrays; None where they have different numbers of elements and neither is a single one."""
    try:
        a, b = np.ravel(left), np.ravel(right)
    except ValueError:  # a list of lists of different lengths
        return None
    if a.size != b.size and (1 not in {a.size, b.size} or 0 in {a.size, b.size}):
        return None
    return a, b


def _precision(array: Array) -> float:
    if array.dtype.kind in "iu":
        return 0.0
    if array.dtype.kind == "V":
        import ml_dtypes

        try:
            return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]
        except ValueError:  # int4 and the like
            return 0.0
    return float(np.spacing(np.ones(1, array.dtype))[0])


# Shapes and element types of a model that is edited between two questions.


class LateShapes:
    """The shapes of a model's values, known when the first test asks; values made later have those of the values they replace.

    `known` gives the shapes of `model` as it was at first; without it they are inferred, of the model as it is when the first test asks.
    """

    def __init__(self, model: ir.Model, known: Callable[[], Shapes] | None = None) -> None:
        self._model = model
        self._known = known
        self._table: Shapes | None = None
        self._origins: dict[ir.Value, ir.Value] = {}

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Note that `new` has taken the place of `old`."""
        if self._known is not None or self._table is not None:
            self._origins[new] = self._origins.get(old, old)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type; None where it is unknown. Raises ModelError where the shapes contradict each other."""
        return self._inferred().dtype(self._origins.get(value, value))

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions as `Shapes.dims` does. Raises ModelError where the shapes contradict each other."""
        return self._inferred().dims(self._origins.get(value, value))

    def _inferred(self) -> Shapes:
        if self._table is None:
            self._table = resolve(self._model) if self._known is None else self._known()
        return self._table


# Nodes that provably change nothing: each hands on its first input, element for element, as its only result.
#
# A query sees through them wherever they stand. What the proofs need of shapes and element types is asked for only then.

_ENDLESS = 2**31 - 1
"""From this end of a Slice on there is nothing to cut: exporters write the largest number of their type."""


class Unchanged:
    """Tells which nodes of a model change nothing; `constants` and `shapes` are those of the model."""

    def __init__(self, constants: Constants, shapes: LateShapes) -> None:
        self._constants = constants
        self._shapes = shapes
        self._proofs: Mapping[str, Callable[[ir.Node], bool]] = {
            **dict.fromkeys(("Identity",), lambda _: True),
            **dict.fromkeys(("Concat", "Max", "Mean", "Min", "Sum"), lambda node: len(node.inputs) == 1),
            **dict.fromkeys(("Cast", "CastLike"), self._keeps_type),
            **dict.fromkeys(("Expand", "Flatten", "Reshape", "Squeeze"), self._keeps_shape),
            "Dropout": self._is_inference,
            "Slice": self._cuts_nothing,
            "Transpose": self._keeps_order,
        }
        self._known: dict[ir.Node, bool] = {}

    def may(self, node: ir.Node) -> bool:
        """Return whether `node` is of an operator that may change nothing; no constant is."""
        if node.domain != "" or node.op_type not in self._proofs or not node.inputs or node.inputs[0] is None:
            return False
        return node.outputs[0] not in self._constants and not any(map(is_read, node.outputs[1:]))

    def does(self, node: ir.Node) -> bool:
        """Return whether `node` provably changes nothing."""
        if node not in self._known:
            try:
                self._known[node] = self.may(node) and self._proofs[node.op_type](node)
            except ModelError:  # shapes contradict each other
                self._known[node] = False
        return self._known[node]

    def origin(self, value: ir.Value) -> ir.Value:
        """Return the value that `value` is a copy of, as far as nodes of its graph that change nothing lead; else `value`."""
        node = value.producer()
        while node is not None and self.does(node):
            source = node.inputs[0]
            maker = None if source is None else source.producer()
            if source is None or (maker is not None and maker.graph is not node.graph):
                break
            value, node = source, maker
        return value

    def held(self, value: ir.Value) -> ir.Value:
        """Return the constant of which nodes that change nothing make `value`, as CastLike may; else `value`."""
        if value in self._constants or self._furthest(value) not in self._constants:
            return value
        origin = self.origin(value)
        return origin if origin in self._constants else value

    def same(self, value: ir.Value, other: ir.Value) -> bool:
        """Return whether both are copies of one value. Proofs are asked for only where the graph leaves it open."""
        return self._furthest(value) is self._furthest(other) and self.origin(value) is self.origin(other)

    def _furthest(self, value: ir.Value) -> ir.Value:
        """Return the value that `value` is a copy of, if all nodes that may change nothing do so."""
        node = value.producer()
        while node is not None and self.may(node) and node.inputs[0] is not None:
            value, node = node.inputs[0], node.inputs[0].producer()
        return value

    def between(self, nodes: Collection[ir.Node]) -> list[ir.Node]:
        """Return the nodes that hand on to `nodes`, and to nothing else, what these read or make in another way as well.

        So do nodes that hand on a constant.
        """
        members = set(nodes)
        read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
        copies: dict[ir.Value, list[ir.Value]] = {}
        for value in dict.fromkeys((*read, *(value for node in nodes for value in node.outputs))):
            copies.setdefault(self._furthest(value), []).append(value)
        between: dict[ir.Node, None] = {}
        for value in read:
            if self.held(value) is not value:
                self._take(value, members, between)
        for values in copies.values():
            for value in values if len(values) > 1 else ():
                if value in read and any(self.same(value, other) for other in values if other is not value):
                    self._take(value, members, between)
        return list(between)

    def _take(self, value: ir.Value, members: set[ir.Node], between: dict[ir.Node, None]) -> None:
        """Add the nodes that lead to `value` from its origin, as far as only `members` and nodes found read their results."""
        node = value.producer()
        while node is not None and node not in members and self.does(node):
            if is_read_outside(value, members | between.keys()):
                return
            between[node] = None
            source = node.inputs[0]
            assert source is not None
            value, node = source, source.producer()

    # Proofs

    def _keeps_type(self, node: ir.Node) -> bool:
        source, to = node.inputs[0], node.attributes.get("to")
        if source is None or (to is not None and to.is_ref()):
            return False
        after = self._shapes.dtype(node.outputs[0]) if to is None else ir.DataType(to.as_int())
        before = source.dtype or self._shapes.dtype(source)
        return before is not None and before == after

    def _keeps_shape(self, node: ir.Node) -> bool:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        ranks = self._rank(source), self._rank(result)
        if None not in ranks and ranks[0] != ranks[1]:
            return False
        before, after = self._shapes.dims(source), self._shapes.dims(result)
        return before is not None and before == after and None not in before

    def _rank(self, value: ir.Value) -> int | None:
        """Return the number of axes, where the node that makes `value` says it: cheaper than to infer all shapes."""
        node = value.producer()
        if value.shape is not None:
            return len(value.shape)
        if node is not None and node.op_type == "Transpose":
            return len(node.attributes.get_ints("perm", ())) or None
        if node is not None and node.op_type == "Reshape":
            target = self._numbers(node, 1, "shape")
            return None if target is None else len(target)
        return None

    def _is_inference(self, node: ir.Node) -> bool:
        training = given_input(node, 2)
        if training is not None:
            return training in self._constants and not np.any(self._constants.array(training))
        return "is_test" not in node.attributes or node.attributes.get_int("is_test", 0) != 0

    def _cuts_nothing(self, node: ir.Node) -> bool:
        steps = self._numbers(node, 4, "steps")
        if steps is None or any(step < 1 for step in steps):
            return False
        starts, ends = self._numbers(node, 1, "starts"), self._numbers(node, 2, "ends")
        endless = starts and ends and not any(starts) and min(ends) >= _ENDLESS and set(steps) <= {1}
        return bool(endless) or self._keeps_shape(node)

    def _keeps_order(self, node: ir.Node) -> bool:
        perm = node.attributes.get_ints("perm", ())
        return len(perm) > 0 and list(perm) == list(range(len(perm)))

    def _numbers(self, node: ir.Node, index: int, name: str) -> Sequence[int] | None:
        """Return the integers of an operand that was an attribute once; none where it is not given, None where it is computed."""
        value = given_input(node, index)
        if value is None:
            return node.attributes.get_ints(name, ())
        return self._constants.array(value).ravel().tolist() if value in self._constants else None


_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FIELDS = ("constant", "dtype", "node", "op", "rank", "shape", "size", "value")
WORDS = (*_FIELDS, *TRUTHS, "inputs", "outputs", "data", "share", "count")
"""Properties that a test may read of every node."""

TestSubject: TypeAlias = Vertex | Mapping[str, Vertex]
"""The names in an expression: properties of one vertex, or anchors."""


@dataclass(frozen=True)
class Unknown:
    """Stands for what a test asks for and the model does not say."""

    reason: str


@dataclass(frozen=True)
class TestContext:
    """What a test may ask about: the constants of the model, and its shapes, which are inferred when the first test asks."""

    constants: Constants
    shapes: LateShapes
    opsets: Opsets
    model: ir.Model
    text: str
    strict: bool
    """Whether a name that an operator does not have is an error, or, as where any node may stand, only not known."""
    unchanged: Unchanged


@dataclass(frozen=True)
class _IslandNode:
    """A node inside a quantised island, and the operands of the island's call by the inputs of its function."""

    node: ir.Node
    operands: Mapping[ir.Value, ir.Value | None]

    def inputs(self) -> list[ir.Value | None]:
        """Return the inputs of the node, as far as they are known outside: the operands of the call."""
        return [value if value is None else self.operands.get(value, value) for value in self.node.inputs]


def holds(test: Expression, scope: TestSubject, facts: TestContext) -> bool:
    """Tell whether `test` is true in `scope`. Raises QueryError for a name that the operator does not have."""
    result = evaluate(test, scope, facts)
    return not isinstance(result, Unknown) and _truth(result)


def _truth(result: Any) -> bool:
    if isinstance(result, bool):  # as most are, and `isinstance` is slow to say no to the classes below
        return result
    return True if isinstance(result, ir.Value | ir.Node) else bool(np.all(result))


def evaluate(test: Expression, scope: TestSubject, facts: TestContext) -> Any:
    """Return the value of `test` in `scope`, or Unknown. Raises QueryError for a name that the operator does not have."""
    match test:
        case Number() | Text():
            return test.value
        case ListOf():
            return [evaluate(item, scope, facts) for item in test.items]
        case Not():
            result = evaluate(test.operand, scope, facts)
            return result if isinstance(result, Unknown) else not _truth(result)
        case Logic():
            return _logic(test, scope, facts)
        case Comparison():
            return _compare(test, scope, facts)
        case _:
            return _look_up(test, scope, facts)


def _logic(test: Logic, scope: TestSubject, facts: TestContext) -> bool | Unknown:
    """Return true or false where that is certain, whatever the operands are that are not known."""
    decisive = test.operator == "or"
    unknown: Unknown | None = None
    for operand in test.operands:
        result = evaluate(operand, scope, facts)
        if isinstance(result, Unknown):
            unknown = result
        elif _truth(result) == decisive:
            return decisive
    return unknown or not decisive


def _look_up(reference: Name | ElementOf | PropertyOf, scope: TestSubject, facts: TestContext) -> Any:
    if isinstance(reference, Name):
        return _anchored(reference, scope) if isinstance(scope, Mapping) else _named(reference, scope, facts)
    base = evaluate(reference.base, scope, facts)
    if isinstance(base, Unknown):
        return base
    if isinstance(reference, ElementOf):
        return _element(base, reference, facts)
    if isinstance(base, _IslandNode):
        name = Name(reference.name, reference.span)
        return base.inputs() if reference.name == "inputs" else _named(name, base.node, facts)
    if isinstance(base, ir.Node):
        return _named(Name(reference.name, reference.span), base, facts)
    if isinstance(base, ir.Value):
        return _property(base, reference, facts)
    raise QueryError("only nodes, their inputs and their outputs have properties", facts.text, reference.span)


def _anchored(name: Name, anchors: Mapping[str, Vertex]) -> Any:
    if name.value in TRUTHS:
        return TRUTHS[name.value]
    bound = [vertex for key, vertex in anchors.items() if key.partition("#")[2] == name.value]
    return bound[0] if bound else Unknown(f"the anchor #{name.value} is not bound")


def _element(base: Any, reference: ElementOf, facts: TestContext) -> Any:
    if not isinstance(base, list | tuple | np.ndarray):
        raise QueryError("this has no elements", facts.text, reference.span)
    if isinstance(base, np.ndarray) and base.ndim == 0:
        return Unknown("it is a scalar, which has no elements")
    if not -len(base) <= reference.position < len(base):
        return Unknown(f"there is no element {reference.position}")
    element = base[reference.position]
    return Unknown("it is not given") if element is None else element


def _named(name: Name, vertex: Vertex, facts: TestContext) -> Any:
    word = name.value
    if word in TRUTHS:
        return TRUTHS[word]
    if word == "value" and is_constant(vertex, facts.constants):
        return _array(vertex if isinstance(vertex, ir.Value) else vertex.outputs[0], facts)
    if not isinstance(vertex, ir.Node):
        return _of_initializer(name, vertex, facts)
    if word == "inputs":
        return list(vertex.inputs)
    if word == "outputs":
        return list(vertex.outputs)
    if word in {"constant", "data"}:
        return _operand(vertex, facts, constant=word == "constant")
    if word not in {"share", "count"}:
        return _attribute(vertex, name, facts)
    count = _count(vertex, facts)
    return 1.0 / count if word == "share" and isinstance(count, int) else count


def _count(node: ir.Node, facts: TestContext) -> int | Unknown:
    """Return how many elements `node` reduces to each of its results: a sum divided by that, or times its share, is a mean."""
    source = node.inputs[0] if node.inputs and node.op_type.startswith("Reduce") else None
    if source is None:
        return Unknown(f"{node.op_type} {node.name!r} reduces nothing")
    dims = facts.shapes.dims(source)
    axes = _content(_attribute(node, Name("axes", (0, 0)), facts), facts)
    if dims is None or isinstance(axes, Unknown):
        return Unknown(f"the shape of {source.name!r} is not known" if dims is None else axes.reason)
    places = [int(axis) for axis in np.ravel(axes)]
    if not places or not all(-len(dims) <= index < len(dims) for index in places):
        return Unknown(f"the axes of {node.op_type} {node.name!r} are not given")
    sizes = [dims[index] for index in places]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return Unknown(f"how many elements {node.op_type} {node.name!r} reduces is not known")
    return prod(size for size in sizes if isinstance(size, int))


def _of_initializer(name: Name, value: ir.Value, facts: TestContext) -> Any:
    if name.value in {"inputs", "outputs"}:
        return [value] if name.value == "outputs" else []
    if name.value in _FIELDS or facts.strict:
        return _property(value, PropertyOf(name, name.value, name.span), facts)
    return Unknown(f"the constant {value.name!r} has no {name.value!r}")


def _array(value: ir.Value, facts: TestContext) -> Any:
    try:
        return facts.constants.array(value)
    except ModelError as error:
        return Unknown(error.message)


def _operand(node: ir.Node, facts: TestContext, *, constant: bool) -> Any:
    """Return the only input of `node` that is a constant, or the only one that is none."""
    held = (facts.unchanged.held(value) for value in node.inputs if value is not None)
    operands = [value for value in held if (value in facts.constants) == constant]
    kind = "constant" if constant else "computed"
    return operands[0] if len(operands) == 1 else Unknown(f"{node.op_type} has {len(operands)} {kind} inputs, not 1")


def _property(value: ir.Value, reference: PropertyOf, facts: TestContext) -> Any:
    value = facts.unchanged.held(value)
    word, known = reference.name, value in facts.constants
    if word not in _FIELDS:
        raise QueryError(f"unknown property {word!r} (choose {', '.join(_FIELDS)})", facts.text, reference.span)
    if word == "constant":
        return known
    if word in {"node", "op"}:
        return _maker(value, word, facts)
    if word == "value":
        return _array(value, facts) if known else Unknown(f"{value.name!r} is not constant")
    return _typed_property(value, word, facts)


def _maker(value: ir.Value, word: str, facts: TestContext) -> Any:
    """Return the node that makes `value`, or its operator, "" where it has none; of a quantised island, the node inside."""
    value = facts.unchanged.origin(value)
    producer = value.producer()
    inside = None if producer is None else _in_island(producer, value.index() or 0, facts)
    if word == "op":
        maker = producer if inside is None else inside.node
        return "" if maker is None else maker.op_type
    return inside or producer or Unknown(f"no node makes {value.name!r}")


def _in_island(call: ir.Node, output: int, facts: TestContext) -> _IslandNode | None:
    """Return the node that makes `output` of `call`, where that calls a quantised island: a test holds as before it was made."""
    function = facts.model.functions.get(call.op_identifier())
    if function is None or keys.ISLAND not in function.metadata_props:
        return None
    node = function.outputs[output].producer()
    operands = dict(zip(function.inputs, call.inputs, strict=False))
    return None if node is None else _IslandNode(node, operands)


def _typed_property(value: ir.Value, word: str, facts: TestContext) -> Any:
    """Return a property of the type; a constant's is known without inference."""
    constant = _array(value, facts) if value in facts.constants else None
    if isinstance(constant, Unknown):
        return constant
    if word == "dtype":
        dtype = ir.DataType.from_numpy(constant.dtype) if constant is not None else facts.shapes.dtype(value)
        return Unknown(f"the element type of {value.name!r} is not known") if dtype is None else dtype.name.lower()
    dims = constant.shape if constant is not None else facts.shapes.dims(value)
    if dims is None:
        return Unknown(f"the shape of {value.name!r} is not known")
    if word == "rank":
        return len(dims)
    if word == "shape":
        return list(dims)
    sizes = [dim for dim in dims if isinstance(dim, int)]
    return prod(sizes) if len(sizes) == len(dims) else Unknown(f"the size of {value.name!r} is not known")


def _attribute(node: ir.Node, name: Name, facts: TestContext) -> Any:
    """Return an attribute, or an input by the name that the operator's schema gives it (`axes`, `shape`, `min` ...)."""
    attribute = node.attributes.get(name.value)
    if attribute is not None:
        return Unknown("the function's caller says it") if attribute.is_ref() else _plain(attribute.value)
    signature = _signature(node.domain, node.op_type, facts.opsets.opsets_of(node.graph).get(node.domain, 1))
    absent = Unknown(f"{node.op_type} {node.name!r} does not give {name.value!r}")
    if signature is None:
        return absent
    attributes, inputs = signature
    if name.value in attributes:
        default = attributes[name.value]
        return absent if default is None else default
    if name.value in inputs:
        position = inputs.index(name.value)
        value = given_input(node, position)
        return absent if value is None else value
    if name.value in _FIELDS and node.outputs:
        return _property(node.outputs[0], PropertyOf(name, name.value, name.span), facts)
    if name.value in names_of(node.domain, node.op_type) or not facts.strict:
        return absent
    listed = ", ".join(sorted({*attributes, *inputs})) or "none"
    raise QueryError(f"{node.op_type} has no {name.value!r}; it has {listed}", facts.text, name.span)


@cache
def _signature(domain: str, op_type: str, version: int) -> tuple[Mapping[str, Any], tuple[str, ...]] | None:
    """Return the attributes of an operator with their default values (None: no default), and the names of its inputs; None without any."""
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    signature: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        given = attribute.default_value.name
        signature[name] = _plain(onnx.helper.get_attribute_value(attribute.default_value)) if given else None
    return signature, tuple(parameter.name for parameter in schema.inputs)


@cache
def names_of(domain: str, op_type: str) -> frozenset[str]:
    """Return the names of attributes and inputs that an operator has in any version: `axes` was one, then the other."""
    schemas = _versions()[domain, op_type]
    return frozenset(name for s in schemas for name in (*s.attributes, *(parameter.name for parameter in s.inputs)))


@cache
def _versions() -> Mapping[tuple[str, str], Sequence[onnx.defs.OpSchema]]:
    """Return the schemas of every version of each operator."""
    versions: defaultdict[tuple[str, str], list[onnx.defs.OpSchema]] = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        versions[schema.domain, schema.name].append(schema)
    return versions


def _plain(value: Any) -> Any:
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, tuple):
        return list(value)
    # Asked last: whether a value fulfils a protocol takes long.
    return value.numpy() if isinstance(value, ir.TensorProtocol) else value


def _compare(test: Comparison, scope: TestSubject, facts: TestContext) -> Any:
    left, right = evaluate(test.left, scope, facts), evaluate(test.right, scope, facts)
    if isinstance(left, ir.Value) and _is_among(left, right, facts):
        return test.operator != "!="
    if isinstance(left, ir.Value) and isinstance(right, list) and test.operator == "in":
        right = [other for other in right if not isinstance(other, ir.Value) or other in facts.constants]
        if left not in facts.constants:
            return False
    left, right = _content(left, facts), _content(right, facts)
    for side in (left, right):
        if isinstance(side, Unknown):
            return side
    return _compare_contents(left, right, test, facts)


def _compare_contents(left: Any, right: Any, test: Comparison, facts: TestContext) -> Any:
    if test.operator == "in":
        return _is_in(left, right, test, facts)
    if test.operator == "≈":
        return close(left, right)
    literal = isinstance(test.left, Text) or isinstance(test.right, Text)
    if not literal and is_open(left, right):
        return Unknown(f"{listed(left)} and {listed(right)} may or may not be the same")
    if test.operator in {"==", "!="}:
        return equal(left, right) == (test.operator == "==")
    try:
        return np.all(_ORDER[test.operator](left, right))
    except ValueError:
        return Unknown("they differ in shape")
    except TypeError:
        raise QueryError("these cannot be compared", facts.text, test.span) from None


def _is_in(left: Any, right: Any, test: Comparison, facts: TestContext) -> bool:
    if not isinstance(right, list | np.ndarray):
        raise QueryError("what follows 'in' must be a list", facts.text, test.span)
    items = right.ravel().tolist() if isinstance(right, np.ndarray) else right
    contents = (_content(item, facts) for item in items)
    return any(equal(left, content) for content in contents if not isinstance(content, Unknown))


def _is_among(value: ir.Value, others: Any, facts: TestContext) -> bool:
    """Tell whether `value` is the other side of a comparison, or one of a list there: the same value, constant or not.

    What nodes that change nothing hand on is the same value.
    """
    listed = others if isinstance(others, list) else [others]
    if any(other is value for other in listed):
        return True
    return any(isinstance(other, ir.Value) and facts.unchanged.same(other, value) for other in listed)


def _content(side: Any, facts: TestContext) -> Any:
    """Return the elements of a constant input; everything else as it is."""
    if isinstance(side, bool | int | float | str | list | np.ndarray) or not isinstance(side, ir.Value):
        return side
    return _array(side, facts) if side in facts.constants else Unknown(f"{side.name!r} is not constant")


# Reasons why a test is false, with the values it read.

_SHOWN = 4


def why_not(test: Expression, scope: TestSubject, facts: TestContext) -> str:
    """Return why `test` does not hold in `scope`: `axis is 1, not -1`."""
    match test:
        case Logic():
            failing = [operand for operand in test.operands if not holds(operand, scope, facts)]
            shown = failing[:1] if test.operator == "and" else failing
            return "; ".join(dict.fromkeys(why_not(operand, scope, facts) for operand in shown))
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
    right = _shown(evaluate(test.right, scope, facts), facts)
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
