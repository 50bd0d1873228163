"""Tiled layers in local functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxtile.model import keys
from onnxtile.tiling.limits import Limits, TilingPolicy

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

WRAP = TilingPolicy(wrap=True)


def body(tiled: Tiled) -> ir.Function:
    (function,) = tiled.model.functions.values()
    return function


@pytest.mark.parametrize("constants", ["", "b", "abc"])
@pytest.mark.parametrize("how", ["sum", "gemm"])
@pytest.mark.parametrize("opset", [7, 13, 21])
def test_a_wrapped_layer_is_right(bench: Bench, constants: str, how: str, opset: int) -> None:
    case = bench.case(
        m=7, k=11, n=9, bias=(9,), constants=constants, alpha=0.3, beta=-2.5, trans_b=True, opset=opset, name="a/fc.1"
    )
    tiled = bench.judge(case, Limits.of(max=4), TilingPolicy(accumulate=how, wrap=True))
    assert tiled.verdicts()[0].passed
    assert [(node.domain, node.op_type) for node in tiled.nodes] == [("onnxtile", "Tiled_Gemm_a_fc_1")]
    assert all(keys.TILE in node.metadata_props for node in body(tiled) if node.op_type != "Constant")
    mark = json.loads(tiled.nodes[0].metadata_props[keys.TILE])
    assert mark["node"] == "a/fc.1" and mark["part"] == "layer" and mark["grid"] == [2, 3, 3]
    assert "b" not in tiled.model.graph.initializers or "b" not in constants


@pytest.mark.parametrize("dtype", [np.float16, np.int64])
def test_filled_tiles_and_integers(bench: Bench, dtype: Any) -> None:
    case = bench.case(op="MatMul", m=7, k=11, n=9, constants="b", dtype=dtype)
    tiled = bench.judge(case, Limits(4, 4, 4, pad=True), WRAP)
    assert tiled.verdicts()[0].passed
    inside = [node.op_type for node in body(tiled)]
    assert {"Constant", "Pad", "Slice", "Split"} <= set(inside)
    assert {value.dtype for value in tiled.model.graph.initializers.values()} == {
        ir.DataType.from_numpy(np.dtype(dtype))
    }


def test_a_wrong_block_is_noticed(bench: Bench) -> None:
    tiled = bench.judge(bench.case(m=7, k=11, n=9, constants="b"), Limits.of(max=4), WRAP)
    block = next(value for value in body(tiled).inputs if value.name == "fc/b_k1_n1")
    assert block.const_value is not None
    block.const_value = ir.tensor(block.const_value.numpy() * np.float32(1.01))
    assert not tiled.verdicts()[0].passed


def test_two_layers_in_a_row_and_a_shared_weight(bench: Bench) -> None:
    weight = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["h"], name="x.y"),
        helper.make_node("MatMul", ["h", "w"], ["o"], name="x/y"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("a", 1, (5, 6))], [helper.make_tensor_value_info("o", 1, (5, 6))],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    tiled = bench.tile(source, Limits.of(max=4), WRAP)
    assert [node.op_type for node in tiled.nodes] == ["Tiled_MatMul_x_y_2", "Tiled_MatMul_x_y"]
    assert len([name for name in tiled.model.graph.initializers if "/b_" in name]) == 4, "blocks are shared"
    a = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_allclose(tiled.run({"a": a})["o"], a @ weight @ weight, rtol=1e-4, atol=1e-4)
    assert all(verdict.passed for verdict in tiled.verdicts())
    saved = onnx.load_model_from_string(ir.to_proto(tiled.model).SerializeToString())
    assert [function.name for function in saved.functions] == ["Tiled_MatMul_x_y", "Tiled_MatMul_x_y_2"]
