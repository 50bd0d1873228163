"""The float view of a quantised model: a copy in which queries find the operators that were quantised, and nothing that quantises.

Left out are nodes that quantise or dequantise what is computed. In the place of an operator on quantised tensors (QLinearMatMul, QGemm ...)
stands the operator on floats. The same holds for a product of tensors that are quantised as the model runs (DynamicQuantizeLinear,
MatMulInteger, Cast, Mul), and for one with a weight in blocks of few bits (MatMulNBits). The view is searched and never run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.record import fused_graphs
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import (
    DEQUANTISING,
    OWN_DOMAINS,
    QUANTISING,
    QUANTISING_AT_RUN,
    dequantises,
    quantises,
    quantises_at_run,
    sums_integers,
)
from onnxtile.model.opset import opset_of
from onnxtile.model.topology import is_read, only_reader
from onnxtile.operators.node_view import given_input
from onnxtile.operators.table import FloatMeaning, names_where, quantised_form
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass

# Operators that compute on quantised tensors, and the float operators that they quantise.
#
# The operators of the domain "" are https://onnx.ai/onnx/operators/, those of "com.microsoft" are in onnxruntime's ContribOperators.md.

QUANTISED_OPERATORS = frozenset({
    *(name.rpartition("::")[2] for name in names_where(lambda row: isinstance(row.quantised, FloatMeaning))),
    *(QUANTISING, DEQUANTISING, QUANTISING_AT_RUN, "MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
})  # fmt: skip
"""The names of the operators that a query of floats does not see."""


def float_meaning(node: ir.Node) -> FloatMeaning | None:
    """Return the float operator that `node` stands for; None where it computes on floats, or in another way than that."""
    meaning = quantised_form(node)
    if meaning is None or node.attributes.get_int("channels_last", 0) != 0:
        return None
    if node.op_type == "QLinearSoftmax" and node.attributes.get_int("opset", 13) < 13:
        # Softmax took all axes from this one on, which is the same for the last one only.
        return meaning if node.attributes.get_int("axis", 1) == -1 else None
    return meaning


def scales_of(node: ir.Node) -> Sequence[ir.Value]:
    """Return the scales and zero points among the inputs of `node`; none of an operator that computes on floats."""
    meaning = float_meaning(node)
    if meaning is None and not quantises(node) and not dequantises(node):
        return ()
    indices = (0,) if meaning is None else meaning.places(node)
    return [value for index, value in enumerate(node.inputs) if value is not None and index not in indices]


_BLOCKS = {"MatMulNBits": (1, 5), "DynamicQuantizeMatMul": (1, 4), "MatMulIntegerToFloat": (1, 6)}
"""Products whose result is in floats: the places of the weight and of the bias."""
_BLOCK_SCALES = {"DynamicQuantizeMatMul": (2, 3), "MatMulIntegerToFloat": (3, 5)}
"""The places of the scale and of the zero point of the weight, which is not packed."""


@dataclass(frozen=True)
class FloatView:
    """The copy, for each of its nodes those of the model that it stands for, and for each of its values that of the model.

    `parts` are the nodes of the copy that together stand for one node of the model.
    """

    model: ir.Model
    originals: dict[ir.Node, tuple[ir.Node, ...]]
    values: dict[ir.Value, ir.Value]
    parts: dict[ir.Node, tuple[ir.Node, ...]]

    def shapes(self, known: Shapes) -> Shapes:
        """Return the shapes `known` of the model for the copy; quantised tensors are float ones in it."""
        shapes = known.of_copies({original: copy for copy, original in self.values.items()})
        stored = {copy for copy in self.values if _is_stored(shapes.dtype(copy))}
        dims = {copy: shapes.dims(copy) for copy in self.values}
        return Shapes(
            {
                copy: ir.DataType.FLOAT if copy in stored else dtype
                for copy in self.values
                if (dtype := shapes.dtype(copy)) is not None
            },
            {copy: known for copy, known in dims.items() if known is not None},
        )


def _is_stored(dtype: ir.DataType | None) -> bool:
    return dtype is not None and dtype.is_integer() and dtype.bitwidth <= 8


def has_quantised_operators(model: ir.Model) -> bool:
    """Return whether any node of `model` quantises, dequantises or computes on quantised tensors."""
    return any(_is_quantised(node) for graph in fused_graphs(model) for node in graph)


def _is_quantised(node: ir.Node) -> bool:
    if quantises(node) or dequantises(node) or float_meaning(node) is not None:
        return True
    return node.domain in OWN_DOMAINS and (sums_integers(node) or node.op_type in _BLOCKS)


def float_view(model: ir.Model, constants: Constants) -> FloatView:
    """Return the float view of `model`, of which `constants` are the constant values."""
    copy = model.clone()
    view = FloatView(copy, {}, {}, {})
    for ours, theirs in zip(list(fused_graphs(copy)), list(fused_graphs(model)), strict=True):
        writer = _ViewWriter(view, ours, constants)
        pairs = list(zip(ours, theirs, strict=True))
        view.values.update(zip(ours.inputs, theirs.inputs, strict=True))
        view.values.update((value, theirs.initializers[name]) for name, value in ours.initializers.items())
        for node, original in pairs:
            view.originals[node] = (original,)
            view.values.update(zip(node.outputs, original.outputs, strict=True))
        for node, original in pairs:
            if node.graph is not None and not any(value in constants for value in original.outputs):
                writer.write(node)
    return view


@dataclass
class _ViewWriter:
    """Writes the float view of one graph."""

    view: FloatView
    graph: ir.Graph
    constants: Constants

    def write(self, node: ir.Node) -> None:
        """Leave `node` out, or put what it means in its place."""
        meaning = float_meaning(node)
        if quantises(node):
            self._leave_out(node, node.outputs[0])
        elif dequantises(node):
            self._pass_by(node, node.inputs[0], node.outputs[0])
        elif meaning is not None:
            self._put(node, meaning)
        elif quantises_at_run(node):
            self._put_products(node)
        elif node.domain in OWN_DOMAINS and node.op_type in _BLOCKS:
            self._put_block_product(node, *_BLOCKS[node.op_type])

    def _leave_out(self, quantiser: ir.Node, stored: ir.Value) -> None:
        """Let what reads `stored` read the floats that `quantiser` reads; it stays for an output that is dequantised from them."""
        source = quantiser.inputs[0]
        if source is None or stored.is_graph_output():
            return
        kept = [reader for reader in stored.consumers() if dequantises(reader) and reader.outputs[0].is_graph_output()]
        for reader, index in list(stored.uses()):
            if reader not in kept:
                reader.replace_input_with(index, source)
        if not kept:
            self.graph.remove(quantiser, safe=True)

    def _pass_by(self, dequantiser: ir.Node, stored: ir.Value | None, result: ir.Value) -> None:
        """Let what reads `result` read `stored`: in the view, that is the same in floats."""
        if stored is None or result.is_graph_output():
            return
        result.replace_all_uses_with(stored)
        self.graph.remove(dequantiser, safe=True)

    def _put(self, node: ir.Node, meaning: FloatMeaning) -> None:
        """Put the operator on floats in the place of `node`."""
        operands = [self._operand(node, index, meaning) for index in meaning.places(node) if index < len(node.inputs)]
        attributes = [attribute for name, attribute in node.attributes.items() if name not in meaning.dropped]
        self._replace([node], node.outputs[0], [_node(meaning.op_type, operands, attributes, node.name)])

    def _operand(self, node: ir.Node, index: int, meaning: FloatMeaning) -> ir.Value | None:
        """Return the operand at `index` in floats; a constant is dequantised."""
        value = node.inputs[index]
        if value is None or not meaning.is_scaled(index) or not self._is_constant(value):
            return value
        return self._dequantised(node, value, node.inputs[index + 1 : index + 3], meaning.axis_of(node, index))

    def _dequantised(
        self, node: ir.Node, stored: ir.Value, scales: Sequence[ir.Value | None], axis: int | None
    ) -> ir.Value:
        """Return the constant `stored` in floats, for `node` to read."""
        if any(scale is not None and not self._is_constant(scale) for scale in scales):
            return stored
        # Before opset 13, DequantizeLinear had one scale for all elements, and no axis.
        has_axis = axis is not None and opset_of(self.view.model) >= 13
        attributes = [ir.AttrInt64("axis", axis)] if axis is not None and has_axis else []
        maker = _node(DEQUANTISING, [stored, *scales], attributes, None)
        maker.outputs[0].name = f"{stored.name} of {node.outputs[0].name}"
        self.graph.insert_before(node, [maker])
        return maker.outputs[0]

    def _put_products(self, dynamic: ir.Node) -> None:
        """Put products of floats in the place of those of the integers that `dynamic` makes, and leave it out where all were that."""
        source, (stored, scale, _) = dynamic.inputs[0], dynamic.outputs
        for node in list(dict.fromkeys(stored.consumers())):
            if sums_integers(node) and node.inputs[0] is stored:
                self._put_product(node, scale, source)
        if not any(map(is_read, dynamic.outputs)):
            self.graph.remove(dynamic, safe=True)

    def _put_product(self, node: ir.Node, scale: ir.Value, source: ir.Value | None) -> None:
        weight = node.inputs[1]
        cast = _only_reader(node.outputs[0], "Cast")
        scaled = None if cast is None else _only_reader(cast.outputs[0], "Mul")
        if cast is None or scaled is None or weight is None or not self._is_constant(weight):
            return
        factor = next((value for value in scaled.inputs if value is not None and value is not cast.outputs[0]), None)
        scaling = None if factor is None else factor.producer()
        if scaling is None or scaling.op_type != "Mul" or _only_reader(scaling.outputs[0], "Mul") is not scaled:
            return
        others = [value for value in scaling.inputs if value is not scale]
        if len(others) != 1 or others[0] is None or not self._is_constant(others[0]):
            return
        zero = given_input(node, 3)
        kind = "Conv" if node.op_type == "ConvInteger" else "MatMul"
        operand = self._dequantised(node, weight, [others[0], zero], -1 if kind == "MatMul" else 0)
        product = _node(kind, [source, operand], list(node.attributes.values()), node.name)
        self._replace([node, cast, scaling, scaled], scaled.outputs[0], [product])

    def _put_block_product(self, node: ir.Node, weight: int, bias: int) -> None:
        """Put a product of floats, and the sum with its bias, in the place of `node`."""
        stored, added = node.inputs[weight], given_input(node, bias)
        if stored is None or not self._is_constant(stored):
            return
        scales = _BLOCK_SCALES.get(node.op_type)
        if scales is None:
            operand = self._unpacked(node)
        else:
            operand = self._dequantised(node, stored, [given_input(node, index) for index in scales], -1)
        nodes = [_node("MatMul", [node.inputs[0], operand], [], node.name)]
        if added is not None:
            nodes.append(_node("Add", [nodes[0].outputs[0], added], [], f"{node.name}/bias"))
        self._replace([node], node.outputs[0], nodes)

    def _unpacked(self, node: ir.Node) -> ir.Value:
        """Return the weight of MatMulNBits in floats: its product with the identity, which is computed only where a query asks."""
        size = node.attributes.get_int("K", 0)
        name = f"identity of {node.outputs[0].name}"
        tensor = ir.LazyTensor(partial(_identity, size), ir.DataType.FLOAT, ir.Shape([size, size]), name=name)
        identity = ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
        self.graph.register_initializer(identity)
        maker = ir.Node(node.domain, node.op_type, [identity, *node.inputs[1:5]], node.attributes.values())
        self.graph.insert_before(node, [maker])
        return maker.outputs[0]

    def _replace(self, nodes: Sequence[ir.Node], result: ir.Value, new_nodes: Sequence[ir.Node]) -> None:
        """Put `new_nodes`, whose last result is `result`, in the place of `nodes`."""
        originals = tuple(original for node in nodes for original in self.view.originals[node])
        last = new_nodes[-1].outputs[0]
        last.shape, name = result.shape, result.name
        self.view.values[last] = self.view.values[result]
        self.graph.insert_before(nodes[-1], list(new_nodes))
        result.replace_all_uses_with(last, replace_graph_outputs=True)
        result.name = None
        last.name = name
        self.graph.remove(nodes, safe=True)
        for node in new_nodes:
            self.view.originals[node] = originals
        if len(new_nodes) > 1:
            self.view.parts.update(dict.fromkeys(originals, tuple(new_nodes)))

    def _is_constant(self, value: ir.Value) -> bool:
        return self.view.values.get(value, value) in self.constants


def _identity(size: int) -> ir.TensorProtocol:
    return ir.tensor(np.eye(size, dtype=np.float32))


def _only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the one node that reads `value` where it is of this operator."""
    node = only_reader(value)
    return node if node is not None and node.op_type == op_type and node.domain in OWN_DOMAINS else None


def _node(op_type: str, inputs: Sequence[ir.Value | None], attributes: Iterable[ir.Attr], name: str | None) -> ir.Node:
    return ir.Node("", op_type, inputs, attributes, outputs=[ir.Value()], name=name)
