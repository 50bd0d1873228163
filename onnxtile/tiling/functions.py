"""Local functions while tile works: the shapes inside, as all calls see them, and a copy for each size that a function is called with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.constants import constant_array
from onnxtile.model.topology import all_nodes, called_functions, nodes_in
from onnxtile.operators.node_view import Dims, KnownConstants, NotApplicable, ReasonCode
from onnxtile.shapes.infer import values
from onnxtile.shapes.propagation import Propagation
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError
from onnxtile.system.runtime import Array

# Shapes inside local functions: the sizes that their call sites agree on, and the small constants that these give.

_IR_VERSION = 10
_MOST = 64
"""Most elements of a constant that may decide shapes: the inputs of Reshape, Slice, Split or Expand have about one an axis."""
Signature = tuple[tuple[ir.DataType | None, Dims | None] | None, ...]
"""Element type and dimensions of each input of a call; None for one that is left out."""


@dataclass(frozen=True)
class FunctionShapes:
    """The shapes of the values of one function, as all its calls see them."""

    shapes: Shapes
    given: Mapping[ir.Value, Array]
    """The elements of the inputs that are the same small constant in all calls."""


class FunctionTable:
    """The bodies of a model's functions; each is inferred once, after those that call it."""

    def __init__(self, model: ir.Model, shapes: Shapes, constants: KnownConstants) -> None:
        self._model = model
        self._shapes = shapes
        self._constants = constants
        self._known: dict[ir.OperatorIdentifier, FunctionShapes | NotApplicable] = {}
        self._callers: dict[ir.Value, ir.OperatorIdentifier] = {}
        # A dict stands for a set that keeps its order: a call is taken out in constant time.
        self._calls: dict[ir.OperatorIdentifier, dict[ir.Node, None]] = defaultdict(dict)
        for node in all_nodes(model):
            self._calls[node.op_identifier()][node] = None
        for function in model.functions.values():
            self._register(function)

    def add(self, function: ir.Function, calls: Sequence[ir.Node]) -> None:
        """Take up `function`, a new copy of one in the model that `calls` call now instead of that."""
        self._model.functions[function.identifier()] = function
        self._register(function)
        for node in function.all_nodes():
            self._calls[node.op_identifier()][node] = None
        for call in calls:
            del self._calls[call.op_identifier()][call]
            call.op_type = function.name
            self._calls[call.op_identifier()][call] = None

    def calls(self, function: ir.Function) -> dict[Signature, list[ir.Node]]:
        """Return the calls of `function` by the sizes of their inputs. Raises NotApplicable where nothing is known of a caller."""
        calls_by_size: dict[Signature, list[ir.Node]] = defaultdict(list)
        for call in self._calls[function.identifier()]:
            calls_by_size[self._signature(call, len(function.inputs))].append(call)
        return calls_by_size

    def shapes_of(self, function: ir.Function) -> Shapes:
        """Return the shapes inside `function`. Raises NotApplicable with the reason where its calls do not decide them."""
        return self._inside(function).shapes

    def _inside(self, function: ir.Function) -> FunctionShapes:
        """Return the shapes inside `function`. Raises NotApplicable with the reason where its calls do not decide them."""
        key = function.identifier()
        if key not in self._known:
            try:
                self._known[key] = self._infer(function)
            except NotApplicable as reason:
                self._known[key] = reason
        body = self._known[key]
        if isinstance(body, NotApplicable):
            inside = f"it is inside the local function {function.domain}::{function.name}"
            raise NotApplicable(f"{inside}, {body}", body.code)
        return body

    def _register(self, function: ir.Function) -> None:
        self._callers |= dict.fromkeys(_values(function), function.identifier())

    def _infer(self, function: ir.Function) -> FunctionShapes:
        if function.attributes:
            raise NotApplicable("which has attributes")
        calls = self.calls(function)
        if not calls:
            raise NotApplicable("which is called nowhere")
        if len(calls) > 1:
            raise NotApplicable("whose calls have different sizes")
        ((signature, nodes),) = calls.items()
        return _inferred(self._model, function, signature, self._given(nodes, len(function.inputs)))

    def _signature(self, call: ir.Node, count: int) -> Signature:
        inputs = [*call.inputs, *[None] * (count - len(call.inputs))]
        return tuple(None if value is None else self._fact(value) for value in inputs)

    def _fact(self, value: ir.Value) -> tuple[ir.DataType | None, Dims | None]:
        caller = self._callers.get(value)
        table: Shapes = self._shapes if caller is None else self.shapes_of(self._model.functions[caller])
        return table.dtype(value), table.dims(value)

    def _given(self, calls: Sequence[ir.Node], count: int) -> list[Array | None]:
        """Return for each input of a function the small constant that all its calls give, None where they differ or give another value."""
        given: list[Array | None] = []
        for index in range(count):
            arrays = [self._constant_of(call.inputs[index]) if index < len(call.inputs) else None for call in calls]
            same = all(
                array is not None and arrays[0] is not None and np.array_equal(array, arrays[0]) for array in arrays
            )
            given.append(arrays[0] if same else None)
        return given

    def _constant_of(self, value: ir.Value | None) -> Array | None:
        """Return the elements of a value that is a constant of few integers."""
        dtype, dims = (None, None) if value is None else self._fact(value)
        if value is None or dtype not in {ir.DataType.INT64, ir.DataType.INT32} or dims is None or len(dims) > 1:
            return None
        if any(not isinstance(size, int) or size > _MOST for size in dims):
            return None
        if value in self._constants:
            return self._constants.array(value)
        caller, node = self._callers.get(value), value.producer()
        if caller is None:
            return self._computed.number(value)
        if node is None:
            return self._inside(self._model.functions[caller]).given.get(value)
        return constant_array(node) if node.op_type == "Constant" else None

    @cached_property
    def _computed(self) -> Propagation:
        """The few numbers that the main graph computes from shapes."""
        known = [(value, self._shapes.dtype(value), self._shapes.dims(value)) for value in values(self._model)]
        dtypes = {value: dtype for value, dtype, _ in known if dtype is not None}
        numbers = Propagation(self._model, dtypes, {value: dims for value, _, dims in known if dims is not None})
        numbers.run()
        return numbers


