"""QLinearConv and ConvInteger: tiles that are equal to onnxruntime's own kernels to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxtile import api
from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.limits import Limits, TilingPolicy, WindowBounds

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench, Tiled

INPUTS = {
    "QLinearConv": ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "b"],
    "ConvInteger": ["x", "w", "x_zero", "w_zero"],
}
PARAMETERS = {"x_scale", "x_zero", "w_scale", "w_zero", "y_scale", "y_zero"}


def arrays(
    *, channels: int = 6, filters: int = 9, kernel: tuple[int, ...] = (3, 3), groups: int = 1, kinds: Any = (np.uint8, np.int8),
    per_channel: bool = False, bias: bool = True,
) -> dict[str, Array]:  # fmt: skip
    """Return operands with parameters that spread the results over the range of a byte."""
    random = np.random.default_rng(0)

    def some(shape: tuple[int, ...], kind: Any) -> Array:
        bounds = np.iinfo(kind)
        return np.asarray(random.integers(bounds.min, bounds.max, shape, endpoint=True)).astype(kind)

    each = (filters,) if per_channel else ()
    found: dict[str, Array] = {
        "x": some((1, channels, *(11 - axis for axis in range(len(kernel)))), kinds[0]),
        "x_scale": np.asarray(0.013, np.float32),
        "x_zero": some((), kinds[0]),
        "w": some((filters, channels // groups, *kernel), kinds[1]),
        "w_scale": np.asarray(random.uniform(0.002, 0.04, each), np.float32),
        # onnxruntime takes no other than equal zero points of the channels.
        "w_zero": np.full(each, 3, kinds[1]),
        "y_scale": np.asarray(0.5, np.float32),
        "y_zero": some((), kinds[0]),
    }
    if bias:
        found["b"] = random.integers(-30000, 30000, (filters,)).astype(np.int32)
    return found


def model(op: str, held: dict[str, Array], fixed: set[str], opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """Return a node `op` that reads `held`, those of `fixed` as initializers."""
    names = [name if name in held else "" for name in INPUTS[op]]
    while not names[-1]:
        names.pop()
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in held.items()}
    result = types["y_zero"] if op == "QLinearConv" else 6
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], name="conv", **attributes)],
        "case",
        [
            helper.make_tensor_value_info(n, types[n], x.shape)
            for n, x in held.items()
            if n not in fixed and n in INPUTS[op]
        ],
        [helper.make_tensor_value_info("y", result, [f"y{axis}" for axis in range(held["x"].ndim)])],
        [numpy_helper.from_array(x, n) for n, x in held.items() if n in fixed and n in INPUTS[op]],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def require_equal(
    bench: Bench, source: onnx.ModelProto, held: dict[str, Array], limits: Limits, options: TilingPolicy | None = None
) -> Tiled:
    """Tile `source`; assert that it makes what onnxruntime's kernel makes, to the last bit."""
    tiled = bench.tile(source, limits, options)
    feeds = {info.name: held[info.name] for info in source.graph.input}
    expected = Session(source.SerializeToString()).run(feeds)["y"]
    np.testing.assert_array_equal(tiled.run(feeds)["y"], expected, strict=True)
    assert all(verdict.passed and not verdict.error for verdict in tiled.verdicts())
    for site in tiled.result.tiled:
        assert len(site.emitted) <= bench.most_nodes(site)
    return tiled


def cut(kernel: int = 9, **more: int) -> Limits:
    """Return limits that cut all axes."""
    return Limits.of(m=20, k=2 * kernel, n=4, window=WindowBounds(**more))


