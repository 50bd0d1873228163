"""A quantised model in which some elements of every quantised tensor are one step of quantisation off.

Rounding before a quantisation is of any size after it: a sum in another order crosses from one step to the next. The copy shows how far
such steps lead in the outputs of a model.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.quantising import OWN_DOMAINS, quantises
from onnxtile.model.walk import all_graphs

_SHARE = 1 / 64
"""The share of the elements that are one step off, half of them up and half of them down."""

_NO_RANDOM_KERNELS = 22
"""The first opset in which onnxruntime's CPU runs no operator of random numbers, but for Dropout."""

_ZERO_POINTS = {
    "QuantizeLinear": 2,
    "QGemm": 8,
    "QLinearAdd": 7,
    "QLinearAveragePool": 4,
    "QLinearConcat": 1,
    "QLinearConv": 7,
    "QLinearGlobalAveragePool": 4,
    "QLinearLeakyRelu": 4,
    "QLinearMatMul": 7,
    "QLinearMul": 7,
    "QLinearReduceMean": 4,
    "QLinearSigmoid": 4,
    "QLinearSoftmax": 4,
    "QLinearWhere": 8,
}
"""The place of the result's zero point among the inputs of each operator that quantises its result."""


def one_step_off(model: ir.Model, turn: int = 0) -> ir.Model | None:
    """Return a copy of `model` whose quantised tensors are one step off at random elements; None where nothing is quantised.

    The numbers are drawn in the model, anew in each run, from fixed seeds: others in each `turn`.
    """
    copy = model.clone()
    found = [(node, zero) for graph in all_graphs(copy) for node in graph if (zero := _zero_point(node)) is not None]
    opset = copy.opset_imports.get("", 1)
    for seed, (node, zero) in enumerate(found, turn * len(found)):
        _put_off(node, zero, seed, opset)
    return copy if found else None


def _zero_point(node: ir.Node) -> ir.Value | None:
    """Return the zero point of the first result of `node`; None where that is not quantised to integers."""
    if node.domain not in OWN_DOMAINS:
        return None
    if node.op_type == "DynamicQuantizeLinear":
        return node.outputs[2]
    place = _ZERO_POINTS.get(node.op_type, len(node.inputs))
    zero = node.inputs[place] if place < len(node.inputs) else None
    tensor = None if zero is None else zero.const_value
    fits = tensor is None or (tensor.dtype.is_integer() and tensor.size == 1)
    return zero if fits else None


def makes_quantised(value: ir.Value) -> bool:
    """Return whether the node that makes `value` rounds it to steps of quantisation."""
    node = value.producer()
    return node is not None and node.outputs[0] is value and (quantises(node) or _zero_point(node) is not None)


def _put_off(node: ir.Node, zero: ir.Value, seed: int, opset: int) -> None:
    """Let the readers of the first result of `node` read it with random steps added, inside the range of its element type."""
    graph, stored = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    one = ir.node("Constant", [], {"value": ir.tensor(1.0, dtype=ir.DataType.FLOAT)})
    as_float = ir.node("Cast", [stored], {"to": ir.DataType.FLOAT.value})
    draw = _by_dropout if opset >= _NO_RANDOM_KERNELS else _by_uniform_numbers
    steps = draw(as_float.outputs[0], seed)
    moved = ir.node("Add", [as_float.outputs[0], steps[-1].outputs[0]])
    origin = ir.node("Cast", [zero], {"to": ir.DataType.FLOAT.value})
    shifted = ir.node("Sub", [moved.outputs[0], origin.outputs[0]])
    domain = node.domain if quantises(node) else ""
    again = ir.node("QuantizeLinear", [shifted.outputs[0], one.outputs[0], zero], domain=domain)
    nodes = [one, as_float, *steps, moved, origin, shifted, again]
    for i, value in enumerate(value for new in nodes for value in new.outputs):
        value.name = f"{stored.name}/one step off/{i}"
    made = again.outputs[0]
    made.type, made.shape = stored.type, stored.shape
    stored.replace_all_uses_with(made, replace_graph_outputs=True)
    as_float.replace_input_with(0, stored)
    if made.is_graph_output():
        stored.name, made.name = made.name, stored.name
    graph.insert_after(node, nodes)


def _by_uniform_numbers(like: ir.Value, seed: int) -> list[ir.Node]:
    """Return nodes; the last one makes -1, 0 or 1 for each element of `like`."""
    reach = 1 + _SHARE
    drawn = ir.node("RandomUniformLike", [like], {"low": -reach, "high": reach, "seed": float(seed)})
    # The cast drops the fraction: -1, 0 or 1.
    whole = ir.node("Cast", [drawn.outputs[0]], {"to": ir.DataType.INT32.value})
    return [drawn, whole, ir.node("Cast", [whole.outputs[0]], {"to": ir.DataType.FLOAT.value})]


def _by_dropout(like: ir.Value, seed: int) -> list[ir.Node]:
    """Return nodes as above, for opsets in which onnxruntime has no kernel of random numbers: the masks of two Dropouts that train."""
    dropped = ir.node("Constant", [], {"value": ir.tensor(1 - _SHARE / 2, dtype=ir.DataType.FLOAT)})
    trains = ir.node("Constant", [], {"value": ir.tensor(True, dtype=ir.DataType.BOOL)})
    inputs = [like, dropped.outputs[0], trains.outputs[0]]
    # The seeds 0 and 1 give the same numbers, and those of small seeds begin alike.
    seeds = [7919 * (2 * seed + i) for i in (1, 2)]
    drawn = [ir.node("Dropout", inputs, {"seed": one}, num_outputs=2) for one in seeds]
    masks = [ir.node("Cast", [one.outputs[1]], {"to": ir.DataType.FLOAT.value}) for one in drawn]
    return [dropped, trains, *drawn, *masks, ir.node("Sub", [mask.outputs[0] for mask in masks])]
