"""The quantisation of tensors (element type, scales, zero points, axis, block), and the element types of products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import OWN_DOMAINS
from onnxtile.operators.row import Products, QuantisedPort
from onnxtile.operators.table import operator_of, quantised_form
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass


class _Scoped(NamedTuple):
    """A node, and what the values of its graph stand for outside of it, where it stands in a function."""

    node: ir.Node
    outer: Mapping[ir.Value, ir.Value | None]


@dataclass(frozen=True)
class Quantisation(JsonFields):
    """How one tensor is quantised: q = x / scale + zero point, for the whole tensor, along `axis`, or in blocks along it.

    Scales and zero points are None where a run computes them. `tensor` is the name of what is quantised and `dtype` the element type it is
    stored in. `scale` and `zero_point` have one number, or one for each index of the axis or each block; `block_size` is in elements.
    """

    tensor: str
    dtype: str | None
    scale: tuple[float, ...] | None
    zero_point: tuple[float, ...] | None
    axis: int | None = None
    block_size: int | None = None


def quantisations(model: ir.Model, shapes: Shapes, constants: Constants) -> tuple[Quantisation, ...]:
    """Return how each quantised tensor of `model` is quantised, once, in the order in which nodes read or make them."""
    by_name: dict[str, Quantisation] = {}
    for scoped in _nodes(model):
        for quantisation in _of_node(scoped, shapes, constants):
            by_name.setdefault(quantisation.tensor, quantisation)
    return tuple(by_name.values())


def factors(node: ir.Node, model: ir.Model, shapes: Shapes) -> str:
    """Return the stored element types of what `node` multiplies, as "int8 x int8"; of a function, of the first product in it."""
    for scoped in _with_inside(_Scoped(node, {}), model):
        types = _factors(scoped, shapes)
        if types:
            return " x ".join(types)
    return "?"


def _factors(scoped: _Scoped, shapes: Shapes) -> list[str]:
    node = scoped.node
    row = operator_of(node)
    if row is None:
        return []
    if row.bits and isinstance(row.work, Products):
        return [_type(_stored(scoped, 0), shapes), f"int{node.attributes.get_int(row.bits, 4)}"]
    places = row.factors or ()
    # What attention reads packed, it multiplies by itself.
    given = [slot if slot < len(node.inputs) and node.inputs[slot] is not None else 0 for slot in places]
    return [_type(_stored(scoped, slot), shapes) for slot in given]


def _type(value: ir.Value | None, shapes: Shapes) -> str:
    dtype = None if value is None else shapes.dtype(value)
    return "?" if dtype is None else dtype.name.lower()


def _stored(scoped: _Scoped, slot: int) -> ir.Value | None:
    """Return the tensor that is read at `slot`, before it is dequantised."""
    value = scoped.node.inputs[slot] if slot < len(scoped.node.inputs) else None
    while value is not None:
        maker = value.producer()
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.domain in OWN_DOMAINS:
            value = maker.inputs[0]
        elif value in scoped.outer:
            value = scoped.outer[value]
        else:
            break
    return value


def _nodes(model: ir.Model) -> Iterator[_Scoped]:
    for graph in model.graphs():
        for node in graph:
            yield from _with_inside(_Scoped(node, {}), model)


def _with_inside(scoped: _Scoped, model: ir.Model) -> Iterator[_Scoped]:
    """Yield a node, or of a call what is in its function, at any depth."""
    todo = [scoped]
    while todo:
        scope = todo.pop()
        function = model.functions.get(scope.node.op_identifier())
        if function is None:
            yield scope
            continue
        given = (None if value is None else scope.outer.get(value, value) for value in scope.node.inputs)
        results = zip(function.outputs, (scope.outer.get(value, value) for value in scope.node.outputs), strict=False)
        outer = {**dict(zip(function.inputs, given, strict=False)), **dict(results)}
        todo.extend(_Scoped(inner, outer) for inner in reversed(list(function)))


def _of_node(scoped: _Scoped, shapes: Shapes, constants: Constants) -> Iterator[Quantisation]:
    node, row = scoped.node, operator_of(scoped.node)
    if row is None:
        return
    size = node.attributes.get_int("block_size", 0) or None
    meaning = quantised_form(node)
    for port in row.ports if meaning is None else meaning.ports(node):
        value = _made(scoped, port.tensor) if port.is_made else _given(scoped, port.tensor)
        if value is None or not value.name:
            continue
        dtype = _type(value, shapes)
        if row.bits and not dtype.endswith(("int2", "int4")):
            dtype = f"int{node.attributes.get_int(row.bits, 4)}"  # several to a byte
        scale, zero = (_numbers(_given(scoped, slot), constants) for slot in (port.scale, port.zero_point))
        yield Quantisation(value.name, dtype, scale, zero, _axis(scoped, port, value, shapes), size)


def _axis(scoped: _Scoped, port: QuantisedPort, value: ir.Value, shapes: Shapes) -> int | None:
    """Return the axis of the scales, from 0; None for one scale, and where neither the node nor the operator says one."""
    scale, node = _given(scoped, port.scale), scoped.node
    sizes = None if scale is None else shapes.sizes(scale)
    if sizes in {(), (1,), None}:
        return None
    if node.op_type == "QMoE" and not node.attributes.get_int("block_size", 0):
        return 1  # a scale for each row of each expert
    attributes = {"DequantizeLinear": "axis", "QuantizeLinear": "axis", "GatherBlockQuantized": "quantize_axis"}
    axis = port.axis
    if node.op_type in attributes:
        axis = node.attributes.get_int(attributes[node.op_type], port.axis or 0)
    rank = shapes.sizes(value)
    return axis if axis is None or axis >= 0 else None if rank is None else axis + len(rank)


def _given(scoped: _Scoped, slot: int | None) -> ir.Value | None:
    values = scoped.node.inputs
    value = values[slot] if slot is not None and slot < len(values) else None
    return None if value is None else scoped.outer.get(value, value)


def _made(scoped: _Scoped, slot: int) -> ir.Value | None:
    value = scoped.node.outputs[slot]
    return scoped.outer.get(value, value)


def _numbers(value: ir.Value | None, constants: Constants) -> tuple[float, ...] | None:
    if value is None or value not in constants:
        return None
    return tuple(number.item() for number in constants.array(value).astype("float32").ravel())
