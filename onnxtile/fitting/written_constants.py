"""The constants that the pieces of a region read: sizes, scales, weights, and parts of constants of the model."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.axis_links import OperatorFacts, Uncut
from onnxtile.fitting.axis_maps import links
from onnxtile.graph import node_id
from onnxtile.model.constants import Constants, made_tensor
from onnxtile.model.quantising import dequantises
from onnxtile.model.shapes import Shapes
from onnxtile.runtime import Array
from onnxtile.tiling.names import Names


@dataclass
class WrittenConstants:
    """The constants of the region `region`, each made once; the graph is not changed.

    `values` are new initializers, `nodes` those that give back floats of parts of integers. `known`, `shapes` and `opset` are those of the
    model.
    """

    region: str
    names: Names
    shapes: Shapes
    known: Constants
    opset: int
    values: list[ir.Value] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    _made: dict[Hashable, ir.Value] = field(default_factory=dict)

    def sizes(self, numbers: Sequence[int]) -> ir.Value:
        """Return a constant of 64-bit integers."""
        return self.array("/".join(["sizes", *map(str, numbers)]), np.asarray(numbers, np.int64))

    def scales(self, scales: Sequence[float]) -> ir.Value:
        """Return a constant of floats."""
        return self.array("scales", np.asarray(scales, np.float32))

    def array(self, stem: str, array: Array) -> ir.Value:
        """Return a constant with these elements, named after `stem`."""
        key = stem, array.dtype, array.shape, array.tobytes()
        if key not in self._made:
            self._made[key] = self._constant(stem, array)
        return self._made[key]

    def part(self, value: ir.Value, cuts: Sequence[tuple[int, int, int]]) -> ir.Value:
        """Return the elements of the constant `value` from a start to a stop along axes; those made of integers are made of their parts."""
        key = (value, *cuts)
        if key not in self._made:
            integers = self._integer_parts(value, cuts)
            self._made[key] = self._part(value, cuts) if integers is None else self._dequantised(value, integers)
        return self._made[key]

    def _constant(self, stem: str, array: Array) -> ir.Value:
        name = self.names.fresh(f"{self.region}/{stem}")
        tensor = made_tensor(array, name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.values.append(value)
        return value

    def _part(self, value: ir.Value, cuts: Iterable[tuple[int, int, int]]) -> ir.Value:
        """Return a constant with the elements of another from a start to a stop along some axes."""
        array = self.known.array(value)
        part = [slice(None)] * array.ndim
        for axis, start, stop in cuts:
            part[axis] = slice(start, stop)
        return self._constant(f"{value.name}", array[tuple(part)])

    def _integer_parts(self, value: ir.Value, cuts: Sequence[tuple[int, int, int]]) -> list[ir.Value | None] | None:
        """Return the parts of the integers, scales and zero points that a part of a constant is made of; None for other constants."""
        maker = value.producer()
        if maker is None or not dequantises(maker):
            return None
        facts = OperatorFacts(maker, self.shapes, self.known, self.opset)
        try:
            linked = [(links(facts, axis), start, stop) for axis, start, stop in cuts]
        except Uncut:
            return None
        own = [
            [(each.axis, start, stop) for found, start, stop in linked if (each := found[place]) is not None]
            for place in range(len(maker.inputs))
        ]
        return [
            operand if operand is None or not some else self._part(operand, some)
            for operand, some in zip(maker.inputs, own, strict=True)
        ]

    def _dequantised(self, value: ir.Value, parts: Sequence[ir.Value | None]) -> ir.Value:
        """Return the result of the node that makes `value` of integers, for parts of its operands."""
        maker, integers = value.producer(), parts[0]
        assert maker is not None and integers is not None
        dtype = self.shapes.dtype(value)
        assert dtype is not None
        made = ir.Value(
            name=self.names.fresh(f"{self.region}/{value.name}"), shape=integers.shape, type=ir.TensorType(dtype)
        )
        name, attributes = self.names.fresh(f"{self.region}/{node_id(maker)}"), maker.attributes.values()
        self.nodes.append(ir.Node(maker.domain, maker.op_type, parts, attributes, outputs=[made], name=name))
        return made
