"""The quantisation of tensors (element type, scales, zero points, axis, block), and the element types of products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.quantising import FLOAT_MEANINGS, OWN_DOMAINS
from onnxtile.shapes.resolve import Shapes


class QuantisedPort(NamedTuple):
    """Where a node has a quantised tensor, its scale and its zero point: places among its inputs, or with `is_made` of the tensor among
    its outputs. `axis` is that of several scales; scales that the node computes, and zero points that it has not, have no place."""

    tensor: int
    scale: int | None
    zero_point: int | None
    is_made: bool = False
    axis: int | None = None


_PORTS: Mapping[str, tuple[QuantisedPort, ...]] = {
    "DequantizeLinear": (QuantisedPort(0, 1, 2, axis=1),),
    "QuantizeLinear": (QuantisedPort(0, 1, 2, is_made=True, axis=1),),
    "DynamicQuantizeLinear": (QuantisedPort(0, None, None, is_made=True),),
    "DynamicQuantizeLSTM": (QuantisedPort(1, 8, 9), QuantisedPort(2, 10, 11)),
    "DynamicQuantizeMatMul": (QuantisedPort(1, 2, 3, axis=-1),),
    "MatMulIntegerToFloat": (QuantisedPort(0, 2, 4), QuantisedPort(1, 3, 5, axis=-1)),
    "QAttention": (QuantisedPort(0, 3, 6), QuantisedPort(1, 4, 7, axis=-1)),
    "QEmbedLayerNormalization": tuple(QuantisedPort(place, place + 6, place + 11) for place in range(2, 7)),
}
"""The ports of operators that have no float meaning of their own (`onnxtile.model.quantising`)."""

_BLOCKS: Mapping[str, tuple[str, tuple[QuantisedPort, ...]]] = {
    "GatherBlockQuantized": ("bits", (QuantisedPort(0, 2, 3, axis=1),)),
    "MatMulNBits": ("bits", (QuantisedPort(1, 2, 3, axis=1),)),
    "QMoE": ("expert_weight_bits", tuple(QuantisedPort(2 + 3 * n, 3 + 3 * n, 11 + n, axis=2) for n in range(3))),
}
"""By operator on weights of a few bits with a scale for each block: the attribute that has the bits, and the ports."""

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
    if node.domain not in OWN_DOMAINS:
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
    if node.domain not in OWN_DOMAINS:
        return
    size = node.attributes.get_int("block_size", 0) or None
    bits, blocks = _BLOCKS.get(node.op_type, ("", ()))
    for port in (*blocks, *ports_of(node)):
        value = _made(scoped, port.tensor) if port.is_made else _given(scoped, port.tensor)
        if value is None or not value.name:
            continue
        dtype = _type(value, shapes)
        if blocks and not dtype.endswith(("int2", "int4")):
            dtype = f"int{node.attributes.get_int(bits, 4)}"  # several to a byte
        scale, zero = (_numbers(_given(scoped, place), constants) for place in (port.scale, port.zero_point))
        yield Quantisation(value.name, dtype, scale, zero, _axis(scoped, port, value, shapes), size)


def ports_of(node: ir.Node) -> tuple[QuantisedPort, ...]:
    """Return where `node`, of the standard domain or onnxruntime's, has tensors with one scale, or one for each element of an axis."""
    meaning = FLOAT_MEANINGS.get(node.op_type)
    if meaning is None:
        return _PORTS.get(node.op_type, ())
    read = [
        QuantisedPort(place, place + 1, place + 2, axis=meaning.axis_of(node, place))
        for place in meaning.places(node)
        if meaning.is_scaled(place)
    ]
    return (*read, QuantisedPort(0, *meaning.result, is_made=True))


def _axis(scoped: _Scoped, port: QuantisedPort, value: ir.Value, shapes: Shapes) -> int | None:
    """Return the axis of the scales, from 0; None for one scale, and where neither the node nor the operator says one."""
    scale, node = _given(scoped, port.scale), scoped.node
    sizes = None if scale is None else shapes.sizes(scale)
    if sizes in {(), (1,), None}:
        return None
    if node.op_type == "QMoE" and not node.attributes.get_int("block_size", 0):
        return 1  # a scale for each row of each expert
    own = {"DequantizeLinear": "axis", "QuantizeLinear": "axis", "GatherBlockQuantized": "quantize_axis"}
    axis = port.axis if node.op_type not in own else node.attributes.get_int(own[node.op_type], port.axis or 0)
    rank = shapes.sizes(value)
    return axis if axis is None or axis >= 0 else None if rank is None else axis + len(rank)


def _given(scoped: _Scoped, place: int | None) -> ir.Value | None:
    values = scoped.node.inputs
    value = values[place] if place is not None and place < len(values) else None
    return None if value is None else scoped.outer.get(value, value)


def _made(scoped: _Scoped, place: int) -> ir.Value | None:
    value = scoped.node.outputs[place]
    return scoped.outer.get(value, value)


def _numbers(value: ir.Value | None, constants: Constants) -> tuple[float, ...] | None:
    if value is None or value not in constants:
        return None
    return tuple(number.item() for number in constants.array(value).astype("float32").ravel())
