"""Products inside local functions, and tiled layers in functions of their own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, parser

from onnxtile import api
from onnxtile.model import keys
from onnxtile.model.exact_products import exact_session
from onnxtile.model.save import to_bytes
from onnxtile.tiling.limits import Limits, TilingPolicy
from tests import build
from tests.tiling.conftest import Bench, Tiled

# Products inside local functions.


FOUR = Limits.of(max=4)
LINEAR = """<domain: "f", opset_import: ["" : 17]> Linear (x, w, b) => (y) { [mm] h = MatMul(x, w)  y = Add(h, b) }"""


def source(graph: str, *functions: str) -> onnx.ModelProto:
    head = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>"""
    return parser.parse_model("\n".join((f"{head} g {graph}", *functions)))


def require_same(bench: Bench, model: onnx.ModelProto, options: TilingPolicy | None = None) -> None:
    tiled = bench.tile(model, FOUR, options)
    random = np.random.default_rng(0)
    feeds = {
        info.name: random.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim]).astype(np.float32)
        for info in model.graph.input
    }
    expected, got = exact_session(model.SerializeToString(), model).run(feeds), tiled.run(feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4)
    assert tiled.result.tiled and all(verdict.passed for verdict in tiled.verdicts())


TWO_CALLS = """(float[5,8] x, float[8,8] w, float[8] b, float[8,8] v) => (float[5,8] y) {
    h = f.Linear(x, w, b)  y = f.Linear(h, v, b) }"""


@pytest.mark.parametrize("how", ["sum", "gemm"])
@pytest.mark.parametrize("wrap", [False, True])
def test_calls_of_one_size(bench: Bench, how: str, *, wrap: bool) -> None:
    model = source(TWO_CALLS, LINEAR)
    require_same(bench, model, TilingPolicy(accumulate=how, wrap=wrap))
    (site,) = bench.tile(model, FOUR).result.tiled
    assert (site.node, site.contraction.m, site.contraction.k, site.contraction.n) == ("Linear/mm", 5, 8, 8)


DIFFERENT = """(float[5,8] x, float[8,8] w, float[8] b, float[8,6] v, float[6] c, float[6,3] u, float[3] d) => (float[5,3] y) {
    g = f.Linear(x, w, b)  h = f.Linear(g, w, b)  i = f.Linear(h, v, c)  y = f.Linear(i, u, d) }"""


def test_calls_of_different_sizes_get_a_copy_each(bench: Bench) -> None:
    model = source(DIFFERENT, LINEAR)
    require_same(bench, model)
    tiled = bench.tile(model, FOUR)
    assert [node.op_type for node in tiled.nodes] == ["Linear", "Linear", "Linear.2", "Linear.3"]
    assert [(site.node, site.contraction.k, site.contraction.n) for site in tiled.result.tiled] == [
        ("Linear/mm", 8, 8),
        ("Linear.2/mm", 8, 6),
        ("Linear.3/mm", 6, 3),
    ]


def test_copies_that_nothing_is_cut_in_are_one_again(bench: Bench) -> None:
    tiled = bench.tile(source(DIFFERENT, LINEAR), Limits(k=7))
    assert [node.op_type for node in tiled.nodes] == ["Linear", "Linear", "Linear.2", "Linear.3"]
    tiled = bench.tile(source(DIFFERENT, LINEAR), Limits(n=7))
    assert [node.op_type for node in tiled.nodes] == ["Linear", "Linear", "Linear.2", "Linear.2"]
    tiled = bench.tile(source(DIFFERENT, LINEAR), Limits(n=8))
    assert [node.op_type for node in tiled.nodes] == ["Linear"] * 4 and len(tiled.model.functions) == 1


def test_copies_of_what_calls_copies(bench: Bench) -> None:
    outer = """<domain: "f", opset_import: ["" : 17, "f" : 1]> Block (x, w, b, v, c) => (y) {
        h = f.Linear(x, w, b)  y = f.Linear(h, v, c) }"""
    graph = """(float[5,8] x, float[8,6] w, float[6] b, float[6,8] v, float[8] c) => (float[5,6] y) {
        h = f.Block(x, w, b, v, c)  i = f.Block(h, w, b, v, c)  y = f.Block(i, w, b, w2, b) }"""
    graph = graph.replace("float[8] c)", "float[8] c, float[6,6] w2)")
    model = source(graph, outer, LINEAR)
    require_same(bench, model)
    assert len(bench.tile(model, FOUR).model.functions) == 2 + 3


def test_sizes_that_a_call_gives_as_constants(bench: Bench) -> None:
    heads = """<domain: "f", opset_import: ["" : 17]> Heads (x, shape, w) => (y) {
        r = Reshape(x, shape)  [mm] y = MatMul(r, w) }"""
    graph = (
        """(float[5,8] x, float[4,8] w) => (float[2,5,8] y) <int64[3] shape = {2, 5, 4}> { y = f.Heads(x, shape, w) }"""
    )
    require_same(bench, source(graph, heads))
    inner = """<domain: "f", opset_import: ["" : 17, "f" : 1]> Outer (x, s, w) => (y) { y = f.Heads(x, s, w) }"""
    graph = graph.replace("f.Heads", "f.Outer")
    require_same(bench, source(graph, heads, inner))


