"""The nodes of a quantised model in the order of its plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.fitting.rewrites.order import order_as_planned
from onnxtile.model.load import load
from tests.fitting.networks import run

CHANNELS = (24, 4)


def wide_branches() -> onnx.ModelProto:
    """Return a quantised model of two branches from wide tensors to narrow ones, with all wide tensors made first."""
    random = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(99),
        "v": np.int8(0),
        "wide": random.integers(-99, 99, (CHANNELS[0], 2, 3, 3)).astype(np.int8),
        "narrow": random.integers(-99, 99, (CHANNELS[1], CHANNELS[0], 1, 1)).astype(np.int8),
    }
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: str, result: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, inputs.split(), [result], name=f"make {result}", **attributes))

    def dequantise(name: str, zero: str = "z") -> str:
        add("DequantizeLinear", f"{name} s {zero}", f"{name}_of_{len(nodes)}")
        return nodes[-1].output[0]

    add("QuantizeLinear", "x s z", "q")
    for branch in "ab":
        add("Conv", f"{dequantise('q')} {dequantise('wide', 'v')}", f"{branch}1", pads=[1, 1, 1, 1])
        add("QuantizeLinear", f"{branch}1 s z", f"{branch}2")
    for branch in "ab":
        add("Conv", f"{dequantise(branch + '2')} {dequantise('narrow', 'v')}", f"{branch}3")
        add("QuantizeLinear", f"{branch}3 s z", f"{branch}4")
    add("Add", f"{dequantise('a4')} {dequantise('b4')}", "sum")
    add("QuantizeLinear", "sum s z", "y")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 16, 16])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, [1, CHANNELS[1], 16, 16])
    arrays = [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_quantised_model_is_cut_in_the_order_of_its_plan() -> None:
    proto = wide_branches()
    wide = CHANNELS[0] * 16 * 16
    fitted = onnxtile.fit(proto, capacity=wide, exact=True)
    assert fitted.steps[0].rewrite == "runs as planned"
    assert fitted.after.arena <= wide
    x = np.random.default_rng(1).standard_normal((1, 2, 16, 16)).astype(np.float32)
    assert np.array_equal(run(proto, x), run(ir.to_proto(fitted.model), x))


def test_nodes_stand_behind_those_that_they_wait_for() -> None:
    model = load(wide_branches())
    moved = order_as_planned(model, [["b2"], ["b4"], ["unknown"], ["a2"]])
    names = [node.name for node in model.graph]
    assert moved
    assert names.index("make b4") < names.index("make a2")
    made: set[ir.Value] = set(model.graph.inputs) | set(model.graph.initializers.values())
    for node in model.graph:
        assert made.issuperset(value for value in node.inputs if value is not None)
        made.update(node.outputs)
    assert not order_as_planned(model, [["b2"], ["b4"], ["a2"]])