KINDS = st.sampled_from([(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
FIXED = st.sampled_from(
    [PARAMETERS | {"w", "b"}, PARAMETERS, {"w", "w_zero", "w_scale"}, {"w", "w_zero"}, {"w_zero", "b"}]
)
SHAPES: Any = st.sampled_from(
    [
        ({}, {"pads": [1, 1, 1, 1]}),
        ({}, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ({"kernel": (3,)}, {"dilations": [2]}),
        ({"groups": 3}, {"group": 3}),
        ({"channels": 9, "groups": 9}, {"group": 9, "pads": [0, 1, 1, 0]}),
    ]
)


@settings(max_examples=30, deadline=None)
@given(
    shape=SHAPES, kinds=KINDS, fixed=FIXED, per_channel=st.booleans(), bias=st.booleans(),
    opset=st.sampled_from([10, 13, 21]), how=st.sampled_from(["sum", "tree"]),
)  # fmt: skip
def test_qlinear_conv(
    bench: Bench, shape: Any, kinds: Any, fixed: set[str], per_channel: bool, bias: bool, opset: int, how: str
) -> None:
    sizes, attributes = shape
    held = arrays(kinds=kinds, per_channel=per_channel, bias=bias, **sizes)
    source = model("QLinearConv", held, fixed, opset, **attributes)
    limits = cut(int(np.prod(sizes.get("kernel", (3, 3)))))
    tiled = require_equal(bench, source, held, limits, TilingPolicy(accumulate=how))
    assert not tiled.result.skipped


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, kinds=KINDS, fixed=FIXED, zeros=st.sampled_from([(), ("x_zero",), ("x_zero", "w_zero")]))
def test_conv_integer(bench: Bench, shape: Any, kinds: Any, fixed: set[str], zeros: Any) -> None:
    sizes, attributes = shape
    every = arrays(kinds=kinds, **sizes)
    held = {name: array for name, array in every.items() if "_" not in name or name in zeros}
    source = model("ConvInteger", held, fixed, **attributes)
    limits = cut(int(np.prod(sizes.get("kernel", (3, 3)))))
    assert not require_equal(bench, source, held, limits).result.skipped


def test_no_more_than_a_block_is_in_int32(bench: Bench) -> None:
    held = arrays(per_channel=True)
    tiled = require_equal(bench, model("QLinearConv", held, PARAMETERS | {"w", "b"}), held, cut(rows=2))
    # 9 × 9 pixels in rows of 2, 9 filters in blocks of 4, 6 channels in blocks of 2.
    assert (tiled.count("ConvInteger"), tiled.count("QuantizeLinear")) == (5 * 3 * 3, 5 * 3)
    wide = [value for node in tiled.nodes for value in node.outputs if value.dtype in {1, 6}]
    assert {value.shape.numpy()[1:3] for value in wide if value.shape is not None} <= {(4, 2), (4, 1), (1, 2), (1, 1)}
    assert PARAMETERS.isdisjoint({*tiled.model.graph.initializers} - {"x_zero"})


def test_zero_points_of_weights_that_differ_are_left(bench: Bench) -> None:
    held = arrays(per_channel=True)
    held["w_zero"] = np.arange(9, dtype=np.int8)
    (skip,) = bench.tile(model("QLinearConv", held, PARAMETERS | {"w"}), cut()).result.skipped
    assert skip.reason == "its weights have a zero point for each output channel, 'w_zero'"


def test_it_is_cut_on_request(bench: Bench) -> None:
    held = arrays()
    (skip,) = bench.tile(model("QLinearConv", held, PARAMETERS | {"w", "b"}), Limits.of(max=4)).result.skipped
    assert skip.reason == "convolutions are cut only on request: --conv, or [operator.QLinearConv] in the limits file"


@pytest.mark.parametrize("memory", [400, 2000])
def test_the_weights_stay_in_bytes(memory: int) -> None:
    held = arrays(channels=64, filters=64, per_channel=True)
    source = model("QLinearConv", held, PARAMETERS | {"w", "b"})
    tiled = api.tile(source, Limits.of(memory=memory, window=WindowBounds()))
    assert tiled.verdict is not None and tiled.verdict.equal and all(site.passed for site in tiled.sites)
    inits = tiled.model.graph.initializers.values()
    weights = [value.const_value for value in inits if value.const_value is not None and value.dtype == 3]
    assert sum(tensor.nbytes for tensor in weights if tensor.size > 1) == held["w"].nbytes


def test_it_can_be_wrapped(bench: Bench) -> None:
    held = arrays(per_channel=True)
    source = model("QLinearConv", held, PARAMETERS | {"w", "b"})
    tiled = require_equal(bench, source, held, cut(), TilingPolicy(wrap=True))
    assert [node.op_type for node in tiled.nodes] == ["Tiled_QLinearConv_conv"]
