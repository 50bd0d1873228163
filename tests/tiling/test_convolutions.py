"""Tiled convolutions against the untiled ones, through onnxruntime, and against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.limits import Limits, WindowBounds
from tests import build
from tests.draws import draws
from tests.tiling.conftest import Bench, Tiled


@dataclass(frozen=True)
class Conv:
    """One Conv or ConvTranspose: spatial sizes, channels and filters of a group, attributes, which operands are constant (by letter)."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    channels: int = 3
    filters: int = 4
    groups: int = 1
    batch: int = 1
    op: str = "Conv"
    attributes: tuple[tuple[str, Any], ...] = ()
    constants: str = "wb"
    bias: bool = True
    dtype: Any = np.float32
    opset: int = 17
    symbols: tuple[str | None, ...] = ()

    def arrays(self, seed: int = 0) -> dict[str, Array]:
        random = np.random.default_rng(seed)
        first, second = self.groups * self.filters, self.channels
        if self.op == "ConvTranspose":
            first, second = self.groups * self.channels, self.filters
        shapes: dict[str, tuple[int, ...]] = {
            "x": (self.batch, self.groups * self.channels, *self.sizes),
            "w": (first, second, *self.kernel),
        }
        if self.bias:
            shapes["b"] = (self.groups * self.filters,)
        return {name: random.standard_normal(shape).astype(self.dtype) for name, shape in shapes.items()}

    def model(self) -> onnx.ModelProto:
        arrays = self.arrays()
        node = helper.make_node(self.op, list(arrays), ["y"], name="conv", group=self.groups, **dict(self.attributes))
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))

        def dims(name: str) -> list[Any]:
            symbols = self.symbols if name == "x" else ()
            shape = arrays[name].shape
            return [s or d for s, d in zip(symbols or (None,) * len(shape), shape, strict=True)]

        return build.model(
            [node],
            {n: (element, dims(n)) for n in arrays if n not in self.constants},
            {"y": (element, [f"y{i}" for i in range(2 + len(self.sizes))])},
            [numpy_helper.from_array(x, n) for n, x in arrays.items() if n in self.constants],
            opset=self.opset,
            ir_version=8,
        )

    def feeds(self) -> dict[str, Array]:
        return {name: x for name, x in self.arrays().items() if name not in self.constants}


def judge(bench: Bench, conv: Conv, limits: Limits) -> Tiled:
    """Tile the model; assert that it computes what the untiled one does, and that each tile is within the limits."""
    source = conv.model()
    expected = Session(source.SerializeToString()).run(conv.feeds())["y"]
    tiled = bench.tile(source, limits)
    got = tiled.run(conv.feeds())["y"]
    assert got.shape == expected.shape
    size = float(np.abs(expected).max(initial=1.0))
    np.testing.assert_allclose(got, expected, rtol=0, atol=64 * float(np.finfo(conv.dtype).eps) * size)
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()
    require_within(conv, tiled, limits)
    return tiled


def require_within(conv: Conv, tiled: Tiled, limits: Limits) -> None:
    window = limits.window
    assert window is not None
    for node in tiled.nodes:
        if node.op_type != conv.op or not tiled.result.tiled:
            continue
        group = node.attributes.get_int("group", 1)
        x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
        assert x is not None and w is not None and x.shape is not None and w.shape is not None and y.shape is not None
        channels = w.shape[0] // group if conv.op == "ConvTranspose" else w.shape[1]
        filters = w.shape[1] if conv.op == "ConvTranspose" else w.shape[0] // group
        assert isinstance(channels, int) and isinstance(filters, int)
        pixels = [size for size in y.shape[2:] if isinstance(size, int)]
        rows, columns = (pixels[0], pixels[1]) if len(pixels) == 2 else (1, pixels[-1] if pixels else 1)
        for size, bound in (
            (rows * columns, limits.m),
            (channels * int(np.prod(conv.kernel)), limits.k),
            (filters, limits.n),
            (rows, window.rows),
            (columns, window.columns),
            (channels * group, window.channels),
            (filters * group, window.filters),
        ):
            assert bound is None or size <= bound, node


