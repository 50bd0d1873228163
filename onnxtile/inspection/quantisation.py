"""The quantisation of tensors (element type, scales, zero points, axis, block), and the element types of products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes

_ANY_DOMAIN = frozenset({"", "ai.onnx", "com.microsoft"})

_UNARY = ((0, 1, 2, False), (0, 3, 4, True))
_BINARY = ((0, 1, 2, False), (3, 4, 5, False), (0, 6, 7, True))
_PORTS: Mapping[str, tuple[tuple[int, int, int, bool], ...]] = {
    "DequantizeLinear": ((0, 1, 2, False),),
    "QuantizeLinear": ((0, 1, 2, True),),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul"), _BINARY),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"), _UNARY),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), _UNARY),
    "QGemm": ((0, 1, 2, False), (3, 4, 5, False), (0, 7, 8, True)),
}
"""By operator: where a quantised tensor, its scale and its zero point stand among the inputs; with True the tensor is an output."""

_PRODUCTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), (0, 3)),
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "Gemm", "MatMul", "MatMulInteger", "FusedMatMul"), (0, 1)),
    **dict.fromkeys(("Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention", "Einsum"), (0, 1)),
    "MoE": (0, 2),
    **dict.fromkeys(
        ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "FusedConv", "FusedGemm", "LSTM", "GRU", "RNN"), (0, 1)
    ),
}
"""By operator: which inputs are the factors of its products."""


class _Scoped(NamedTuple):
    """A node, and what the values of its graph stand for outside of it, where it stands in a function."""

    node: ir.Node
    outer: Mapping[ir.Value, ir.Value | None]


@dataclass(frozen=True)
class Quantisation:
    """How one tensor is quantised: q = x / scale + zero point, for the whole tensor, along `axis`, or in blocks along it.

    Scales and zero points are None where a run computes them.
    """

    tensor: str
    dtype: str | None
    scale: tuple[float, ...] | None
    zero_point: tuple[float, ...] | None
    axis: int | None = None
    block_size: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one tensor."""
        lists = {"scale": self.scale and list(self.scale), "zero_point": self.zero_point and list(self.zero_point)}
        return {"tensor": self.tensor, "dtype": self.dtype, **lists, "axis": self.axis, "block_size": self.block_size}


def quantisations(model: ir.Model, shapes: Shapes, constants: Constants) -> tuple[Quantisation, ...]:
    """Return how each quantised tensor of `model` is quantised, once, in the order in which nodes read or make them."""
    found: dict[str, Quantisation] = {}
    for scoped in _nodes(model):
        for one in _of_node(scoped, shapes, constants):
            found.setdefault(one.tensor, one)
    return tuple(found.values())


def factors(node: ir.Node, model: ir.Model, shapes: Shapes) -> str:
    """Return the stored element types of what `node` multiplies, as "int8 x int8"; of a function, of the first product in it."""
    for scoped in _with_inside(_Scoped(node, {}), model):
        types = _factors(scoped, shapes)
        if types:
            return " x ".join(types)
    return "?"


def _factors(scoped: _Scoped, shapes: Shapes) -> list[str]:
    node = scoped.node
    if node.domain not in _ANY_DOMAIN:
        return []
    if node.op_type == "MatMulNBits":
        return [_type(_stored(scoped, 0), shapes), f"int{node.attributes.get_int('bits', 4)}"]
    if node.op_type == "QMoE":
        return [_type(_stored(scoped, 0), shapes), f"int{node.attributes.get_int('expert_weight_bits', 4)}"]
    places = _PRODUCTS.get(node.op_type, ())
    # What attention reads packed, it multiplies by itself.
    given = [place if place < len(node.inputs) and node.inputs[place] is not None else 0 for place in places]
    return [_type(_stored(scoped, place), shapes) for place in given]


def _type(value: ir.Value | None, shapes: Shapes) -> str:
    dtype = None if value is None else shapes.dtype(value)
    return "?" if dtype is None else dtype.name.lower()


def _stored(scoped: _Scoped, place: int) -> ir.Value | None:
    """Return the tensor that is read at `place`, before it is dequantised."""
    value = scoped.node.inputs[place] if place < len(scoped.node.inputs) else None
    while value is not None:
        maker = value.producer()
        if maker is not None and maker.op_type == "DequantizeLinear" and maker.domain in _ANY_DOMAIN:
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
        one = todo.pop()
        function = model.functions.get(one.node.op_identifier())
        if function is None:
            yield one
            continue
        given = (None if value is None else one.outer.get(value, value) for value in one.node.inputs)
        made = zip(function.outputs, (one.outer.get(value, value) for value in one.node.outputs), strict=False)
        outer = {**dict(zip(function.inputs, given, strict=False)), **dict(made)}
        todo.extend(_Scoped(inner, outer) for inner in reversed(list(function)))


def _of_node(scoped: _Scoped, shapes: Shapes, constants: Constants) -> Iterator[Quantisation]:
    node = scoped.node
    if node.domain not in _ANY_DOMAIN:
        return
    if node.op_type == "MatMulNBits":
        bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 0)
        yield _described(scoped, (1, 2, 3, False), constants, f"int{bits}", 1, block or None)
        return
    for ports in _PORTS.get(node.op_type, ()):
        value = _port(scoped, ports[0], is_output=ports[3])
        if value is None or not value.name:
            continue
        scale = _port(scoped, ports[1])
        sizes = None if scale is None else shapes.sizes(scale)
        axis = (
            node.attributes.get_int("axis", 1 if node.op_type.endswith("izeLinear") else 0)
            if sizes not in {(), (1,), None}
            else None
        )
        yield _described(
            scoped, ports, constants, _type(value, shapes), axis, node.attributes.get_int("block_size", 0) or None
        )


def _port(scoped: _Scoped, place: int, *, is_output: bool = False) -> ir.Value | None:
    values = scoped.node.outputs if is_output else scoped.node.inputs
    value = values[place] if place < len(values) else None
    return None if value is None else scoped.outer.get(value, value)


def _described(
    scoped: _Scoped,
    ports: tuple[int, int, int, bool],
    constants: Constants,
    dtype: str,
    axis: int | None,
    block: int | None,
) -> Quantisation:
    value = _port(scoped, ports[0], is_output=ports[3])
    scale, zero = (_numbers(_port(scoped, place), constants) for place in ports[1:3])
    return Quantisation(value.name or "" if value is not None else "", dtype, scale, zero, axis, block)


def _numbers(value: ir.Value | None, constants: Constants) -> tuple[float, ...] | None:
    if value is None or value not in constants:
        return None
    return tuple(number.item() for number in constants.array(value).astype("float32").ravel())
