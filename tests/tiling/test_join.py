"""A result is joined without a copy of it: by Concat where its parts lie one after another, else by ScatterND into one tensor."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxtile import api
from onnxtile.model.save import to_bytes
from onnxtile.system.runtime import Session
from onnxtile.tiling.limits import Limits, WindowBounds
from tests.tiling.conftest import Case

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

VIEWS = {"Reshape", "ScatterND", "Split"}
"""Operators whose results lie in the memory of their first operand."""


def layer(
    op: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], opset: int = 17, **more: Any
) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal(w).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name="layer", **more)],
        "g",
        [helper.make_tensor_value_info("x", 1, x)],
        [helper.make_tensor_value_info("y", 1, y)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def alive(tiled: Tiled) -> int:
    """Return the most bytes that live at once, without the model's inputs, where views and in-place operators take none."""
    root: dict[ir.Value | None, ir.Value] = {}
    last: dict[ir.Value, int] = {}
    for step, node in enumerate(tiled.nodes):
        for value in node.outputs:
            first = node.inputs[0]
            shares = node.op_type in VIEWS | {"Add"} and first is not None and not first.is_initializer()
            root[value] = root[first] if shares and first in root else value
        for read in (*node.inputs, *node.outputs):
            if read is not None:
                last[root.get(read, read)] = len(tiled.nodes) if read.is_graph_output() else step
    live = most = 0
    for step, node in enumerate(tiled.nodes):
        live += sum(nbytes(value) for value in node.outputs if root[value] is value)
        most = max(most, live)
        live -= sum(nbytes(value) for value in {*root.values()} if last[value] == step and value.producer() is not None)
    return most


def nbytes(value: ir.Value) -> int:
    assert value.shape is not None and value.dtype is not None
    return prod(value.shape.numpy()) * int(value.dtype.itemsize)