def test_sizes_that_the_graph_computes_from_shapes(bench: Bench) -> None:
    heads = """<domain: "f", opset_import: ["" : 17]> Heads (x, shape, w) => (y) {
        r = Reshape(x, shape)  [mm] y = MatMul(r, w) }"""
    graph = (
        """(float[5,8] x, float[2,5,4] z, float[4,8] w) => (float[2,5,8] y) { s = Shape(z)  y = f.Heads(x, s, w) }"""
    )
    require_same(bench, source(graph, heads))


def test_a_call_inside_a_function(bench: Bench) -> None:
    outer = """<domain: "f", opset_import: ["" : 17, "f" : 1]> Block (x, w, b) => (y) {
        h = f.Linear(x, w, b)  r = Relu(h)  t = Transpose<perm = [1, 0]>(w)  [last] y = MatMul(r, t) }"""
    graph = "(float[5,8] x, float[8,6] w, float[6] b) => (float[5,8] y) { y = f.Block(x, w, b) }"
    model = source(graph, outer, LINEAR)
    require_same(bench, model)
    assert sorted(site.node for site in bench.tile(model, FOUR).result.tiled) == ["Block/last", "Linear/mm"]


def test_functions_of_which_too_little_is_known(bench: Bench) -> None:
    unused = """<domain: "f", opset_import: ["" : 17]> Other (x, w) => (y) { [mm] y = MatMul(x, w) }"""
    graph = "(float[5,8] x, float[8,6] w, float[6] b) => (float[5,6] y) { y = f.Linear(x, w, b) }"
    result = bench.tile(source(graph, LINEAR, unused), FOUR).result
    assert [skip.reason for skip in result.skipped] == [
        "it is inside the local function f::Other, which is called nowhere"
    ]
    newer = LINEAR.replace('"" : 17', '"" : 18')
    (skip,) = bench.tile(source(graph, newer), FOUR).result.skipped
    assert skip.reason == "it is inside f::Linear, which has another opset"


def test_a_branch_that_is_never_taken_contradicts_nothing() -> None:
    # onnxruntime cannot infer that t has two rows; told so, it would refuse the model for the Squeeze of one.
    model = source("""(float[2,8] x) => (float[r] y)
    <float[8,6] w, int64[1] zero = {0}, int64 first = {0}, int64 one = {1}, int64[1] all = {-1}> {
      sizes = Shape(x)
      loose = Cast<to = 1>(sizes)
      plain = Abs(loose)
      whole = Cast<to = 7>(plain)
      s = Reshape(x, whole)
      t = MatMul(s, w)
      made = Shape(t)
      rows = Gather(made, first)
      single = Equal(rows, one)
      y = If(single) <then_branch = single () => (float[n] z) { z = Squeeze(t, zero) },
                     else_branch = several () => (float[m] f) { f = Reshape(t, all) }>
    }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 6), np.float32), "w"))
    tiled = api.tile(model, FOUR)
    assert tiled.result.matmuls == 2 * 2 and tiled.verdict is not None and tiled.verdict.equal


def test_a_result_keeps_its_declared_shape_beside_a_function_with_a_value_of_its_name() -> None:
    """Beside an If the shapes are those that the model declares; `y` of the function declares none."""
    model = source(
        """(float[2,8] x, bool p) => (float[?,6] y, float[2,8] z, float[2,8] v) <float[8,6] w> {
          y = MatMul(x, w)
          z = f.Same(x)
          v = If(p) <then_branch = t () => (float[2,8] a) { a = Neg(x) }, else_branch = e () => (float[2,8] b) { b = Abs(x) }>
        }""",
        """<domain: "f", opset_import: ["" : 17]> Same (x) => (y) { y = Neg(x) }""",
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 6), np.float32), "w"))
    tiled = api.tile(model, FOUR)
    assert tiled.result.matmuls == 2 * 2
    onnx.checker.check_model(onnx.ModelProto.FromString(to_bytes(tiled.model)))


# Tiled layers in local functions.


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
    source = build.model(nodes, {"a": [5, 6]}, {"o": [5, 6]}, {"w": weight}, ir_version=8)
    tiled = bench.tile(source, Limits.of(max=4), WRAP)
    assert [node.op_type for node in tiled.nodes] == ["Tiled_MatMul_x_y_2", "Tiled_MatMul_x_y"]
    assert len([name for name in tiled.model.graph.initializers if "/b_" in name]) == 4, "blocks are shared"
    a = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    np.testing.assert_allclose(tiled.run({"a": a})["o"], a @ weight @ weight, rtol=1e-4, atol=1e-4)
    assert all(verdict.passed for verdict in tiled.verdicts())
    saved = onnx.load_model_from_string(ir.to_proto(tiled.model).SerializeToString())
    assert [function.name for function in saved.functions] == ["Tiled_MatMul_x_y", "Tiled_MatMul_x_y_2"]
