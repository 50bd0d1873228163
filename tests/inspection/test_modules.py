"""Sums over modules: each is the sum of what is inside, and the first that of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.inspection.layers import Module


def model(names: tuple[str, ...]) -> onnx.ModelProto:
    """Return products by 4×4 weights, one after another, the last by the weight of the first."""
    weights = [*(f"w{at}" for at in range(len(names) - 1)), "w0"]
    nodes = [
        helper.make_node("MatMul", [f"x{at}", weight], [f"x{at + 1}"], name=name)
        for at, (name, weight) in enumerate(zip(names, weights, strict=True))
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in ("x0", f"x{len(names)}"))
    held = [numpy_helper.from_array(np.ones((4, 4), np.float32), weight) for weight in weights[:-1]]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    "names",
    [
        ("/a/0/fc/MatMul", "/a/1/fc/MatMul", "/b/MatMul", "/a/1/MatMul", "top"),
        ("a.0.fc.mm", "a.1.fc.mm", "b.mm", "a.1.mm", "top"),
    ],
)
def test_modules_by_the_names_of_their_nodes(names: tuple[str, ...]) -> None:
    found = api.inspect(model(names), tree=True)
    assert found.modules is not None

    def row(one: Module) -> tuple[object, ...]:
        return one.name, one.depth, one.nodes, one.parameters, one.macs, one.flops - one.macs, one.read, one.written

    # 2×4×4 MACs, 32 bytes and a weight of 64 read, 32 written by each; the last reads the weight of the first again.
    assert [row(one) for one in found.modules] == [
        ("", 0, 5, 64, 160, 160, 480, 160),
        ("a", 1, 3, 48, 96, 96, 288, 96),
        ("a/0", 2, 1, 16, 32, 32, 96, 32),
        ("a/0/fc", 3, 1, 16, 32, 32, 96, 32),
        ("a/1", 2, 2, 32, 64, 64, 192, 64),
        ("a/1/fc", 3, 1, 16, 32, 32, 96, 32),
        ("b", 1, 1, 16, 32, 32, 96, 32),
    ]
    assert found.modules[0].parameters == found.parameters.elements
    assert found.to_dict()["tree"][1]["module"] == "a"
    assert "tree" not in api.inspect(model(names)).to_dict()
