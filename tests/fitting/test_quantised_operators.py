"""Operators on quantised tensors: strips of them are equal to the whole bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.table import axis_links
from tests.fitting.networks import cut_into_strips, run
from tests.fitting.test_axis_maps import facts_of

OWN = "com.microsoft"
SCALES = {"s": np.float32(0.05), "t": np.float32(0.11), "z": np.uint8(7), "w0": np.int8(0)}
"""Two scales, and the zero points of tensors and of weights."""
MIDDLES: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "QLinearAdd": (OWN, ["h", "s", "z", "a", "t", "z", "t", "z"], {}),
    "QLinearMul": (OWN, ["h", "s", "z", "a", "t", "z", "s", "z"], {}),
    "QLinearConcat": (OWN, ["t", "z", "h", "s", "z", "a", "t", "z"], {"axis": 1}),
    "QLinearSigmoid": (OWN, ["h", "s", "z", "t", "z"], {}),
    "QLinearLeakyRelu": (OWN, ["h", "s", "z", "t", "z"], {"alpha": 0.1}),
    "QLinearAveragePool": (OWN, ["h", "s", "z", "t", "z"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "QLinearConv": ("", ["h", "s", "z", "v", "s", "w0", "t", "z", "b"], {"kernel_shape": [3, 3]}),
    "QLinearMatMul": ("", ["h", "s", "z", "m", "s", "w0", "t", "z"], {}),
}


def _chain(op: str, rows: int, stride: int, pads: list[int]) -> onnx.ModelProto:
    """Return a QLinearConv with a scale for each channel, an operator on its result, and a pooling."""
    domain, inputs, attributes = MIDDLES[op]
    random = np.random.default_rng(0)
    weights = {
        "w": random.integers(-99, 99, (4, 2, 3, 3)).astype(np.int8),
        "scales": np.asarray([0.01, 0.02, 0.005, 0.03], np.float32),
        "zeros": np.zeros(4, np.int8),
        "v": random.integers(-99, 99, (3, 4, 3, 3)).astype(np.int8),
        "b": random.integers(-99, 99, 3).astype(np.int32),
        "m": random.integers(-99, 99, (9 // stride + 9 % stride, 6)).astype(np.int8),
        **SCALES,
    }
    nodes = [
        helper.make_node(
            "QLinearConv", ["x", "s", "z", "w", "scales", "zeros", "s", "z"], ["h"], pads=pads, strides=[stride] * 2
        ),
        helper.make_node("MaxPool", ["h"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node(op, inputs, ["i"], domain=domain, **attributes),
        helper.make_node("MaxPool", ["i"], ["y"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, 2, rows, 9])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, ["n", "c", "h", "w"])
    arrays = [numpy_helper.from_array(np.asarray(one), name) for name, one in weights.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], arrays), opset_imports=opsets, ir_version=10)


@settings(max_examples=4, deadline=None)
@given(rows=st.integers(14, 24), stride=st.integers(1, 2), step=st.integers(1, 4))
@pytest.mark.parametrize("op", MIDDLES)
def test_strips_of_quantised_operators_are_equal_bit_for_bit(op: str, rows: int, stride: int, step: int) -> None:
    proto = _chain(op, rows, stride, [1, 1, 1, 1])
    cut, _ = cut_into_strips(proto, step, exact=True)
    assert [node.op_type for node in cut.graph.node].count(op) > 1
    x = np.random.default_rng(1).integers(0, 255, (1, 2, rows, 9)).astype(np.uint8)
    assert np.array_equal(run(proto, x), run(cut, x))


def test_channels_behind_columns_say_why() -> None:
    proto = _chain("QLinearAveragePool", 12, 1, [1, 1, 1, 1])
    del proto.graph.node[:2]
    proto.graph.node[0].input[0] = "x"
    proto.graph.node[0].attribute.append(helper.make_attribute("channels_last", 1))
    with pytest.raises(NotApplicable, match="behind its columns"):
        axis_links(facts_of(proto), 2)
