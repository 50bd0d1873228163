"""Products of 16 bits, judged as hardware computes that keeps each tensor in 16 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.system.errors import Mismatch, UsageError
from onnxtile.system.runtime import Array
from onnxtile.tiling.limits import Accumulation, Limits, TilingPolicy, WindowBounds
from tests.tiling.conftest import Bench, Case

WAYS = list(Accumulation)


def scaled(case: Case, factor: float) -> onnx.ModelProto:
    """Return the model of a case with a constant B that is `factor` times as large."""
    model, b = case.model(), case.arrays()[1]
    held = numpy_helper.from_array((b.astype(np.float32) * factor).astype(case.dtype), "b")
    model.graph.initializer[0].CopyFrom(held)
    return model


def stored(way: Accumulation, terms: list[Array]) -> Array:
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
    expected = stored(way, terms)
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
    assert failed.value.hint is not None and "accumulate_type='float32'" in failed.value.hint
    wide = api.tile(model, Limits.of(max=64), accumulate=way, accumulate_type="float32")
    assert all(site.passed for site in wide.sites)
    assert wide.result.to_dict()["tiled"][0]["accumulate_type"] == "float32"


@pytest.mark.parametrize("way", WAYS)
def test_long_sums_of_plain_numbers_pass(way: Accumulation) -> None:
    model = scaled(Case(m=4, k=8192, n=16, op="MatMul", constants="b", dtype=np.float16), 1)
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
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [w])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    limits = Limits.of(window=WindowBounds(channels=16))
    tiled = api.tile(model, limits, accumulate_type="float32")
    assert tiled.sites[0].passed and sum(node.op_type == "Cast" for node in tiled.model.graph) == 5


def test_a_type_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="invalid --accumulate-type 'float64' \\(choose float32\\)"):
        TilingPolicy(accumulate_type="float64")
