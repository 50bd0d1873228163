"""Types, dimensions and small numbers of a model's values, found by name in what the model was fused to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import onnx_ir as ir

from onnxtile.fusion.lower.lowering import Argument, FactsTable
from onnxtile.model.constants import Constants
from onnxtile.shapes.propagation import Propagation
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.runtime import Array

_MOST_ELEMENTS = 16
"""Constants of no more elements than this are looked into: numbers, axes."""


class LoweringFacts(FactsTable):
    """What is known of the values of a model, by name: fused and opened, a model keeps the names of what it was."""

    def __init__(self, model: ir.Model, shapes: Shapes) -> None:
        self._shapes = shapes
        self._constants = Constants(model)
        self._model = model
        self._values: dict[str, ir.Value | None] = {}
        for graph in model.graphs():
            results = (value for node in graph for value in node.outputs if value.name)
            for value in dict.fromkeys((*graph.inputs, *graph.initializers.values(), *results)):
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
            computed = self._computed.number(known)
            array = None if computed is None else computed.astype(dtype.numpy())
        return Argument(value, dtype, dims, array, known in self._constants)

    @cached_property
    def _computed(self) -> Propagation:
        """The numbers that the model computes from shapes: the root of a head's size, the place where a vector is halved.

        They are no constants, for a shape may be any; where the sizes they come from are known, so are they.
        """
        return self._shapes.carried_on(self._model)

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