@st.composite
def bounds(draw: st.DrawFn, size: int) -> int | None:
    """A bound on an axis: one that leaves a remainder first."""
    ragged = [bound for bound in range(1, size) if size % bound]
    return draw(st.sampled_from([*ragged[::-1], *(b for b in range(1, size + 1) if size % b == 0), None]))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Conv, Limits]:
    rank = draw(st.sampled_from([2, 1]))
    op = draw(st.sampled_from(["Conv", "ConvTranspose"]))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilations = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = tuple(draw(st.integers(1, 12)) for _ in range(rank))
    attributes: dict[str, Any] = {"strides": strides, "dilations": dilations}
    auto = draw(st.sampled_from(["", "", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto:
        attributes["auto_pad"] = auto
        if "SAME" in auto:
            attributes["dilations"] = (1,) * rank
            reach = list(kernel)
    else:
        attributes["pads"] = tuple(draw(st.integers(0, r - 1)) for r in reach * 2)
    pads = attributes.get("pads", (0,) * 2 * rank)
    if op == "ConvTranspose":
        # Beside SAME, the engines that infer shapes do not agree what output_padding means.
        attributes["output_padding"] = tuple(0 if "SAME" in auto else draw(st.integers(0, s - 1)) for s in strides)
        outs = [(n - 1) * s + r for n, s, r in zip(sizes, strides, reach, strict=True)]
        assume(all(o > pads[i] + pads[rank + i] for i, o in enumerate(outs)))
        if draw(st.sampled_from([False, False, True])) and auto != "VALID":
            # It takes the place of the padding; how that is shared out, auto_pad says.
            attributes.pop("pads", None)
            whole = zip(outs, attributes["output_padding"], sizes, strict=True)
            attributes["output_shape"] = tuple(draw(st.integers(max(o + p - 6, n), o + p)) for o, p, n in whole)
        assume(not ("SAME" in auto and any(s > r for s, r in zip(strides, reach, strict=True))))
    else:
        assume("SAME" in auto or all(n + pads[i] + pads[rank + i] >= reach[i] for i, n in enumerate(sizes)))
    groups, channels, filters = (draw(st.integers(1, most)) for most in (3, 5, 5))
    conv = Conv(
        sizes, kernel, channels, filters, groups, draw(st.integers(1, 2)), op, tuple(attributes.items()),
        "".join(sorted(draw(st.sets(st.sampled_from("wb"))))), draw(st.booleans()),
        opset=draw(st.sampled_from([7, 9, 10, 11, 13, 18, 22])),
    )  # fmt: skip
    k = draw(bounds(channels))
    window = WindowBounds(
        rows=draw(bounds(9)), columns=draw(bounds(9)), channels=draw(bounds(groups * channels)), filters=draw(bounds(groups * filters))
    )  # fmt: skip
    limits = Limits(
        draw(bounds(30)), None if k is None else k * int(np.prod(kernel)), draw(bounds(filters)), window=window
    )
    return conv, limits


@draws(17, slow=1000)
@given(convolutions())
def test_a_tiled_convolution_computes_the_same(bench: Bench, drawn: tuple[Conv, Limits]) -> None:
    conv, limits = drawn
    judge(bench, conv, limits)


@draws(30, 120)
@given(convolutions(), st.integers(200, 3000))
def test_a_convolution_tiled_for_a_memory_computes_the_same(
    bench: Bench, drawn: tuple[Conv, Limits], memory: int
) -> None:
    conv, _ = drawn
    judge(bench, conv, Limits(memory=memory, window=WindowBounds()))


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("window", [WindowBounds(rows=2), WindowBounds(columns=2)])
def test_only_rows_or_only_columns(bench: Bench, op: str, window: WindowBounds) -> None:
    assert judge(bench, Conv((7, 6), (3, 2), op=op, constants="w"), Limits(window=window)).result.tiled
    open_columns = Conv((7, 6), (3, 2), op=op, symbols=(None, None, None, "width"))
    result = bench.tile(open_columns.model(), Limits(window=window)).result
    assert [skip.reason for skip in result.skipped] == [
        "axis 3 of 'x' has the size 'width': bind it with --dim width=N"
    ]


def test_an_output_shape_beyond_the_input_is_not_tiled(bench: Bench) -> None:
    conv = Conv((11,), (2,), op="ConvTranspose", attributes=(("strides", (3,)), ("output_shape", (33,))), constants="w")
    (skipped,) = judge(bench, conv, Limits(window=WindowBounds(filters=2))).result.skipped
    assert skipped.reason == "its output_shape asks for 33 elements where its input reaches 32"


def test_a_convolution_is_not_filled_up_but_may_be_cut_beside_products_that_are(bench: Bench) -> None:
    conv = Conv((6, 6), (3, 3), constants="w")
    exact, ragged = Limits(None, 9, None, pad=True, window=WindowBounds()), Limits(None, 9, None, window=WindowBounds())
    (skipped,) = judge(bench, conv, exact).result.skipped
    assert "[operator.Conv] with pad = false in the limits file has it cut" in skipped.reason
    assert bench.tile(conv.model(), replace(exact, operators=(("Conv", ragged),))).result.matmuls == 3


@pytest.mark.parametrize("kernel", [1, 2])
def test_padding_as_wide_as_the_kernel(bench: Bench, kernel: int) -> None:
    conv = Conv((9, 9), (kernel, kernel), attributes=(("pads", (2, 2, 2, 2)),), constants="w")
    assert judge(bench, conv, Limits(n=3, window=WindowBounds(rows=5))).result.matmuls > 4, (
        "all of its tiles reach the input"
    )
    reason = f"a tile could read padding only: its padding is 2, its kernel reaches over {kernel}"
    for limits in (Limits(window=WindowBounds(rows=1)), Limits(memory=2000, window=WindowBounds())):
        skipped = judge(bench, conv, limits).result.skipped
        assert [skip.reason for skip in skipped] == [reason]


def test_a_large_bias_does_not_round_the_partial_sums() -> None:
    source = Conv((16, 16), (1, 1), channels=1024, filters=32).model()
    for tensor in source.graph.initializer:
        array = numpy_helper.to_array(tensor)
        few = np.full_like(array, -4.6) if tensor.name == "b" else array / 100
        tensor.CopyFrom(numpy_helper.from_array(few, tensor.name))
    (verdict,) = onnxtile.tile(source, max=(64, 32, 64), conv=True).sites
    assert verdict.error < 1.5 * verdict.original_error
