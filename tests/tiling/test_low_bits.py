"""Weights and products of few bits: blocks with scales of their own, and 16 bits as hardware keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.model.exact_products import exact_session
from onnxtile.system.errors import Mismatch, UsageError
from onnxtile.system.runtime import Array
from onnxtile.tiling.limits import Accumulation, Limits, TilingPolicy, WindowBounds
from tests import build
from tests.draws import draws
from tests.tiling.conftest import Bench, Case

# Weights of few bits with a scale for each block of K: MatMulNBits, and MatMul by a DequantizeLinear with
# block_size.


if TYPE_CHECKING:
    pass

K, N, BLOCK = 96, 10, 16


def nbits(
    *, bits: int = 4, zeros: str = "packed", flat: bool = True, bias: bool = False, k: int = K, batch: tuple[int, ...] = (5,),
    **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Return a MatMulNBits."""
    random = np.random.default_rng(0)
    blocks = -(-k // BLOCK)
    held: dict[str, Array] = {
        "b": random.integers(0, 256, (N, blocks, BLOCK * bits // 8)).astype(np.uint8),
        "scales": random.uniform(0.01, 0.1, N * blocks if flat else (N, blocks)).astype(np.float32),
    }
    inputs = ["a", "b", "scales"]
    if zeros == "packed":
        held["zeros"] = random.integers(0, 256, N * -(-blocks * bits // 8)).astype(np.uint8)
        if not flat:
            held["zeros"] = held["zeros"].reshape(N, -1)
    inputs.append("zeros" if zeros == "packed" else "")
    if bias:
        held["bias"] = random.standard_normal(N).astype(np.float32)
        inputs += ["", "bias"]
    node = helper.make_node(
        "MatMulNBits", inputs, ["y"], name="fc", domain="com.microsoft", K=k, N=N, bits=bits, block_size=BLOCK, **attributes
    )  # fmt: skip
    return build.model([node], {"a": [*batch, k]}, {"y": [*batch, N]}, held, com_microsoft=1, ir_version=8)


def blocked(*, axis: int = 0, zeros: bool = True, dtype: int = TensorProto.INT4, op: str = "MatMul") -> onnx.ModelProto:
    """Return a product by weights that a DequantizeLinear makes block by block; transposed for Gemm."""
    random = np.random.default_rng(1)
    shape = (K, 2 * BLOCK) if op == "MatMul" else (2 * BLOCK, K)
    parameters = tuple(size // BLOCK if along == axis else size for along, size in enumerate(shape))
    low, high = (-8, 8) if dtype == TensorProto.INT4 else (-128, 128)
    kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    held = [
        numpy_helper.from_array(random.integers(low, high, shape).astype(np.int8).astype(kind), "b"),
        numpy_helper.from_array(random.uniform(0.01, 0.1, parameters).astype(np.float32), "scales"),
        numpy_helper.from_array(random.integers(-3, 3, parameters).astype(np.int8).astype(kind), "zeros"),
    ][: 3 if zeros else 2]
    more: dict[str, Any] = {"transB": 1} if op == "Gemm" else {}
    nodes = [
        helper.make_node("DequantizeLinear", [one.name for one in held], ["w"], axis=axis, block_size=BLOCK),
        helper.make_node(op, ["a", "w"], ["y"], name="fc", **more),
    ]
    return build.model(nodes, {"a": (1, (5, K))}, {"y": (1, (5, 2 * BLOCK))}, held, opset=21)


def stored(model: ir.Model) -> int:
    """Return the bytes of the initializers that are not sizes."""
    values = model.graph.initializers.values()
    return sum(v.const_value.nbytes for v in values if v.const_value is not None and v.dtype != ir.DataType.INT64)


def require_same(bench: Bench, source: onnx.ModelProto, limits: Limits, options: TilingPolicy | None = None) -> Any:
    """Tile `source`; assert that it computes the same from weights of the same size."""
    tiled = bench.tile(source, limits, options)
    shape = [dim.dim_value for dim in source.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"a": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    expected = exact_session(source.SerializeToString(), source).run(feeds)["y"]
    np.testing.assert_allclose(tiled.run(feeds)["y"], expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))
    assert all(verdict.passed for verdict in tiled.verdicts())
    assert stored(tiled.model) <= 1.05 * stored(ir.from_proto(source))
    for site in tiled.result.tiled:
        assert len(site.emitted) <= bench.most_nodes(site)
    return tiled


@draws(15, 60)
@given(
    bits=st.sampled_from([4, 8]), zeros=st.sampled_from(["packed", "none"]), flat=st.booleans(), bias=st.booleans(),
    k=st.sampled_from([K, K - 3]), batch=st.sampled_from([(5,), (2, 5)]), bound=st.sampled_from([32, 40, 64]),
)  # fmt: skip
def test_matmul_nbits(
    bench: Bench, bits: int, zeros: str, flat: bool, bias: bool, k: int, batch: Any, bound: int
) -> None:
    source = nbits(bits=bits, zeros=zeros, flat=flat, bias=bias, k=k, batch=batch)
    tiled = require_same(bench, source, Limits.of(m=3, k=bound, n=4))
    (site,) = tiled.result.tiled
    assert site.grid.shape == (2, -(-k // (bound // 32 * 32)), 3) or (bound == 40 and site.grid.shape[1] >= 3)
    assert tiled.count("MatMulNBits") == site.grid.matmuls


@pytest.mark.parametrize(("axis", "zeros", "dtype", "op"), [
    (0, True, TensorProto.INT4, "MatMul"),
    (0, False, TensorProto.INT8, "MatMul"),
    (1, True, TensorProto.INT4, "MatMul"),
    (1, False, TensorProto.INT4, "Gemm"),
    (0, True, TensorProto.INT8, "Gemm"),
])  # fmt: skip
def test_a_matmul_by_quantized_blocks(bench: Bench, axis: int, zeros: bool, dtype: int, op: str) -> None:
    tiled = require_same(bench, blocked(axis=axis, zeros=zeros, dtype=dtype, op=op), Limits.of(m=3, k=40, n=20))
    sizes = {node.attributes["block_size"].as_int() for node in tiled.nodes if node.op_type == "DequantizeLinear"}
    assert sizes == {BLOCK} and tiled.count("DequantizeLinear") > 2


def test_limits_below_a_block(bench: Bench) -> None:
    (skip,) = bench.tile(nbits(), Limits.of(max=8)).result.skipped
    assert skip.over_limits and "multiple of 32" in skip.reason
    tiled = bench.tile(blocked(), Limits.of(max=8))
    assert tiled.result.tiled and not tiled.count("DequantizeLinear")


def test_a_memory_counts_bits(bench: Bench) -> None:
    tiled = require_same(bench, nbits(zeros="none"), Limits.of(memory=1200))
    (site,) = tiled.result.tiled
    m, k, n = site.grid.steps
    assert site.chosen.choice.held == m * k * 4 + k * n * (0.5 + 4 / BLOCK) + m * n * 4 <= 1200


@pytest.mark.parametrize("how", ["gemm", "tree", "chain"])
def test_partial_sums(bench: Bench, how: str) -> None:
    require_same(bench, nbits(), Limits.of(k=32), TilingPolicy(accumulate=how))


def test_it_can_be_wrapped() -> None:
    tiled = api.tile(nbits(bias=True), Limits.of(max=32), wrap=True)
    assert tiled.verdict is not None and tiled.verdict.equal
    assert [node.op_type for node in tiled.model.graph] == ["Tiled_MatMulNBits_fc"]


def test_weights_that_are_inputs_are_left(bench: Bench) -> None:
    source = nbits(zeros="none")
    tensor = source.graph.initializer.pop(0)
    source.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    (skip,) = bench.tile(source, Limits.of(max=32)).result.skipped
    assert skip.reason == "its weights or their parameters, 'b', are not an initializer"


# Products of 16 bits, judged as hardware computes that keeps each tensor in 16 bits.


WAYS = list(Accumulation)


def scaled(case: Case, factor: float) -> onnx.ModelProto:
    """Return the model of a case with a constant B that is `factor` times as large."""
    model, b = case.model(), case.arrays()[1]
    held = numpy_helper.from_array((b.astype(np.float32) * factor).astype(case.dtype), "b")
    model.graph.initializer[0].CopyFrom(held)
    return model


def stored_halves(way: Accumulation, terms: list[Array]) -> Array:
    """Add products as the ways say, each sum stored in float16."""
    half = [term.astype(np.float16) for term in terms]
    with np.errstate(all="ignore"):
        if way is Accumulation.TREE:
            while len(half) > 1:
                half = [half[at] + half[at + 1] if at + 1 < len(half) else half[at] for at in range(0, len(half), 2)]
            return half[0]
        total = half[0]
        for term in half[1:]:
            total = total + term
        once = np.sum([term.astype(np.float64) for term in half], axis=0).astype(np.float16)
        return np.where(np.isfinite(total), once, total) if way is Accumulation.SUM else total


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("factor", [1, 700])
def test_partial_sums_are_what_16_bits_hold(bench: Bench, way: Accumulation, factor: float) -> None:
    case = bench.case(m=4, k=2048, n=16, op="MatMul", constants="b", dtype=np.float16)
    model = scaled(case, factor)
    (site,) = bench.tile(model, Limits.of(k=32), TilingPolicy(way)).result.tiled
    from onnxtile.tiling.site_check import NodeRun

    a = case.arrays()[0]
    b = numpy_helper.to_array(model.graph.initializer[0])
    with np.errstate(over="ignore"):
        terms = [
            (a[:, at : at + 32].astype(np.float64) @ b[at : at + 32].astype(np.float64)).astype(np.float16)
            for at in range(0, 2048, 32)
        ]
    (got,) = NodeRun.of_tiles(site, 17).run([{"a": a}])
    expected = stored_halves(way, terms)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
    assert np.isfinite(expected).all() == (factor == 1)
    there = np.isfinite(expected)
    if way is not Accumulation.GEMM:  # which rounds a product and what it adds at once
        close = np.float64(2.0**-10) * np.abs(expected[there]).astype(np.float64)
        assert (np.abs(got[there].astype(np.float64) - expected[there]) <= 2 * close + 0.25 * factor).all()


@pytest.mark.parametrize("way", WAYS)
def test_what_overflows_on_the_way_fails_and_float32_helps(way: Accumulation) -> None:
    model = scaled(Case(m=4, k=4096, n=16, op="MatMul", constants="b", dtype=np.float16), 700)
    with pytest.raises(Mismatch) as failed:
        api.tile(model, Limits.of(max=64), accumulate=way)
    assert failed.value.hint is not None and "accumulate='float32'" in failed.value.hint
    wide = api.tile(model, Limits.of(max=64), accumulate=(way, "float32"))
    assert all(site.passed for site in wide.sites)
    assert wide.result.to_dict()["tiled"][0]["accumulate_type"] == "float32"


@pytest.mark.parametrize("way", WAYS)
def test_long_sums_of_plain_numbers_pass(way: Accumulation) -> None:
    model = scaled(Case(m=4, k=4096, n=16, op="MatMul", constants="b", dtype=np.float16), 1)
    assert api.tile(model, Limits.of(k=32), accumulate=way).sites[0].passed


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_only_sums_are_wide(bench: Bench, way: Accumulation, dtype: Any) -> None:
    options = TilingPolicy(accumulate=str(way), accumulate_type="float32")
    case = bench.case(m=9, k=30, n=10, bias=(10,), dtype=np.float32)
    element = ir.DataType.from_numpy(np.dtype(dtype))
    model = case.model()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = element
    tiled = bench.tile(model, Limits.of(max=4), options)
    wide = 8 * 9 if dtype is not np.float32 else 0
    assert tiled.count("Cast") == wide * 1 + (9 if wide else 0) and len(tiled.nodes) == bench.most_nodes(
        tiled.result.tiled[0]
    )
    for node in tiled.nodes:
        assert all(
            value.dtype == element for value in node.inputs if value and node.op_type in {"Gemm", "MatMul", "Concat"}
        )
    assert tiled.model.graph.outputs[0].dtype == element
    whole = bench.tile(model, Limits.of(m=4, n=4), options)
    assert whole.count("Cast") == 0  # K is not cut


def test_a_convolution_adds_in_float32() -> None:
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 64, 3, 3)).astype(np.float16), "w")
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, dims)
        for name, dims in (("x", [1, 64, 6, 6]), ("y", [1, 4, 4, 4]))
    ]
    model = build.model([node], values[:1], values[1:], [w], ir_version=8)
    limits = Limits.of(window=WindowBounds(channels=16))
    tiled = api.tile(model, limits, accumulate="float32")
    assert tiled.sites[0].passed and sum(node.op_type == "Cast" for node in tiled.model.graph) == 5


def test_a_type_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="partial sums are not added in 'float64' \\(choose float32\\)"):
        TilingPolicy(accumulate_type="float64")
