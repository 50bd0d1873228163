"""A model in memory, and what shape inference knows of its values, as the plain data that the check reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import onnx_ir as ir

from onnxtile.check.graph import FEW, GraphPath, PlainModel, ValueFacts
from onnxtile.model.binding import Unbound, binding, free_inputs
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeFormula
from onnxtile.model.topology import bodies_of
from onnxtile.model.validity import without_weights
from onnxtile.shapes.opened_calls import inside_of, unfold
from onnxtile.shapes.resolve import Shapes

_KINDS = {
    **{"SequenceType": "sequence", "OptionalType": "optional", "SparseTensorType": "sparse tensor"},
    "TensorType": "tensor",
}
_READS_NUMBERS = {"Slice": 1, "Dropout": 2, "QLinearConcat": 0}
"""The first operand whose numbers the check reads, by operator; it reads those of calls, too."""


def plain_model(model: ir.Model, shapes: Shapes, constants: Constants) -> PlainModel:
    """Return `model` with what `shapes` and `constants` know of its values, also inside calls of functions."""
    opened = unfold(model, shapes, constants)
    facts = _Facts(opened.model, opened.shapes, opened.constants)
    told = {path: dict(facts.of(graph)) for path, graph in _graphs(opened.model.graph, ())}
    return PlainModel(without_weights(model), told, model.ir_version)


class RangedValue(NamedTuple):
    """What inference over ranges knows of a value: its sizes as formulas, and the bits of an element."""

    shape: tuple[SizeFormula, ...] | None
    bits: int | None


def ranged_values(model: ir.Model, shapes: Shapes) -> dict[str, RangedValue]:
    """Return the values of the main graph of `model` over the ranges of its dimensions, by name."""
    values = (*model.graph.inputs, *(value for node in model.graph for value in node.outputs))
    types = [(value, shapes.dtype(value)) for value in values]
    return {
        value.name or "": RangedValue(shapes.formulas(value), None if dtype is None else dtype.bitwidth)
        for value, dtype in types
    }


def _graphs(graph: ir.Graph, path: GraphPath) -> Iterator[tuple[GraphPath, ir.Graph]]:
    yield path, graph
    for place, node in enumerate(graph):
        inside = inside_of(node)
        bodies = [(body.key, body.graph) for body in bodies_of(node) if body.graph is not inside]
        for name, body in [*bodies, *([] if inside is None else [("", inside)])]:
            yield from _graphs(body, (*path, (place, name)))


class _Facts:
    def __init__(self, model: ir.Model, shapes: Shapes, constants: Constants) -> None:
        self._model, self._shapes, self._constants = model, shapes, constants
        self._unbound = Unbound.of(free_inputs(model))

    def of(self, graph: ir.Graph) -> Iterator[tuple[str, ValueFacts]]:
        """Yield the values of a graph, without those of bodies, by name."""
        wanted = set(self._wanted(graph))
        self._constants.prepare(wanted)
        made = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *made):
            if value.name:
                yield value.name, self._known(value, is_wanted=value in wanted)

    def _known(self, value: ir.Value, *, is_wanted: bool) -> ValueFacts:
        shapes, dtype = self._shapes, self._shapes.dtype(value)
        sizes = shapes.sizes(value)
        kind = None if value.type is None else _KINDS.get(type(value.type).__name__)
        unknown = "" if sizes is not None and dtype is not None else self._why_unknown(value)
        numbers = tuple(self._constants.array(value).ravel().tolist()) if is_wanted else None
        code = None if dtype is None else dtype.value or None
        return ValueFacts(sizes, code, shapes.is_bound(value), shapes.never(value), unknown, kind, numbers)

    def _wanted(self, graph: ir.Graph) -> Iterator[ir.Value]:
        """Yield the constants that nodes of `graph` compute, and whose numbers decide where bytes are."""
        for node in graph:
            for value in node.outputs if node.op_type != "Constant" else ():
                if value in self._constants and self._is_few(value) and any(map(self._reads_numbers, value.uses())):
                    yield value

    def _is_few(self, value: ir.Value) -> bool:
        sizes, dtype = self._shapes.sizes(value), self._shapes.dtype(value)
        return sizes is not None and dtype not in {None, ir.DataType.STRING} and math.prod(sizes) <= FEW

    def _reads_numbers(self, use: Any) -> bool:
        if use.node.op_identifier() in self._quantising:
            return True
        return bool(use.idx >= _READS_NUMBERS.get(use.node.op_type, use.idx + 1))

    @cached_property
    def _quantising(self) -> set[ir.OperatorIdentifier]:
        """The functions in which tensors are quantised, by scales among their operands."""
        functions = self._model.functions.items()
        return {key for key, function in functions if any(node.op_type == "QuantizeLinear" for node in function)}

    def _why_unknown(self, value: ir.Value) -> str:
        """Return why the bytes of `value` are not known."""
        if self._shapes.sizes(value) is not None:
            return "its element type is not known"
        bindable = [symbol for dim in self._shapes.dims(value) or () for symbol in self._unbound.bindable(dim)]
        if bindable:
            symbols = " and ".join(map(repr, dict.fromkeys(bindable)))
            return f"its size depends on {symbols}: bind it with {binding(bindable)}"
        return self._unbound.once_bound(self._shapes.reason(value))