def require_same(bench: Bench, source: onnx.ModelProto, limits: Limits) -> Tiled:
    tiled = bench.tile(source, limits)
    dims = [dim.dim_value for dim in source.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).standard_normal(dims).astype(np.float32)}
    expected = Session(source.SerializeToString()).run(feeds)["y"]
    np.testing.assert_allclose(tiled.run(feeds)["y"], expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
    (site,) = tiled.result.tiled
    assert len(site.emitted) == bench.most_nodes(site)
    return tiled


def test_a_product_takes_its_result_and_one_tile(bench: Bench) -> None:
    tiled = require_same(bench, layer("MatMul", (8, 128), (128, 64), (8, 64)), Limits.of(max=8))
    block = 8 * 8 * 4
    # The block of the left operand, the sum, the product; the rows of a block have numbers of 8 bytes.
    assert alive(tiled) <= 8 * 64 * 4 + 3 * block + 8 * 8
    assert (tiled.count("ScatterND"), tiled.count("Concat")) == (7, 0)


def test_rows_lie_one_after_another(bench: Bench) -> None:
    tiled = require_same(bench, layer("MatMul", (64, 8), (8, 8), (64, 8)), Limits.of(max=8))
    assert (tiled.count("Split"), tiled.count("Concat"), tiled.count("ScatterND"), tiled.count("Slice")) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("x", "w", "y", "limits"),
    [
        ((1, 4, 12, 10), (6, 4, 3, 3), (1, 6, 10, 8), Limits.of(m=5, k=18, n=4, window=WindowBounds())),
        ((1, 4, 12, 10), (6, 4, 3, 3), (1, 6, 10, 8), Limits.of(n=4, window=WindowBounds(rows=3))),
        ((2, 4, 12), (6, 4, 3), (2, 6, 10), Limits.of(m=4, n=2, window=WindowBounds())),
    ],
)
def test_convolutions(bench: Bench, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], limits: Limits) -> None:
    source = layer("Conv", x, w, y)
    tiled = bench.tile(source, limits)
    feeds = {"x": np.random.default_rng(1).standard_normal(x).astype(np.float32)}
    expected = Session(source.SerializeToString()).run(feeds)["y"]
    np.testing.assert_allclose(tiled.run(feeds)["y"], expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
    (site,) = tiled.result.tiled
    assert len(site.emitted) <= bench.most_nodes(site)
    # The blocks of the last row of the picture, which is short, go into the result together where there are several.
    short = limits.window is not None and limits.window.rows == 3
    assert tiled.count("ScatterND") == site.grid.shape[0] * site.grid.n.count - 1 - short * (site.grid.n.count - 1)


@pytest.mark.parametrize("transposed", [False, True])
def test_short_rows_of_blocks_go_into_the_result_together(bench: Bench, transposed: bool) -> None:
    # 65 rows are a stretch of 64 and one of a single row, as long as K is cut and the result has several blocks along N.
    x = (3, 65, 128) if transposed else (65, 128)
    source = layer("MatMul", x, (128, 200), (*x[:-1], 200))
    tiled = bench.tile(source, Limits.of(max=64))
    assert tiled.count("ScatterND") == 4 - 1 + 1 and tiled.count("Concat") == 1
    feeds = {"x": np.random.default_rng(1).standard_normal(x).astype(np.float32)}
    expected = Session(source.SerializeToString()).run(feeds)["y"]
    np.testing.assert_allclose(tiled.run(feeds)["y"], expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_the_numbers_of_rows_take_few_bytes(bench: Bench) -> None:
    # 1,024 × 16 × 16 numbers of 8 bytes would take 2 MiB.
    source = layer("Conv", (1, 4, 18, 18), (256, 4, 3, 3), (1, 256, 16, 16))
    tiled = bench.tile(source, Limits.of(m=15, window=WindowBounds(rows=5, columns=3, filters=64)))
    held = [v.const_value for name, v in tiled.model.graph.initializers.items() if "_places" in name]
    assert sum(tensor.nbytes for tensor in held if tensor is not None) < 16 * 1024
    # In the corner is one pixel of each channel.
    assert tiled.count("ScatterND") == 4 * 6 * 4 - 1 - 3


def test_before_opset_11_there_is_no_scatter(bench: Bench) -> None:
    source = layer("MatMul", (8, 128), (128, 64), (8, 64), opset=9)
    assert bench.tile(source, Limits.of(max=8)).count("Concat") == 1


@pytest.mark.parametrize("verify", [True, False])
def test_a_model_before_opset_11_is_raised_where_concat_would_copy(verify: bool) -> None:
    source = layer("MatMul", (8, 128), (128, 64), (8, 64), opset=9)
    tiled = api.tile(source, Limits.of(max=8), verify=verify)
    assert (tiled.opset.before, tiled.opset.after, tiled.opset.reason) == (9, 11, None)
    assert tiled.model.graph.opset_imports == {"": 11}
    assert sum(node.op_type == "ScatterND" for node in tiled.model.graph) == 7
    assert tiled.to_dict()["opset"] == {"before": 9, "after": 11, "reason": None}
    feeds = {"x": np.random.default_rng(1).standard_normal((8, 128)).astype(np.float32)}
    expected = Session(source.SerializeToString()).run(feeds)["y"]
    np.testing.assert_allclose(Session(to_bytes(tiled.model)).run(feeds)["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_model_keeps_its_opset_where_concat_copies_nothing() -> None:
    source = layer("MatMul", (8, 128), (128, 64), (8, 64), opset=9)
    tiled = api.tile(source, Limits.of(m=4))
    assert (tiled.opset.before, tiled.opset.after) == (9, 9)
    assert tiled.model.graph.opset_imports == {"": 9}


def test_a_model_that_the_converter_refuses_keeps_its_opset_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", refuses)
    tiled = api.tile(layer("MatMul", (8, 128), (128, 64), (8, 64), opset=9), Limits.of(max=8))
    assert (tiled.opset.before, tiled.opset.after) == (9, 9)
    assert sum(node.op_type == "Concat" for node in tiled.model.graph) == 1
    warning = "the model keeps opset 9, in which tiles are joined by Concat: onnx's version converter cannot raise"
    assert tiled.warnings[0].startswith(warning)


def test_the_arena_grows_by_a_tile_at_most_in_an_old_opset() -> None:
    source = layer("MatMul", (64, 512), (512, 256), (64, 256), opset=9)
    tiled = api.tile(source, Limits.of(max=32))
    assert tiled.arena.before is not None and tiled.arena.after is not None
    assert tiled.arena.after <= tiled.arena.before + 4 * (32 * 32 * 3)


WIDE_LATER = """
<ir_version: 10, opset_import: ["": 17]>
g (float[8,128] x) => (float[8] y)
<int64[2] times = {1, 64}>
{
  size = Constant<value = int64[2] {128, 64}>()
  w = ConstantOfShape<value = float[1] {0.5}>(size)
  h = Exp(x)
  narrow = MatMul(h, w)
  wide = Tile(narrow, times)
  y = ReduceMax<axes = [1], keepdims = 0>(wide)
}
"""


@pytest.mark.parametrize("verify", [True, False])
def test_where_the_arena_has_room_concat_joins_and_operands_are_copied_once(verify: bool) -> None:
    tiled = api.tile(onnx.parser.parse_model(WIDE_LATER), Limits.of(max=8), verify=verify)
    operators = Counter(node.op_type for node in tiled.model.graph)
    assert (operators["ScatterND"], operators["Concat"], operators["Slice"]) == (0, 1, 128 // 8)
    (site,) = tiled.result.tiled
    assert site.nodes == 128 + 8 * 15 + 1 + 16
    size = api.plan(onnx.parser.parse_model(WIDE_LATER), verify=False).plan.arena_size
    assert api.plan(tiled.model, verify=False).plan.arena_size == size


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_blocks_of_every_float_go_into_one_tensor(bench: Bench, dtype: type[np.floating]) -> None:
    tiled = bench.tile(Case(8, 128, 64, op="MatMul", constants="b", dtype=dtype, opset=11).model(), Limits.of(max=8))
    assert (tiled.count("ScatterND"), tiled.count("Concat")) == (7, 0)


def test_blocks_of_bfloat16_are_joined_by_concat(bench: Bench) -> None:
    # onnxruntime has no kernel of Pad for it.
    case = Case(8, 128, 64, op="MatMul", constants="b", dtype=ml_dtypes.bfloat16)
    tiled = bench.tile(case.model(), Limits.of(max=8))
    assert (tiled.count("ScatterND"), tiled.count("Concat")) == (0, 1)


def test_a_plan_counts_the_numbers_of_rows_as_constants() -> None:
    tiled = api.tile(layer("MatMul", (8, 128), (128, 64), (8, 64)), Limits.of(max=8), verify=False)
    planned = api.plan(tiled.model, verify=False).plan
    sizes = {constant.name: constant.size for constant in planned.constants}
    made = [
        node.outputs[0].name for node in tiled.model.graph if node.op_type == "Add" and "places" in (node.name or "")
    ]
    assert len(made) == 7
    assert [sizes[name] for name in made if name is not None] == [8 * 8] * 7