def _inferred(
    model: ir.Model, function: ir.Function, signature: Signature, given: Sequence[Array | None]
) -> FunctionShapes:
    """Infer the body of `function` as a graph whose inputs have the sizes of its calls; constants that these give are constants there."""
    copy = function.clone()
    stand_ins = dict(zip(_values(function), _values(copy), strict=True))
    held = {value: array for value, array in zip(function.inputs, given, strict=True) if array is not None}
    for value, fact in zip(list(copy.inputs), signature, strict=True):
        if fact is None or fact[0] is None:
            raise NotApplicable(f"of whose input {value.name!r} nothing is known", ReasonCode.UNKNOWN_SIZE)
        value.type = ir.TensorType(fact[0])
        value.shape = None if fact[1] is None else ir.Shape(fact[1])
    for value, array in held.items():
        inside = stand_ins[value]
        copy.graph.inputs.remove(inside)
        inside.const_value = ir.tensor(array, name=inside.name)
        copy.graph.register_initializer(inside)
    functions = [other.clone() for other in called_functions(nodes_in(function), model)]
    shell = ir.Model(copy.graph, ir_version=_IR_VERSION, functions=functions)
    return FunctionShapes(_resolved(shell).of_copies({copied: value for value, copied in stand_ins.items()}), held)


def _resolved(shell: ir.Model) -> Shapes:
    """Return the shapes of a body, from a run where inference is not enough and onnxruntime has the operators."""
    try:
        return resolve(shell, run=True)
    except ModelError:
        pass
    try:
        return resolve(shell)
    except ModelError as error:
        raise NotApplicable(f"whose shapes cannot be inferred: {error.message}", ReasonCode.UNKNOWN_SIZE) from None


