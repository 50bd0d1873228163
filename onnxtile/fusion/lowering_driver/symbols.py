"""Sizes that shape inference gives up on, by symbols: what -1 stands for in a Reshape whose other sizes are those of its input."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxtile.fusion.proofs.numbers import KnownNumbers
from onnxtile.model.infer import Dim, Dims
from onnxtile.model.shapes import Shapes

_LONGEST = 12
_SAME = {"Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape"}


class Symbols:
    """The dimensions of values, beyond what `shapes` know, through Transpose and Reshape."""

    def __init__(self, shapes: Shapes, numbers: KnownNumbers) -> None:
        self._shapes = shapes
        self._numbers = numbers
        self._known: dict[ir.Value, Dims | None] = {}

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions of `value`, numbers where these follow."""
        if value not in self._known:
            self._known[value] = self._shapes.dims(value)
            self._known[value] = self._refined(value)
        return self._known[value]

    def _refined(self, value: ir.Value) -> Dims | None:
        dims, node = self._shapes.dims(value), value.producer()
        if node is None or node.domain not in {"", "ai.onnx"} or _is_whole(dims):
            return dims
        source = node.inputs[0] if node.inputs else None
        found: Dims | None = None
        if node.op_type == "Transpose" and source is not None and "perm" in node.attributes:
            before, perm = self.dims(source), node.attributes["perm"].as_ints()
            found = None if before is None else tuple(before[axis] for axis in perm)
        elif node.op_type == "Reshape" and source is not None:
            found = self._reshaped(node, source)
        if found is None or (dims is not None and len(dims) != len(found)):
            return dims
        return (
            found
            if dims is None
            else tuple(a if isinstance(a, int) or b is None else b for a, b in zip(dims, found, strict=True))
        )

    def _reshaped(self, node: ir.Node, source: ir.Value) -> Dims | None:
        before, target = self.dims(source), self._target(node.inputs[1])
        if before is None or target is None or node.attributes.get_int("allowzero", 0) != 0:
            return None
        if any(size == 0 and i >= len(before) for i, size in enumerate(target)):
            return None
        sizes = [before[i] if size == 0 else size for i, size in enumerate(target)]
        if sizes.count(-1) == 1:
            sizes[sizes.index(-1)] = _left(before, [size for size in sizes if size != -1])
        return tuple(sizes)

    def _target(self, value: ir.Value | None) -> list[Dim] | None:
        """Return the sizes that a Reshape asks for, as far as they are known."""
        array = None if value is None else self._numbers.of(value)
        if array is not None:
            return [int(size) for size in array.ravel()]
        node = None if value is None else value.producer()
        if node is None or node.op_type != "Concat":
            return None
        sizes: list[Dim] = []
        for part in node.inputs:
            found = None if part is None else self._numbers.of(part)
            sizes += [self._symbol(part)] if found is None else [int(size) for size in found.ravel()]
        return sizes

    def _symbol(self, value: ir.Value | None) -> Dim:
        """Return the size of which a value of one element is made, read off the shape of another value; None where it is not so."""
        for _ in range(_LONGEST):
            node = None if value is None else value.producer()
            if node is None:
                return None
            if node.op_type in {"Gather", "Slice"}:
                return self._picked(node)
            if node.op_type == "Shape":
                return self._only(node)
            if node.op_type not in _SAME:
                return None
            value = node.inputs[0]
        return None

    def _picked(self, node: ir.Node) -> Dim:
        inner = None if node.inputs[0] is None else node.inputs[0].producer()
        places = [None if value is None else self._numbers.of(value) for value in node.inputs[1:3]]
        if (
            inner is None
            or inner.op_type != "Shape"
            or inner.attributes
            or inner.inputs[0] is None
            or places[0] is None
        ):
            return None
        dims, place = self.dims(inner.inputs[0]), int(places[0].ravel()[0])
        one = node.op_type == "Gather" or (places[1] is not None and int(places[1].ravel()[0]) == place + 1)
        return dims[place] if dims is not None and one and -len(dims) <= place < len(dims) else None

    def _only(self, node: ir.Node) -> Dim:
        dims = None if node.inputs[0] is None else self.dims(node.inputs[0])
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 1 << 30)
        return dims[start] if dims is not None and end == start + 1 and 0 <= start < len(dims) else None


def _is_whole(dims: Dims | None) -> bool:
    return dims is not None and all(isinstance(dim, int) for dim in dims)


def _left(before: Dims, others: list[Dim]) -> Dim:
    """Return the elements of `before` divided by `others`: a number where the symbols are the same in both."""
    symbols = sorted(str(dim) for dim in before if not isinstance(dim, int))
    if None in before or None in others or symbols != sorted(str(dim) for dim in others if not isinstance(dim, int)):
        return None
    whole, taken = (math.prod(dim for dim in dims if isinstance(dim, int)) for dims in (before, others))
    return whole // taken if taken and whole % taken == 0 else None
