"""What a tile is said to hold is what its node reads and makes in the model that is written."""

from __future__ import annotations

from math import prod
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.known import declared
from onnxtile.shapes.resolve import resolve
from onnxtile.system.runtime import Array
from onnxtile.tiling.limits import Limits, WindowBounds
from tests.tiling.conftest import CONVOLUTIONS, TILES, Bench, Case, Tiled


def largest(tiled: Tiled) -> int:
    """Return the bytes of all that one tile reads and makes, at most."""
    shapes = resolve(tiled.model)

    def size(value: ir.Value) -> int:
        dims, dtype = shapes.dims(value) or declared(value).dims, shapes.dtype(value) or value.dtype
        assert dims is not None
        assert dtype is not None
        return int(prod(int(str(dim)) for dim in dims) * dtype.itemsize)

    return max(
        sum(size(value) for value in {*node.inputs, *node.outputs} if value is not None)
        for node in tiled.nodes
        if node.op_type in TILES | CONVOLUTIONS
    )


def convolution(x: tuple[int, ...], w: Array, op: str = "Conv", **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", "w"], ["y"], name="conv", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def ones(*dims: int) -> Array:
    import numpy as np

    return np.ones(dims, np.float32)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "op", "exact"),
    [
        ((1, 16, 14, 14), (32, 16, 1, 1), {"strides": [2, 2]}, "Conv", True),
        ((1, 16, 15, 15), (32, 16, 3, 3), {"strides": [2, 2]}, "Conv", True),
        ((2, 12, 16, 13), (8, 12, 3, 2), {"strides": [3, 2]}, "Conv", True),
        ((1, 8, 12, 12), (8, 2, 3, 3), {"group": 4}, "Conv", True),
        ((1, 8, 12, 12), (16, 8, 3, 3), {"dilations": [2, 2]}, "Conv", True),
        ((1, 8, 12, 12), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}, "Conv", False),
        ((1, 8, 12, 12), (8, 12, 3, 3), {"strides": [2, 2]}, "ConvTranspose", False),
        ((1, 8, 12, 12), (8, 12, 1, 1), {"strides": [3, 3]}, "ConvTranspose", False),
    ],
)
@pytest.mark.parametrize("share", [8, 5, 3, 2, 1.2])
def test_convolutions(
    bench: Bench, x: tuple[int, ...], w: tuple[int, ...], attributes: Any, op: str, exact: bool, share: float
) -> None:
    model = convolution(x, ones(*w), op, **attributes)
    whole = 4 * (prod(x) + prod(w) + prod(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim))
    tiled = bench.tile(model, Limits.of(memory=int(whole / share), window=WindowBounds()))
    (site,) = tiled.result.tiled
    assert site.chosen is not None
    claimed = site.chosen.choice.held
    assert largest(tiled) <= claimed <= whole / share
    assert site.chosen.lower_bound is not None
    assert site.chosen.lower_bound <= whole
    assert largest(tiled) == claimed or not exact


def test_a_stride_beyond_the_kernel_reads_what_it_steps_over(bench: Bench) -> None:
    model = convolution((1, 64, 28, 28), ones(128, 64, 1, 1), strides=[2, 2])
    tiled = bench.tile(model, Limits.of(memory=256 * 1024, window=WindowBounds()))
    (site,) = tiled.result.tiled
    assert site.chosen is not None
    assert largest(tiled) == site.chosen.choice.held <= 256 * 1024


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("constants", ["", "b"])
@pytest.mark.parametrize("memory", [300, 700, 1500, 3000])
def test_products(bench: Bench, op: str, constants: str, memory: int) -> None:
    case = Case(m=20, k=24, n=18, op=op, constants=constants, trans_b=op == "Gemm")
    tiled = bench.tile(case.model(), Limits.of(memory=memory, m=20))
    (site,) = tiled.result.tiled
    assert site.chosen is not None
    assert largest(tiled) == site.chosen.choice.held <= memory