def _values(function: ir.Function) -> Iterator[ir.Value]:
    yield from function.inputs
    for node in function:
        yield from node.outputs


# A local function whose calls have different sizes becomes one for each, since each of them is cut differently.
#
# Copies get numbers, like meta-ops with different bodies: Linear, Linear.2, Linear.3 ...


class FunctionCopies:
    """The functions of a model that have been copied, one for each size that they are called with."""

    def __init__(self, model: ir.Model, table: FunctionTable) -> None:
        self._model = model
        self._table = table
        self._made: dict[ir.OperatorIdentifier, list[ir.Function]] = {}

    def split(self, is_tileable: Callable[[ir.Node], bool]) -> None:
        """Give each size that a function with a tileable node somewhere inside is called with a copy of it."""
        functions = self._model.functions
        hosts = _reaching(self._model, is_tileable)
        for key in _callers_first(self._model):
            if key in hosts and not functions[key].attributes:
                self._split(functions[key])

    def merge(self) -> None:
        """Take back the copies that are still alike, innermost first: nothing in them was cut."""
        for original, copies in reversed(self._made.items()):
            kept: dict[tuple[object, ...], ir.Function] = {}
            for function in (self._model.functions[original], *copies):
                first = kept.setdefault(_content(function), function)
                if first is not function:
                    self._replace(function, first)

    def _split(self, function: ir.Function) -> None:
        try:
            calls = self._table.calls(function)
        except NotApplicable:
            return
        for group in list(calls.values())[1:]:
            copy = _renamed_copy(function, self._free_name(function))
            self._table.add(copy, group)
            self._made.setdefault(function.identifier(), []).append(copy)

    def _free_name(self, function: ir.Function) -> str:
        stem, number = keys.meta_op(function.name), 2
        while (function.domain, f"{stem}.{number}", function.overload) in self._model.functions:
            number += 1
        return f"{stem}.{number}"

    def _replace(self, function: ir.Function, by: ir.Function) -> None:
        for node in all_nodes(self._model):
            if node.op_identifier() == function.identifier():
                node.op_type = by.name
        del self._model.functions[function.identifier()]


def _renamed_copy(function: ir.Function, name: str) -> ir.Function:
    """Return a copy of `function` called `name`."""
    copy = function.clone()
    attributes = list(copy.attributes.values())
    named = ir.Function(function.domain, name, function.overload, graph=copy.graph, attributes=attributes)
    named.metadata_props.update(function.metadata_props)
    named.doc_string = function.doc_string
    return named


def _content(function: ir.Function) -> tuple[object, ...]:
    """Return the content of a copy of a function: its nodes, by operator and name."""
    return tuple((node.op_identifier(), node.name) for node in function)


def _callees(model: ir.Model, function: ir.Function) -> list[ir.OperatorIdentifier]:
    called = dict.fromkeys(node.op_identifier() for node in function.all_nodes())
    return [key for key in called if key in model.functions]


def _callers_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """Return the functions, each after all functions that call it. Functions are not recursive."""
    done: dict[ir.OperatorIdentifier, None] = {}

    def visit(key: ir.OperatorIdentifier) -> None:
        if key in done:
            return
        for callee in _callees(model, model.functions[key]):
            visit(callee)
        done[key] = None

    for key in model.functions:
        visit(key)
    return list(reversed(done))


def _reaching(model: ir.Model, is_tileable: Callable[[ir.Node], bool]) -> set[ir.OperatorIdentifier]:
    """Return the functions that have a tileable node, or call one that has."""
    reaching: set[ir.OperatorIdentifier] = set()
    for key in reversed(_callers_first(model)):
        function = model.functions[key]
        nodes: Iterator[ir.Node] = iter(function.all_nodes())
        if any(is_tileable(node) or node.op_identifier() in reaching for node in nodes):
            reaching.add(key)
    return reaching
