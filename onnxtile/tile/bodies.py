"""What is known inside local functions: the sizes that their call sites agree on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.shapes import resolve
from onnxtile.runtime import Array
from onnxtile.tile.names import all_nodes
from onnxtile.tile.product import Dims, NotTiled, ShapeTable

_IR_VERSION = 10
Signature = tuple[tuple[ir.DataType | None, Dims | None] | None, ...]
"""Element type and dimensions of each input of a call; None for one that is left out."""


class NothingConstant:
    """The constants of a body, where a weight is an input of the function, and so known only when the model runs."""

    def __contains__(self, value: ir.Value | None) -> bool:
        return False

    def array(self, value: ir.Value) -> Array:
        """Raise KeyError."""
        raise KeyError(value.name)


@dataclass(frozen=True)
class Body:
    """The values of one function, as all its calls see them."""

    shapes: ShapeTable
    _stand_ins: Mapping[ir.Value, ir.Value]

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type, None where it is unknown."""
        return self.shapes.dtype(self._stand_ins.get(value, value))

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions, None where the rank is unknown."""
        return self.shapes.dims(self._stand_ins.get(value, value))


class Bodies:
    """The bodies of a model's functions; each is inferred once, after those that call it."""

    def __init__(self, model: ir.Model, shapes: ShapeTable) -> None:
        self._model = model
        self._shapes = shapes
        self._known: dict[ir.OperatorIdentifier, Body | str] = {}
        self._callers = {value: key for key, f in model.functions.items() for value in _values(f)}

    def of(self, function: ir.Function) -> Body:
        """Return what is known inside `function`. Raises NotTiled with the reason where its calls do not tell."""
        key = function.identifier()
        if key not in self._known:
            try:
                self._known[key] = self._infer(function)
            except NotTiled as reason:
                self._known[key] = str(reason)
        body = self._known[key]
        if isinstance(body, str):
            raise NotTiled(f"it stands inside the local function {function.domain}::{function.name}, {body}")
        return body

    def _infer(self, function: ir.Function) -> Body:
        if function.attributes:
            raise NotTiled("which has attributes")
        calls = [node for node in all_nodes(self._model) if node.op_identifier() == function.identifier()]
        if not calls:
            raise NotTiled("which is called nowhere")
        signatures = {self._signature(call, len(function.inputs)) for call in calls}
        if len(signatures) > 1:
            raise NotTiled("whose calls have different sizes")
        return _inferred(self._model, function, signatures.pop())

    def _signature(self, call: ir.Node, count: int) -> Signature:
        inputs = [*call.inputs, *[None] * (count - len(call.inputs))]
        return tuple(None if value is None else self._fact(value) for value in inputs)

    def _fact(self, value: ir.Value) -> tuple[ir.DataType | None, Dims | None]:
        caller = self._callers.get(value)
        table: ShapeTable = self._shapes if caller is None else self.of(self._model.functions[caller])
        return table.dtype(value), table.dims(value)


def _inferred(model: ir.Model, function: ir.Function, signature: Signature) -> Body:
    """Infer the body of `function` as a graph whose inputs are those of its calls."""
    copy = function.clone()
    stand_ins = dict(zip(_values(function), _values(copy), strict=True))
    for value, fact in zip(copy.inputs, signature, strict=True):
        if fact is None or fact[0] is None:
            raise NotTiled(f"of whose input {value.name!r} nothing is known")
        value.type = ir.TensorType(fact[0])
        value.shape = None if fact[1] is None else ir.Shape(fact[1])
    functions = [other.clone() for other in model.functions.values() if other is not function]
    shell = ir.Model(copy.graph, ir_version=_IR_VERSION, functions=functions)
    try:
        return Body(resolve(shell), stand_ins)
    except ModelError as error:
        raise NotTiled(f"whose shapes cannot be inferred: {error}") from None


def _values(function: ir.Function) -> Iterator[ir.Value]:
    yield from function.inputs
    for node in function:
        yield from node.outputs
