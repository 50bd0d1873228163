"""MatMul of every rank: batches that broadcast, vectors, symbolic sizes; through onnxruntime against numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxtile.model.load import load
from onnxtile.operators.node_view import NotApplicable
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import broadcast
from onnxtile.tiling.limits import Limits

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

FOUR = Limits.of(max=4)
Shape = tuple[int, ...]


def arrays(shapes: tuple[Shape, Shape], dtype: Any = np.float32, seed: int = 0) -> tuple[Array, Array]:
    """Return operands of these shapes."""
    random = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        a, b = (random.integers(0, 100, shape).astype(dtype) for shape in shapes)
    else:
        a, b = (np.asarray(random.standard_normal(shape)).astype(dtype) for shape in shapes)
    return a, b


def matmul(
    operands: tuple[Array, Array],
    constants: str = "",
    opset: int = 17,
    declared: dict[str, tuple[int | str | None, ...]] | None = None,
) -> onnx.ModelProto:
    """Return the model of one MatMul; `declared` gives inputs other dimensions than those of their arrays."""
    named = dict(zip("ab", operands, strict=True))
    element = helper.np_dtype_to_tensor_dtype(operands[0].dtype)
    shapes = {name: (declared or {}).get(name, array.shape) for name, array in named.items()}
    rank = np.matmul(*operands).ndim
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"], name="fc")],
        "case",
        [helper.make_tensor_value_info(name, element, shapes[name]) for name in named if name not in constants],
        [helper.make_tensor_value_info("y", element, [f"y{axis}" for axis in range(rank)])],
        [numpy_helper.from_array(array, name) for name, array in named.items() if name in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def require_product(tiled: Tiled, operands: tuple[Array, Array], constants: str = "") -> None:
    """Assert that the tiled model computes the product of `operands`, and that its nodes are judged so."""
    a, b = operands
    got = tiled.run({name: x for name, x in zip("ab", operands, strict=True) if name not in constants})["y"]
    if np.issubdtype(a.dtype, np.integer):
        np.testing.assert_array_equal(got, np.matmul(a, b), strict=True)
    else:
        expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
        assert got.dtype == a.dtype and got.shape == expected.shape
        # An error grows with the partial sums, not with what is left of them.
        scale = np.sqrt(a.shape[-1]) + np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=8 * float(np.finfo(a.dtype).eps) * scale)
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int]:
    """A size and its bound, ragged ones first."""
    bound = draw(st.integers(1, 8))
    left_over = draw(st.integers(0, bound - 1).map(lambda r: (r + 1) % bound))
    return max(1, draw(st.integers(0, 2)) * bound + left_over), bound


@st.composite
def batches(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """The leading dimensions of both operands, up to two each, that broadcast."""
    full = draw(st.lists(st.integers(1, 3), max_size=2))
    sides = [draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full))) for _ in range(2)]
    first, second = (tuple(1 if one else d for d, one in zip(full, side, strict=True)) for side in sides)
    return first[draw(st.integers(0, len(first))) :], second[draw(st.integers(0, len(second))) :]


@settings(max_examples=400, deadline=None)
@given(
    sizes=st.tuples(axes(), axes(), axes()),
    batch=batches(),
    vectors=st.sampled_from(["", "", "", "a", "b", "ab"]),
    constants=st.sampled_from(["", "a", "b", "ab"]),
    opset=st.sampled_from([9, 12, 13, 21]),
    dtype=st.sampled_from([np.float32, np.float32, np.float64, np.float16, np.int32, np.int64, np.uint32]),
    seed=st.integers(0, 1000),
)
@example(((9, 4), (9, 4), (9, 4)), ((2, 1), (1, 3)), "", "ab", 17, np.float32, 0)
@example(((9, 4), (9, 4), (9, 4)), ((), (2, 3)), "a", "", 17, np.float32, 0)
@example(((9, 4), (9, 4), (9, 4)), ((2, 3), ()), "b", "b", 12, np.float32, 0)
def test_every_rank(
    bench: Bench, sizes: Any, batch: Any, vectors: str, constants: str, opset: int, dtype: Any, seed: int
) -> None:
    (m, max_m), (k, max_k), (n, max_n) = sizes
    shape_a: Shape = (k,) if "a" in vectors else (*batch[0], m, k)
    shape_b: Shape = (k,) if "b" in vectors else (*batch[1], k, n)
    operands = arrays((shape_a, shape_b), dtype, seed)
    limits = Limits(max_m, max_k, max_n)
    tiled = bench.tile(matmul(operands, constants, opset), limits)
    m, n = (1 if "a" in vectors else m), (1 if "b" in vectors else n)
    wanted = -(-m // max_m) * -(-k // max_k) * -(-n // max_n)
    assert tiled.result.matmuls == (wanted if wanted > 1 else 0), "each tile serves the whole batch"
    require_product(tiled, operands, constants)


@pytest.mark.parametrize("opset", range(7, 26))
def test_every_opset(bench: Bench, opset: int) -> None:
    operands = arrays(((2, 7, 11), (3, 1, 11, 9)))
    tiled = bench.tile(matmul(operands, opset=opset), FOUR)
    assert tiled.result.matmuls == 2 * 3 * 3
    require_product(tiled, operands)


@pytest.mark.parametrize("constants", ["a", "b", "ab"])
def test_a_constant_of_any_rank_is_cut_into_views(bench: Bench, constants: str) -> None:
    operands = arrays(((2, 3, 7, 11), (3, 11, 9)))
    tiled = bench.tile(matmul(operands, constants), FOUR)
    require_product(tiled, operands, constants)
    named = dict(zip("ab", operands, strict=True))
    for name in constants:
        found = {v for key, v in tiled.model.graph.initializers.items() if key.startswith(f"fc/{name}_")}
        blocks = [v.const_value for v in found if v.const_value and v.const_value.dtype == ir.DataType.FLOAT]
        assert len(blocks) == (2 * 3 if name == "a" else 3 * 3)
        assert sum(block.size for block in blocks) == named[name].size
        assert all(block.shape.numpy()[:-2] == named[name].shape[:-2] for block in blocks)
        base = blocks[0].numpy().base
        assert base is not None and all(block.numpy().base is base for block in blocks)
    assert set(constants).isdisjoint(tiled.model.graph.initializers)


def test_only_the_last_two_axes_are_cut(bench: Bench) -> None:
    tiled = bench.tile(matmul(arrays(((2, 3, 7, 11), (3, 11, 9)))), FOUR)
    cuts = [node for node in tiled.nodes if node.op_type == "Slice"]
    # The grid is 2 × 3 × 3, and the block at a turn of the loops stays.
    assert len(cuts) == 2 * (3 * 3 - 2) + (2 * 3 * 3 - 1)
    for node in cuts:
        axes = node.inputs[3]
        assert axes is not None and axes.const_value is not None
        full = {"a": 4, "b": 3}[(node.name or "").removeprefix("fc/")[0]]
        assert list(axes.const_value.numpy()) == [full - 2, full - 1]


SYMBOLIC: dict[str, tuple[Limits, dict[str, tuple[int | str | None, ...]], tuple[Shape, Shape], str]] = {
    "batch": (FOUR, {"a": ("batch", 7, 11)}, ((2, 7, 11), (11, 9)), "b"),
    "both batches": (
        FOUR,
        {"a": ("batch", 3, 7, 11), "b": ("batch", 3, 11, 9)},
        ((2, 3, 7, 11), (2, 3, 11, 9)),
        "",
    ),
    "a batch that meets a number": (FOUR, {"a": ("heads", 7, 11)}, ((3, 7, 11), (3, 11, 9)), "b"),
    "batches of different symbols": (FOUR, {"a": ("p", 7, 11), "b": ("q", 11, 9)}, ((1, 7, 11), (2, 11, 9)), ""),
    "several numbers": (FOUR, {"a": ("p", "p", 7, 11)}, ((1, 1, 7, 11), (2, 3, 11, 9)), "b"),
    "an unknown batch": (FOUR, {"a": (None, 7, 11)}, ((2, 7, 11), (11, 9)), "b"),
    "rows": (Limits(k=4, n=4), {"a": ("batch", "seq", 11)}, ((2, 7, 11), (11, 9)), "b"),
    "rows of a matrix": (Limits(k=4, n=4), {"a": ("seq", 11)}, ((7, 11), (11, 9)), "b"),
    "columns": (Limits(m=4, k=4), {"a": ("b", 7, 11), "b": ("b", 11, "seq")}, ((2, 7, 11), (2, 11, 9)), ""),
    "the sum": (Limits(m=4, n=4), {"a": (2, 7, "deep"), "b": ("deep", 9)}, ((2, 7, 11), (11, 9)), ""),
    "a sum that one operand knows": (FOUR, {"a": (2, 7, None)}, ((2, 7, 11), (11, 9)), "b"),
    "all but columns": (Limits(n=4), {"a": ("b", "seq", "deep"), "b": ("deep", 9)}, ((2, 7, 11), (11, 9)), ""),
    "batch of a vector product": (FOUR, {"a": ("batch", 7, 11)}, ((2, 7, 11), (11,)), "b"),
}


@pytest.mark.parametrize("case", SYMBOLIC)
def test_what_needs_no_cut_stays_symbolic(bench: Bench, case: str) -> None:
    limits, declared, shapes, constants = SYMBOLIC[case]
    operands = arrays(shapes)
    tiled = bench.tile(matmul(operands, constants, declared=declared), limits)
    assert tiled.result.tiled, tiled.result.skipped
    require_product(tiled, operands, constants)
    assert [tuple(v.shape or ()) for v in tiled.model.graph.inputs] == [
        tuple(v.shape or ()) for v in load(matmul(operands, constants, declared=declared)).graph.inputs
    ]


def test_symbols_stand_in_the_shapes_of_what_is_written(bench: Bench) -> None:
    operands = arrays(((2, 7, 11), (11, 9)))
    tiled = bench.tile(matmul(operands, "b", declared={"a": ("batch", 7, 11)}), FOUR)
    tile = next(node for node in tiled.nodes if node.op_type == "MatMul")
    assert [str(v.shape) for v in (*tile.inputs, *tile.outputs) if v] == ["[batch,4,4]", "[4,4]", "[batch,4,4]"]
    inner = [value for node in tiled.nodes[:-1] for value in node.outputs]
    assert all(value.shape is not None and value.shape[0] == "batch" for value in inner)


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        ((), (), ()),
        ((2, 1), (3,), (2, 3)),
        (("b", 4), ("b", 1), ("b", 4)),
        (("b",), (4,), (4,)),
        ((1,), ("b",), ("b",)),
        (("b",), ("c",), (None,)),
        ((None, 2), (5, 1, 1), (5, None, 2)),
    ],
)
def test_batches_broadcast_as_in_numpy(first: Any, second: Any, result: Any) -> None:
    assert broadcast(first, second) == broadcast(second, first) == result


def test_batches_that_contradict_each_other_are_said_to() -> None:
    with pytest.raises(NotApplicable, match="its batches 2×3 and seq×4 do not broadcast"):
        broadcast((2, 3), ("seq", 4))


@pytest.mark.parametrize("constants", ["", "b"])
def test_a_wrong_tiling_of_a_batch_is_noticed(bench: Bench, constants: str) -> None:
    operands = arrays(((2, 8, 12), (2, 12, 8)))
    declared: dict[str, tuple[int | str | None, ...]] = {"a": ("batch", 8, 12)}
    tiled = bench.tile(matmul(operands, constants, declared=declared), FOUR)
    assert tiled.verdicts()[0].passed
    tiles = [node for node in tiled.nodes if node.op_type == "MatMul"]
    tiles[4].replace_input_with(1, tiles[3].inputs[1])
    (verdict,) = tiled.verdicts()
    assert not verdict.passed and verdict.error > verdict.tolerance


def test_one_wrong_weight_in_one_matrix_of_a_batch_is_noticed(bench: Bench) -> None:
    tiled = bench.tile(matmul(arrays(((2, 8, 12), (2, 12, 8))), "b"), FOUR)
    block = tiled.model.graph.initializers["fc/b_k1_n1"]
    assert block.const_value is not None
    array = block.const_value.numpy().copy()
    array[1, 2, 3] *= 1.001
    block.const_value = ir.tensor(array)
    assert not tiled.verdicts()[0].passed


def test_a_value_times_itself(bench: Bench) -> None:
    source = matmul(arrays(((2, 9, 9), (2, 9, 9))), declared={"a": ("batch", 9, 9)})
    source.graph.node[0].input[1] = "a"
    del source.graph.input[1]
    tiled = bench.tile(source, FOUR)
    x = arrays(((2, 9, 9), (2, 9, 9)))[0]
    np.testing.assert_allclose(tiled.run({"a": x})["y"], x.astype(np.float64) @ x, atol=1e-4)
    assert tiled.verdicts()[0].passed
