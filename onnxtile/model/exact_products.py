"""Sessions in which onnxruntime sums products of 8-bit integers exactly, on every processor.

Without VNNI, an x86-64 processor multiplies uint8 by int8 in pairs, and the sum of a pair saturates at 16 bits. onnxruntime accepts this
loss (its option `session.x64quantprecision` avoids it in optimised models alone). It sums products of uint8 by uint8 exactly. So an int8
operand becomes uint8 here, with a zero point that is larger by 128: the products are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.inliner import inline_local_functions

from onnxtile.model.topology import all_nodes
from onnxtile.operators.table import FloatMeaning, Operator, operators
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array, Session

_SHIFT = 128
"""The number added to an int8 operand and to its zero point."""


def exact_session(
    content: bytes,
    model: ir.Model | onnx.ModelProto,
    *,
    external: Path | None = None,
    pooled: bool = True,
    weights: Iterable[tuple[str, Array]] = (),
) -> Session:
    """Return a session of `model`, whose bytes are `content`, as `Session` does, but sums of products of integers do not saturate.

    Raises ModelError with onnxruntime's reason where it refuses the model.
    """
    nodes = all_nodes(model) if isinstance(model, ir.Model) else _proto_nodes(model)
    if any(_product(node) is not None for node in nodes) and sums_saturate():
        content = unsigned_products(content)
    return Session(content, external=external, pooled=pooled, weights=weights)


@cache
def sums_saturate() -> bool:
    """Return whether onnxruntime's sums of products of uint8 by int8 saturate on this processor."""
    left, right = np.full((8, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    ports = [("a", TensorProto.UINT8, left.shape), ("b", TensorProto.INT8, right.shape), ("y", TensorProto.INT32, None)]
    *inputs, output = (helper.make_tensor_value_info(name, dtype, shape) for name, dtype, shape in ports)
    model = helper.make_model(
        helper.make_graph([node], "saturation", inputs, [output]),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    sums = Session(model.SerializeToString()).run({"a": left, "b": right})["y"]
    return not np.array_equal(sums, left.astype(np.int32) @ right.astype(np.int32))


@dataclass(frozen=True)
class _Product:
    """The places of the factors of an operator and of their zero points; None for one without an operand."""

    left: int
    right: int
    left_zero: int | None
    right_zero: int


@cache
def _products() -> Mapping[tuple[str, str], _Product]:
    """Return the operators that multiply stored integers, by domain and name."""
    products = {}
    for name, row in operators().items():
        domain, _, operator = name.rpartition("::")
        zeros = {} if row.factors is None else dict(_zero_points(row))
        if row.factors is not None and row.factors[1] in zeros:
            left, right = row.factors
            products[domain, operator] = _Product(left, right, zeros.get(left), zeros[right])
    return products


def _zero_points(row: Operator) -> Iterator[tuple[int, int]]:
    """Yield the places of the stored operands of `row`, each with that of its zero point."""
    for port in row.ports:
        if port.zero_point is not None and not port.is_made:
            yield port.tensor, port.zero_point
    if isinstance(row.quantised, FloatMeaning):
        if row.quantised.result is None:
            yield from ((position, position + len(row.quantised.operands)) for position in row.quantised.operands)
        yield from ((position, position + 2) for position in row.quantised.scaled)


def unsigned_products(content: bytes) -> bytes:
    """Return the model `content`, in which products of uint8 by int8 are of uint8 alone."""
    model = onnx.ModelProto.FromString(content)
    if any(_product(node) is not None for function in model.functions for node in _nodes_of(function.node)):
        model = inline_local_functions(model)
    typed = onnx.shape_inference.infer_shapes(model)
    writer = _ExactSumWriter(model)
    writer.rewrite(model.graph, typed.graph, {})
    return model.SerializeToString() if writer.count else content


def _proto_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of `model`, with those of its functions and of bodies."""
    yield from _nodes_of(model.graph.node)
    for function in model.functions:
        yield from _nodes_of(function.node)


def _nodes_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield `nodes`, and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for body in _bodies(attribute):
                yield from _nodes_of(body.node)


def _product(node: ir.Node | onnx.NodeProto) -> _Product | None:
    """Return the places of the factors of a node; None for one that does not multiply stored integers."""
    return _products().get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))


class _ExactSumWriter:
    """Writes the nodes that raise int8 operands; `count` is the number of values that it has made."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.count = 0
        self._prefix = "unsigned"
        content = model.SerializeToString()
        while self._prefix.encode() in content:
            self._prefix += "_"

    def rewrite(self, graph: onnx.GraphProto, typed: onnx.GraphProto, outer: Mapping[str, int]) -> None:
        """Replace the operands of the products of `graph` and of the bodies in it. `typed` is `graph` with the types of its values."""
        types = {**outer, **dict(_types(typed))}
        raised: dict[str, str] = {}
        nodes: list[onnx.NodeProto] = []
        for node, twin in zip(graph.node, typed.node, strict=True):
            for attribute, typed_attribute in zip(node.attribute, twin.attribute, strict=True):
                for body, typed_body in zip(_bodies(attribute), _bodies(typed_attribute), strict=True):
                    self.rewrite(body, typed_body, types)
            product = _product(node)
            if product is not None and self._mixes(node, product, types):
                node.input.extend([""] * (product.right_zero + 1 - len(node.input)))
                for position in (product.right, product.right_zero):
                    name = node.input[position]
                    if name not in raised:
                        raised[name] = self._raised(name, nodes)
                    node.input[position] = raised[name]
            nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def _mixes(self, node: onnx.NodeProto, product: _Product, types: Mapping[str, int]) -> bool:
        """Return whether `node` multiplies uint8 by int8. An operand whose type was not inferred has that of its zero point."""

        def kind(*places: int | None) -> int | None:
            names = (node.input[position] for position in places if position is not None and position < len(node.input))
            return next((types[name] for name in names if name in types), None)

        left = kind(product.left, product.left_zero) if product.left_zero is not None else TensorProto.UINT8
        return left == TensorProto.UINT8 and kind(product.right, product.right_zero) == TensorProto.INT8

    def _raised(self, name: str, nodes: list[onnx.NodeProto]) -> str:
        """Append the nodes that raise the int8 value `name` to uint8, or a zero point where there is none; return the result."""
        self.count += 1
        wide, shift, sum_, result = (f"{self._prefix}{self.count}{part}" for part in ("w", "c", "s", ""))
        dtype = np.int32 if name else np.uint8
        constant = numpy_helper.from_array(np.array(_SHIFT, dtype))
        nodes.append(helper.make_node("Constant", [], [shift if name else result], value=constant))
        if name:
            nodes.append(helper.make_node("Cast", [name], [wide], to=TensorProto.INT32))
            nodes.append(helper.make_node("Add", [wide, shift], [sum_]))
            nodes.append(helper.make_node("Cast", [sum_], [result], to=TensorProto.UINT8))
        return result


def _types(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the values of `graph` whose element types are known, with these."""
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.tensor_type.elem_type:
            yield value.name, value.type.tensor_type.elem_type
    yield from ((tensor.name, tensor.data_type) for tensor in graph.initializer)


def _bodies(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
