"""MatMulInteger: tiles that add up to the last bit, with the zero points that belong to each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.limits import Limits

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench

FOUR = Limits.of(max=4)
NAMES = {"a": "a", "b": "b", "y": "a_zero", "z": "b_zero"}


def matmul_integer(arrays: dict[str, Array], constants: str = "", opset: int = 17) -> onnx.ModelProto:
    """Return the model; `constants` names by letter: a, b, y for the zero point of A, z for that of B."""
    fixed = {NAMES[letter] for letter in constants}
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in arrays.items()}
    inputs = ["a", "b", "a_zero" if "a_zero" in arrays else "", "b_zero" if "b_zero" in arrays else ""]
    while not inputs[-1]:
        inputs.pop()
    rank = max(arrays["a"].ndim, arrays["b"].ndim)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", inputs, ["out"], name="fc")],
        "case",
        [helper.make_tensor_value_info(n, types[n], x.shape) for n, x in arrays.items() if n not in fixed],
        [helper.make_tensor_value_info("out", onnx.TensorProto.INT32, [f"y{axis}" for axis in range(rank)])],
        [numpy_helper.from_array(x, n) for n, x in arrays.items() if n in fixed],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


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


INTEGER_PRODUCTS = given(
    sizes=st.tuples(st.integers(1, 11), st.integers(1, 11), st.integers(1, 11)),
    limits=st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)),
    batch=st.sampled_from([(), (), (2,), (2, 3)]),
    zeros=st.tuples(st.sampled_from([None, (), (1,)]), st.sampled_from([None, (), (1,), "n"])),
    types=st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]),
    constants=st.sampled_from(["", "b", "bz", "abyz", "y", "z"]),
    opset=st.sampled_from([10, 13, 21]),
)


def require_integer_product(
    bench: Bench, sizes: Any, limits: Any, batch: Any, zeros: Any, types: Any, constants: str, opset: int
) -> None:
    arrays = operands(sizes, batch, (zeros[0], (sizes[2],) if zeros[1] == "n" else zeros[1]), types)
    source = matmul_integer(arrays, "".join(c for c in constants if NAMES[c] in arrays), opset)
    tiled = bench.tile(source, Limits(*limits))
    feeds = {name: array for name, array in arrays.items() if name in {info.name for info in source.graph.input}}
    np.testing.assert_array_equal(tiled.run(feeds)["out"], expected(arrays), strict=True)
    np.testing.assert_array_equal(Session(source.SerializeToString()).run(feeds)["out"], expected(arrays), strict=True)
    assert all(verdict.passed and not verdict.error for verdict in tiled.verdicts())


test_it_is_equal_to_the_last_bit = settings(max_examples=60, deadline=None)(INTEGER_PRODUCTS(require_integer_product))
test_a_thousand_integer_products = pytest.mark.slow(
    settings(max_examples=1000, deadline=None)(INTEGER_PRODUCTS(require_integer_product))
)


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
