"""Partial sums and their results: each way to add and to join is right, and keeps as few bytes alive as it says."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from onnxtile import api
from onnxtile.model.exact_products import exact_session
from onnxtile.model.save import to_bytes
from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.tiling.limits import Accumulation, Limits, TilingPolicy, WindowBounds
from onnxtile.tiling.write import most_nodes
from onnxtile.verbs.flows.results import TiledModel
from onnxtile.verbs.tile import TileCommand
from tests import build
from tests.draws import draws
from tests.tiling.conftest import Bench, Case, Tiled

# The ways to add partial sums: each is right, and keeps as few of them alive as it says.


WAYS = list(Accumulation)
SIZE = st.tuples(st.integers(1, 17), st.integers(1, 5))


@draws(15, 60)
@given(
    sizes=st.tuples(SIZE, SIZE, SIZE),
    how=st.sampled_from(WAYS),
    op=st.sampled_from(["Gemm", "MatMul"]),
    constants=st.sampled_from(["", "b", "a", "abc"]),
    dtype=st.sampled_from([np.float32, np.float64, np.float16]),
    seed=st.integers(0, 100),
)
def test_every_way_is_as_exact_as_the_original(
    bench: Bench, sizes: Any, how: Accumulation, op: str, constants: str, dtype: Any, seed: int
) -> None:
    (m, max_m), (k, max_k), (n, max_n) = sizes
    case = bench.case(
        op=op, m=m, k=k, n=n, bias=(n,) if op == "Gemm" else None, constants=constants, dtype=dtype, seed=seed
    )
    tiled = bench.judge(case, Limits(max_m, max_k, max_n), TilingPolicy(how))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()
    for site in tiled.result.tiled:
        assert most_nodes(site.contraction, site.grid, how) == len(site.emitted)


def alive(tiled: Tiled) -> int:
    """Return how many partial sums there are at most before the next one is made."""
    nodes = [n for n in tiled.nodes if "/tile_" in (n.name or "") or "/sum" in (n.name or "")]
    partial: set[ir.Value] = set()
    most = 0
    for node in nodes:
        partial |= {node.outputs[0]}
        most = max(most, len(partial))
        partial -= {value for value in node.inputs if value is not None}
    return most


@pytest.mark.parametrize(("how", "most"), [("sum", 17), ("chain", 3), ("tree", 6), ("gemm", 2)])
def test_few_partial_sums_are_alive(bench: Bench, how: str, most: int) -> None:
    case = bench.case(op="MatMul", m=4, k=64, n=4, constants="b")
    tiled = bench.judge(case, Limits.of(max=4), TilingPolicy(accumulate=how))
    assert tiled.result.matmuls == 16
    assert alive(tiled) == most, "the last one made beside those that it is made of"


def test_gemm_adds_what_the_product_before_made(bench: Bench) -> None:
    tiled = bench.judge(
        bench.case(m=3, k=12, n=4, bias=(4,), constants="bc"), Limits.of(max=4), TilingPolicy(accumulate="gemm")
    )
    assert [node.op_type for node in tiled.nodes] == ["Slice", "MatMul", "Slice", "Gemm", "Slice", "Gemm", "Add"]
    first, second, third = (node for node in tiled.nodes if node.op_type in {"MatMul", "Gemm"})
    assert second.inputs[2] is first.outputs[0] and third.inputs[2] is second.outputs[0]


def test_a_tree_is_as_deep_as_it_must_be(bench: Bench) -> None:
    tiled = bench.judge(bench.case(op="MatMul", m=1, k=21, n=2), Limits(k=4), TilingPolicy(accumulate="tree"))
    names = [node.name.split("/")[1] for node in tiled.nodes if node.op_type == "Add" and node.name]
    assert names == [f"sum_level{level}_m0_n0_k{k}" for level, k in ((1, 1), (1, 3), (2, 3), (1, 5), (3, 5))]


@pytest.mark.parametrize(("k", "widths"), [(256, [256]), (257, [256, 2]), (512, [256, 257]), (600, [256, 256, 90])])
def test_very_many_are_summed_up_as_they_come(bench: Bench, k: int, widths: list[int]) -> None:
    """One Sum of thousands would round further off than the original does."""
    tiled = bench.judge(
        bench.case(op="MatMul", m=1, k=k, n=2, constants="b"), Limits(k=1), TilingPolicy(Accumulation.SUM)
    )
    assert [len(node.inputs) for node in tiled.nodes if node.op_type == "Sum"] == widths
    (site,) = tiled.result.tiled
    assert most_nodes(site.contraction, site.grid, Accumulation.SUM) == len(site.emitted)


def test_a_chain_of_very_many_is_one_of_chains(bench: Bench) -> None:
    tiled = bench.judge(bench.case(op="MatMul", m=1, k=600, n=2, constants="b"), Limits(k=1))
    assert tiled.count("Add") == 599 and alive(tiled) <= 4
    depth: dict[ir.Value | None, int] = {}
    for node in tiled.nodes:
        depth[node.outputs[0]] = max(depth.get(value, 0) for value in node.inputs) + (node.op_type == "Add")
    assert max(depth.values()) <= 256 + 2


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_and_batches_are_added_in_a_chain(bench: Bench, dtype: Any) -> None:
    case = bench.case(op="MatMul", m=3, k=9, n=4, dtype=dtype)
    for how in ("sum", "gemm"):
        tiled = bench.judge(case, Limits.of(max=4), TilingPolicy(accumulate=how))
        assert (tiled.count("Add"), tiled.count("Sum"), tiled.count("Gemm")) == (2, 0, 0)


def test_a_way_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^invalid --accumulate 'pairs' \(choose sum, chain, tree, gemm\)$"):
        TilingPolicy(accumulate="pairs")


# A result is joined without a copy of it: by Concat where its parts lie one after another, else by ScatterND into
# one tensor.


VIEWS = {"Reshape", "ScatterND", "Split"}
"""Operators whose results lie in the memory of their first operand."""


def layer(
    op: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], opset: int = 17, **more: Any
) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal(w).astype(np.float32)
    return build.model(
        [helper.make_node(op, ["x", "w"], ["y"], name="layer", **more)],
        {"x": x},
        {"y": y},
        {"w": weight},
        opset=opset,
        ir_version=8,
    )


def bytes_alive(tiled: Tiled) -> int:
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
    expected = exact_session(source.SerializeToString(), source).run(feeds)["y"]
    np.testing.assert_allclose(tiled.run(feeds)["y"], expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
    (site,) = tiled.result.tiled
    assert len(site.emitted) == bench.most_nodes(site)
    return tiled


def test_a_product_takes_its_result_and_one_tile(bench: Bench) -> None:
    tiled = require_same(bench, layer("MatMul", (8, 128), (128, 64), (8, 64)), Limits.of(max=8))
    block = 8 * 8 * 4
    # The block of the left operand, the sum, the product; the rows of a block have numbers of 8 bytes.
    assert bytes_alive(tiled) <= 8 * 64 * 4 + 3 * block + 8 * 8
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
    expected = exact_session(source.SerializeToString(), source).run(feeds)["y"]
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
    expected = exact_session(source.SerializeToString(), source).run(feeds)["y"]
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
    expected = exact_session(source.SerializeToString(), source).run(feeds)["y"]
    np.testing.assert_allclose(
        exact_session(to_bytes(tiled.model), tiled.model).run(feeds)["y"], expected, rtol=1e-5, atol=1e-5
    )


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


# What lives at once, for each way to add partial sums.


def test_the_ways_differ_in_what_they_keep(bench: Bench) -> None:
    # A 16 × 16 result of 64 products: what lives is the operands (no bytes of the arena) and the partial sums of 1 KiB each.
    model = bench.case(op="MatMul", m=16, k=256, n=16, constants="ab").model()
    model.graph.node[0].input[0] = "x"
    model.graph.input.add().CopyFrom(model.graph.output[0])
    model.graph.input[0].name = "x"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 256
    del model.graph.initializer[0]
    found = api.tile(model, Limits.of(k=4), accumulate="compare", verify=False).peaks
    assert found is not None and list(found) == ["sum", "chain", "tree", "gemm"]
    block, partial = 16 * 4 * 4, 16 * 16 * 4
    # All 64 partial sums live together before one Sum; a chain has two, Gemm adds the one before in its place.
    assert found["sum"]["layers"] > 64 * partial
    # Of the left operand one block is copied at a time.
    assert block <= found["gemm"]["layers"] <= found["chain"]["layers"] <= block + 3 * partial
    assert found["chain"]["layers"] <= found["tree"]["layers"] <= block + 8 * partial
    assert all(peak["model"] >= peak["layers"] for peak in found.values())


def _as_command(model: onnx.ModelProto, most: int, *, verify: bool = True) -> TiledModel:
    return api.tile.from_options(TileCommand(model, max=most, verify=verify))


def test_they_are_shown_unasked_where_that_is_quick(bench: Bench) -> None:
    model = bench.case(op="MatMul", m=5, k=8, n=8, constants="b").model()
    assert _as_command(model, 4).peaks
    assert _as_command(model, 4, verify=False).peaks is None
    assert api.tile(model, Limits.of(max=4)).peaks is None
    assert api.tile(model, Limits.of(max=8), accumulate="compare").peaks is None, "nothing is tiled"


def test_a_model_without_a_plan_is_tiled_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise Infeasible("no plan")

    monkeypatch.setattr("onnxtile.planning.model_plan.plan_model", fails)
    model = bench.case(op="MatMul", m=5, k=8, n=8, constants="b").model()
    assert _as_command(model, 4).peaks is None
    with pytest.raises(Infeasible, match="no plan"):
        api.tile(model, Limits.of(max=4), accumulate="compare")
