"""Tiled products of every rank and type against numpy, through onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import helper, parser

from onnxtile import api
from onnxtile.model.exact_products import exact_session
from onnxtile.model.load import load
from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.table import operators
from onnxtile.system.registry import discover
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import Contraction, Tileable, TilingFacts, broadcast, matrix_product, required_input
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.operators import gemm_factor as factor
from tests import build
from tests.draws import draws
from tests.tiling.conftest import Bench, Tiled

# Tiled products against numpy, through onnxruntime.


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int]:
    """A size and its bound, ragged ones first: a whole number of tiles is what shrinking comes to last."""
    bound = draw(st.integers(1, 8))
    left_over = draw(st.integers(0, bound - 1).map(lambda r: (r + 1) % bound))
    full = draw(st.integers(0, 3))
    return max(1, full * bound + left_over), bound


BIASES: list[Any] = [None, (), (1,), ("n",), (1, "n"), ("m", 1), ("m", "n"), (1, 1)]
FACTORS = st.sampled_from([1.0, 0.5, -1.25, 0.1, 3.0])


@draws(25, slow=1000)
@given(
    sizes=st.tuples(axes(), axes(), axes()),
    trans=st.tuples(st.booleans(), st.booleans()),
    factors=st.tuples(FACTORS, st.one_of(FACTORS, st.just(0.0))),
    bias=st.sampled_from(BIASES),
    constants=st.sets(st.sampled_from("abc")),
    opset=st.sampled_from([7, 9, 11, 13, 18, 21]),
    seed=st.integers(0, 1000),
)
def test_gemm(
    bench: Bench, sizes: Any, trans: Any, factors: Any, bias: Any, constants: set[str], opset: int, seed: int
) -> None:
    (m, max_m), (k, max_k), (n, max_n) = sizes
    if bias is None and opset < 11:
        bias = ("n",)
    shape = None if bias is None else tuple({"m": m, "n": n}.get(size, size) for size in bias)
    case = bench.case(
        m=m, k=k, n=n, trans_a=trans[0], trans_b=trans[1], alpha=factors[0], beta=factors[1], bias=shape,
        constants="".join(sorted(constants)), opset=opset, seed=seed,
    )  # fmt: skip
    tiled = bench.judge(case, Limits(max_m, max_k, max_n))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()


@draws(15, slow=1000)
@given(
    sizes=st.tuples(axes(), axes(), axes()),
    constants=st.sets(st.sampled_from("ab")),
    opset=st.sampled_from([7, 12, 13, 21]),
    dtype=st.sampled_from([np.float32, np.float64, np.float16, np.int32, np.int64, np.uint32, np.uint64]),
    seed=st.integers(0, 1000),
)
def test_matmul(bench: Bench, sizes: Any, constants: set[str], opset: int, dtype: Any, seed: int) -> None:
    (m, max_m), (k, max_k), (n, max_n) = sizes
    if np.issubdtype(dtype, np.integer):
        opset = max(opset, 9)
    case = bench.case(
        op="MatMul", m=m, k=k, n=n, constants="".join(sorted(constants)), opset=opset, dtype=dtype, seed=seed
    )
    tiled = bench.judge(case, Limits(max_m, max_k, max_n))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()


@pytest.mark.parametrize("bias", BIASES, ids=str)
@pytest.mark.parametrize(("constants", "dtype"), [("", np.float32), ("c", np.float64), ("abc", np.float16)])
def test_every_bias_shape(bench: Bench, bias: Any, constants: str, dtype: Any) -> None:
    shape = None if bias is None else tuple({"m": 7, "n": 9}.get(size, size) for size in bias)
    case = bench.case(m=7, k=11, n=9, bias=shape, constants=constants, alpha=0.3, beta=-2.5, trans_b=True, dtype=dtype)
    tiled = bench.judge(case, Limits.of(max=4))
    assert tiled.result.matmuls == 2 * 3 * 3
    assert tiled.verdicts()[0].passed, tiled.verdicts()


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 18, 25])
@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
def test_every_opset(bench: Bench, op: str, opset: int) -> None:
    case = bench.case(op=op, m=7, k=11, n=9, bias=(9,) if op == "Gemm" else None, trans_a=op == "Gemm", opset=opset)
    tiled = bench.judge(case, Limits.of(max=4))
    splits = [node for node in tiled.nodes if node.op_type == "Split"]
    assert splits
    assert all(("split" in node.attributes) == (opset < 13) for node in splits)
    assert all(len(node.inputs) == (1 if opset < 13 else 2) for node in splits)


@pytest.mark.parametrize("trans", [(False, False), (True, False), (False, True), (True, True)])
def test_only_a_computed_operand_is_transposed_when_the_model_runs(bench: Bench, trans: tuple[bool, bool]) -> None:
    case = bench.case(m=7, k=11, n=9, trans_a=trans[0], trans_b=trans[1], constants="b")
    tiled = bench.judge(case, Limits.of(max=4))
    (site,) = tiled.result.tiled
    # One block is copied at a time, and again for each column; the block at a turn of the loops stays.
    copies = 2 * 3 * 3 - 2 * (3 - 1)
    assert site.grid.shape == (2, 3, 3) and tiled.count("Transpose") == trans[0] * copies
    assert (tiled.count("Split"), tiled.count("Slice")) == (1, copies)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "result"), [((11,), (11, 9), (9,)), ((7, 11), (11,), (7,)), ((11,), (11,), ())]
)
@pytest.mark.parametrize("constant", [False, True])
def test_vectors(
    bench: Bench, shape_a: tuple[int, ...], shape_b: tuple[int, ...], result: tuple[int, ...], *, constant: bool
) -> None:
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in (shape_a, shape_b))
    inputs = [helper.make_tensor_value_info("a", 1, shape_a)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("b", 1, shape_b))
    initializers = [numpy_helper.from_array(b, "b")] if constant else []
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="fc")
    tiled = bench.tile(build.model([node], inputs, {"y": result}, initializers, ir_version=8), Limits.of(max=4))
    got = tiled.run({"a": a} if constant else {"a": a, "b": b})["y"]
    assert got.shape == result
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), atol=1e-5)
    assert tiled.verdicts()[0].passed


# MatMul of every rank: batches that broadcast, vectors, symbolic sizes; through onnxruntime against numpy.


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
    return build.model(
        [helper.make_node("MatMul", ["a", "b"], ["y"], name="fc")],
        {name: (element, shapes[name]) for name in named if name not in constants},
        {"y": (element, [f"y{axis}" for axis in range(rank)])},
        {name: array for name, array in named.items() if name in constants},
        opset=opset,
        ir_version=8,
    )


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
def batch_axes(draw: st.DrawFn) -> tuple[int, int]:
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


@draws(100, 400)
@given(
    sizes=st.tuples(batch_axes(), batch_axes(), batch_axes()),
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


@pytest.mark.parametrize("opset", [7, 11, 13, 18, 25])
def test_batches_in_every_opset(bench: Bench, opset: int) -> None:
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
        batch_axes = node.inputs[3]
        assert batch_axes is not None and batch_axes.const_value is not None
        full = {"a": 4, "b": 3}[(node.name or "").removeprefix("fc/")[0]]
        assert list(batch_axes.const_value.numpy()) == [full - 2, full - 1]


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


@pytest.mark.parametrize("seed", range(3))
def test_a_product_of_doubles_is_within_the_rounding_of_what_it_is_compared_with(seed: int) -> None:
    """onnxruntime and numpy may add in the same order: the original is exact then, and the tiles are not."""
    weights = np.random.default_rng(seed).standard_normal((96, 80)).astype(np.float32).astype(np.float64)
    proto = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (double[4,96] x) => (double[4,80] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights * 0.3, "w"))
    verdict = api.tile(proto, max=64).verdict
    assert verdict is not None and verdict.equal


def test_a_value_times_itself(bench: Bench) -> None:
    source = matmul(arrays(((2, 9, 9), (2, 9, 9))), declared={"a": ("batch", 9, 9)})
    source.graph.node[0].input[1] = "a"
    del source.graph.input[1]
    tiled = bench.tile(source, FOUR)
    x = arrays(((2, 9, 9), (2, 9, 9)))[0]
    np.testing.assert_allclose(tiled.run({"a": x})["y"], x.astype(np.float64) @ x, atol=1e-4)
    assert tiled.verdicts()[0].passed


# MatMulInteger: tiles that add up to the last bit, with the zero points that belong to each.


NAMES = {"a": "a", "b": "b", "y": "a_zero", "z": "b_zero"}


def matmul_integer(arrays: dict[str, Array], constants: str = "", opset: int = 17) -> onnx.ModelProto:
    """Return the model; `constants` names by letter: a, b, y for the zero point of A, z for that of B."""
    fixed = {NAMES[letter] for letter in constants}
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
    inputs = ["a", "b", "a_zero" if "a_zero" in arrays else "", "b_zero" if "b_zero" in arrays else ""]
    while not inputs[-1]:
        inputs.pop()
    rank = max(arrays["a"].ndim, arrays["b"].ndim)
    return build.model(
        [helper.make_node("MatMulInteger", inputs, ["out"], name="fc")],
        {n: (types[n], x.shape) for n, x in arrays.items() if n not in fixed},
        {"out": (onnx.TensorProto.INT32, [f"y{axis}" for axis in range(rank)])},
        {n: x for n, x in arrays.items() if n in fixed},
        opset=opset,
        ir_version=8,
    )


def operands(
    sizes: tuple[int, int, int], batch: tuple[int, ...], zeros: tuple[Any, Any], types: Any
) -> dict[str, Array]:
    """Return operands; `zeros` are the shapes of the zero points, None where absent."""
    random = np.random.default_rng(0)
    m, k, n = sizes
    shapes = {"a": (*batch, m, k), "b": (k, n), "a_zero": zeros[0], "b_zero": zeros[1]}
    kinds = dict(zip(shapes, (types[0], types[1], types[0], types[1]), strict=True))
    return {
        name: np.asarray(random.integers(np.iinfo(kinds[name]).min, np.iinfo(kinds[name]).max + 1, shape)).astype(
            kinds[name]
        )
        for name, shape in shapes.items()
        if shape is not None
    }


def expected(arrays: dict[str, Array]) -> Array:
    """Return the product in int32."""
    wide = {name: array.astype(np.int32) for name, array in arrays.items()}
    result: Array = np.matmul(wide["a"] - wide.get("a_zero", 0), wide["b"] - wide.get("b_zero", 0))
    return result


@draws(15, slow=1000)
@given(
    sizes=st.tuples(st.integers(1, 11), st.integers(1, 11), st.integers(1, 11)),
    limits=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)),
    batch=st.sampled_from([(), (), (2,), (2, 3)]),
    zeros=st.tuples(st.sampled_from([None, (), (1,)]), st.sampled_from([None, (), (1,), "n"])),
    types=st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]),
    constants=st.sampled_from(["", "b", "bz", "abyz", "y", "z"]),
    opset=st.sampled_from([10, 13, 21]),
)
def test_it_is_equal_to_the_last_bit(
    bench: Bench, sizes: Any, limits: Any, batch: Any, zeros: Any, types: Any, constants: str, opset: int
) -> None:
    arrays = operands(sizes, batch, (zeros[0], (sizes[2],) if zeros[1] == "n" else zeros[1]), types)
    source = matmul_integer(arrays, "".join(c for c in constants if NAMES[c] in arrays), opset)
    tiled = bench.tile(source, Limits(*limits))
    feeds = {name: array for name, array in arrays.items() if name in {info.name for info in source.graph.input}}
    np.testing.assert_array_equal(tiled.run(feeds)["out"], expected(arrays), strict=True)
    result = exact_session(source.SerializeToString(), source).run(feeds)["out"]
    np.testing.assert_array_equal(result, expected(arrays), strict=True)
    assert all(verdict.passed and not verdict.error for verdict in tiled.verdicts())


def test_each_tile_gets_the_zero_points_of_its_columns(bench: Bench) -> None:
    arrays = operands((3, 9, 10), (), ((), (10,)), (np.uint8, np.int8))
    tiled = bench.tile(matmul_integer(arrays, "bz"), FOUR)
    tiles = [node for node in tiled.nodes if node.op_type == "MatMulInteger"]
    assert len(tiles) == 3 * 3 == tiled.result.matmuls
    zeros = [node.inputs[3] for node in tiles]
    assert [value.name for value in zeros if value][::3] == ["fc/b_zero_k0_n0", "fc/b_zero_k0_n1", "fc/b_zero_k0_n2"]
    assert all(node.inputs[2] is not None and node.inputs[2].name == "a_zero" for node in tiles)
    assert {"b", "b_zero"}.isdisjoint(tiled.model.graph.initializers)
    sums = [node for node in tiled.nodes if node.op_type == "Add" and "/sum" in (node.name or "")]
    assert len(sums) == 3 * 2 and tiled.count("Sum") == 0


def test_a_wrong_zero_point_is_noticed(bench: Bench) -> None:
    tiled = bench.tile(matmul_integer(operands((3, 9, 10), (), ((), (10,)), (np.uint8, np.int8)), "bz"), FOUR)
    assert tiled.verdicts()[0].passed
    block = tiled.model.graph.initializers["fc/b_zero_k0_n1"]
    assert block.const_value is not None
    block.const_value = ir.tensor(block.const_value.numpy() ^ np.int8(1))
    assert not tiled.verdicts()[0].passed


@pytest.mark.parametrize(
    ("zeros", "reason"), [(((3,), None), "3 is not a single"), ((None, (1, 10)), "1×10 is not a single")]
)
def test_other_zero_points_are_skipped_with_the_reason(bench: Bench, zeros: Any, reason: str) -> None:
    (skip,) = bench.tile(matmul_integer(operands((3, 9, 10), (), zeros, (np.uint8, np.int8))), FOUR).result.skipped
    assert reason in skip.reason


@pytest.mark.parametrize(
    ("zeros", "constants", "what"),
    [((None, None), "b", "a"), (((), None), "by", "a"), ((None, None), "a", "b"), ((None, (10,)), "ab", "b_zero")],
)
def test_before_opset_11_only_floats_are_filled_up(bench: Bench, zeros: Any, constants: str, what: str) -> None:
    arrays = operands((3, 9, 10), (), zeros, (np.uint8, np.int8))
    limits = Limits(4, 4, 4, pad=True)
    (skip,) = bench.tile(matmul_integer(arrays, constants, opset=10), limits).result.skipped
    assert skip.reason == f"opset 10 cannot fill up {what!r}, which is not a float: raise the model to 11"
    tiled = bench.tile(matmul_integer(arrays, constants, opset=11), limits)
    assert tiled.result.tiled and all(verdict.passed for verdict in tiled.verdicts())


# A further operator is one class: choice, limits, writing and checking need no change.


class FusedMatMul(Tileable):
    """A matrix product with alpha and transpositions, of com.microsoft."""

    name = "FusedMatMul"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        a, b = (factor(node, required_input(node, side), side, facts) for side in (0, 1))
        alpha = node.attributes.get_float("alpha", 1.0)
        return matrix_product(a, b, (a.size(0), b.size(1)), (0, 1), a.dtype, alpha=alpha)


@pytest.mark.parametrize("limits", [Limits.of(max=4), Limits(memory=200)])
def test_an_operator_more_is_one_class(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    shipped = discover("onnxtile.tiling.operators", Tileable)  # type: ignore[type-abstract]
    monkeypatch.setattr("onnxtile.tiling.tile.discover", lambda *_: {**shipped, "FusedMatMul": FusedMatMul()})
    name = "com.microsoft::FusedMatMul"
    monkeypatch.setitem(operators(), name, replace(operators()[name], contraction=None))
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[9,7] x, float[5,7] w) => (float[9,5] y)
        { y = com.microsoft.FusedMatMul<alpha = 0.3, transB = 1>(x, w) }"""
    )
    tiled = api.tile(model, limits)
    (site,) = tiled.result.tiled
    assert site.op == "FusedMatMul" and site.grid.matmuls > 1
    assert tiled.verdict is not None and tiled.verdict.equal and all(verdict.passed for verdict in tiled.sites)
