"""Types, dimensions and small numbers of a model's values, found by name in what the model was fused to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.lowering import Argument, FactsTable
from onnxtile.model.constants import Constants
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.runtime import Array

# Numbers that a model computes from shapes: the root of a head's size, the place where a vector is halved.
#
# They are no constants, for a shape may be any; where the sizes they come from are known, so are they. Sizes that are not known are NaN,
# which arithmetic carries on, so that each element is known or not on its own.

_DEEPEST = 40
_Arrays = Sequence[Array]


def _axis(node: ir.Node) -> int:
    return node.attributes.get_int("axis", 0)


def _slice(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    places = range(len(starts)) if axes is None else axes.astype(np.int64)
    strides = np.ones(len(starts)) if steps is None else steps
    cut: list[Any] = [slice(None)] * x.ndim
    for axis, start, end, step in zip(places, starts, ends, strides, strict=True):
        cut[axis] = slice(int(start), int(min(end, 2**31)), int(step))
    part: Array = x[tuple(cut)]
    return part


def _squeezed(x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x) if axes is None else np.squeeze(x, tuple(axes.astype(np.int64)))


def _cast(x: Array, to: int) -> Array:
    return x if ir.DataType(to).is_floating_point() else np.trunc(x)


_OPERATORS: Mapping[str, Callable[[ir.Node, _Arrays], Array]] = {
    "Identity": lambda _, x: x[0],
    "Cast": lambda node, x: _cast(x[0], node.attributes.get_int("to", 1)),
    "Gather": lambda node, x: np.take(x[0], x[1].astype(np.int64), _axis(node)),
    "Slice": lambda _, x: _slice(*x),
    "Concat": lambda node, x: np.concatenate(list(x), _axis(node)),
    "Unsqueeze": lambda _, x: np.expand_dims(x[0], tuple(x[1].astype(np.int64))),
    "Squeeze": lambda _, x: _squeezed(*x),
    "Reshape": lambda _, x: x[0].reshape(x[1].astype(np.int64)),
    "Add": lambda _, x: x[0] + x[1],
    "Sub": lambda _, x: x[0] - x[1],
    "Mul": lambda _, x: x[0] * x[1],
    "Sqrt": lambda _, x: np.sqrt(x[0]),
    "Floor": lambda _, x: np.floor(x[0]),
    "Pow": lambda _, x: x[0] ** x[1],
    "Reciprocal": lambda _, x: 1.0 / x[0],
}


class KnownNumbers:
    """What is known of computed numbers, given the shapes and element types of values, and the elements of small constants."""

    def __init__(self, shapes: Shapes, constant: Callable[[ir.Value], Array | None]) -> None:
        self._shapes = shapes
        self._constant = constant
        self._known: dict[ir.Value, Array | None] = {}

    def of(self, value: ir.Value) -> Array | None:
        """Return the elements of `value` as float64; None where one of them is not known."""
        array = self._of(value, 0)
        return None if array is None or np.isnan(array).any() else array

    def _of(self, value: ir.Value, depth: int) -> Array | None:
        if value not in self._known:
            self._known[value] = None
            with np.errstate(all="ignore"):
                self._known[value] = self._computed(value, depth)
        return self._known[value]

    def _computed(self, value: ir.Value, depth: int) -> Array | None:
        held = self._constant(value)
        if held is not None:
            return held.astype(np.float64) if held.dtype.kind in "iufb" else None
        node = value.producer()
        if node is None or node.domain not in {"", "ai.onnx"} or depth > _DEEPEST:
            return None
        if node.op_type == "Shape":
            return self._shape(node)
        if node.op_type != "Div" and node.op_type not in _OPERATORS:
            return None
        operands = [None if v is None else self._of(v, depth + 1) for v in node.inputs]
        known = [operand for operand in operands if operand is not None]
        if len(known) != len(operands):
            return None
        return self._applied(node, known)

    def _applied(self, node: ir.Node, operands: _Arrays) -> Array | None:
        if node.op_type == "Div":
            return self._quotient(node, operands)
        if node.op_type in {"Slice", "Squeeze", "Unsqueeze"} and node.attributes:
            return None  # of an opset before 13
        try:
            return np.asarray(_OPERATORS[node.op_type](node, operands))
        except (IndexError, ValueError):
            return None  # a place that is not known

    def _quotient(self, node: ir.Node, operands: _Arrays) -> Array | None:
        dtype = self._shapes.dtype(node.outputs[0])
        if dtype is None:
            return None
        quotient: Array = operands[0] / operands[1]
        return quotient if dtype.is_floating_point() else np.trunc(quotient)

    def _shape(self, node: ir.Node) -> Array | None:
        source = node.inputs[0]
        dims = None if source is None else self._shapes.dims(source)
        if dims is None:
            return None
        sizes = np.asarray([dim if isinstance(dim, int) else np.nan for dim in dims])
        return sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(sizes))]


_MOST_ELEMENTS = 16
"""Constants of no more elements than this are looked into: numbers, axes."""


class LoweringFacts(FactsTable):
    """What is known of the values of a model, by name: fused and opened, a model keeps the names of what it was."""

    def __init__(self, model: ir.Model, shapes: Shapes) -> None:
        self._shapes = shapes
        self._constants = Constants(model)
        self._numbers = KnownNumbers(shapes, self._small)
        self._values: dict[str, ir.Value | None] = {}
        for graph in model.graphs():
            made = (value for node in graph for value in node.outputs if value.name)
            for value in dict.fromkeys((*graph.inputs, *graph.initializers.values(), *made)):
                # A name that two graphs use identifies no value.
                self._values[value.name or ""] = None if value.name in self._values else value

    def argument(self, value: ir.Value) -> Argument:
        """Return the type and shape of a value of the fused model."""
        known = self._values.get(value.name or "")
        if known is None:
            return Argument(value, value.dtype, None)
        dims = self._shapes.dims(known)
        tensor = known.const_value if known in self._constants else None
        if dims is None and tensor is not None:
            dims = tuple(tensor.shape.numpy())
        dtype = self._shapes.dtype(known) or (tensor.dtype if tensor is not None else None)
        array = self._small(known)
        if array is None and dtype is not None and (dims is None or _count(dims) <= _MOST_ELEMENTS):
            computed = self._numbers.of(known)
            array = None if computed is None else computed.astype(dtype.numpy())
        return Argument(value, dtype, dims, array, known in self._constants)

    def _small(self, value: ir.Value) -> Array | None:
        """Return the elements of a constant that has few; None for any other value."""
        if value not in self._constants:
            return None
        dims = self._shapes.dims(value)
        if dims is None and value.const_value is not None:
            dims = tuple(value.const_value.shape.numpy())
        return self._constants.array(value) if dims is not None and _count(dims) <= _MOST_ELEMENTS else None

    def elements(self, value: ir.Value) -> Array:
        """Return the elements of a constant. Raises KeyError where it is none."""
        known = self._values.get(value.name or "")
        if known is None:
            raise KeyError(value.name)
        return self._constants.array(known)


def _count(dims: Iterable[object]) -> int:
    count = 1
    for dim in dims:
        count *= dim if isinstance(dim, int) else _MOST_ELEMENTS + 1
    return count
