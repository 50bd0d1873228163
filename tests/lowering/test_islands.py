"""Quantised islands as operators of onnxruntime: which operator, outputs within one step, and reasons where an island stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from onnxtile import api
from onnxtile.fusion.island_lowerings import StoredIsland
from onnxtile.fusion.lower.island_lowering import (
    IslandSite,
    packed_weight,
    packed_zeros,
    unpacked_weight,
    unpacked_zeros,
)
from onnxtile.fusion.lower.lowering import Replacement
from onnxtile.system.runtime import Array
from onnxtile.verbs.flows.results import FuseResult
from tests import build

STEP, ZERO = 0.05, 3


class Net:
    """A graph of one island: DequantizeLinear nodes, operators, a QuantizeLinear."""

    def __init__(self, dtype: Any = np.int8) -> None:
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, onnx.TensorProto] = {}
        self.inputs: dict[str, list[int]] = {}

    def constant(self, name: str, array: Any) -> str:
        self.held[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def add(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def x(self, name: str, *shape: int, scale: float = STEP, zero: int = ZERO) -> str:
        """Add a quantised input, dequantised."""
        self.inputs[name] = list(shape)
        pair = self.constant(f"{name}_s", np.float32(scale)), self.constant(f"{name}_z", self.dtype(zero))
        return self.add("DequantizeLinear", [name, *pair], f"{name}_d")

    def weight(self, name: str, *shape: int, axis: int | None = None, scale: Any = 0.02) -> str:
        """Add a quantised weight, dequantised, with scales along `axis`."""
        array = np.random.default_rng(len(name)).integers(-100, 100, shape).astype(np.int8)
        scales = np.full(() if axis is None else shape[axis], scale, np.float32)
        scales = scales * np.linspace(0.5, 1.0, scales.size, dtype=np.float32).reshape(scales.shape)
        pair = self.constant(f"{name}_s", scales), self.constant(f"{name}_z", np.zeros(scales.shape, np.int8))
        given = {} if axis is None else {"axis": axis}
        return self.add("DequantizeLinear", [self.constant(f"{name}_w", array), *pair], f"{name}_d", **given)

    def bias(self, name: str, count: int, scale: Any) -> str:
        array = np.arange(count, dtype=np.int32) * 50 - 100
        scales = np.asarray(scale, np.float32)
        given = {} if scales.ndim == 0 else {"axis": 0}
        parts = [self.constant(f"{name}_w", array), self.constant(f"{name}_s", scales)]
        return self.add("DequantizeLinear", parts, f"{name}_d", **given)

    def q(self, value: str, scale: float = STEP, zero: int = ZERO) -> str:
        pair = self.constant(f"{value}_qs", np.float32(scale)), self.constant(f"{value}_qz", self.dtype(zero))
        return self.add("QuantizeLinear", [value, *pair], "y")

    def model(self, shape: list[int], *, opset: int = 17, floats: bool = False) -> onnx.ModelProto:
        kind = TensorProto.FLOAT if floats else helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        stored = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        return build.model(
            self.nodes,
            {name: (stored, dims) for name, dims in self.inputs.items()},
            {"y": (kind, shape)},
            list(self.held.values()),
            opset=opset,
        )


def conv(net: Net, *, after: str = "", axis: int | None = 0, zero: int = ZERO) -> onnx.ModelProto:
    """Return a convolution with a bias, and a Relu or a Clip after it."""
    weight = net.weight("w", 4, 3, 3, 3, axis=axis, scale=0.01)
    units = np.float32(STEP) * numpy_helper.to_array(net.held["w_s"])
    value = net.add("Conv", [net.x("x", 1, 3, 6, 6), weight, net.bias("b", 4, units)], "c", pads=[1, 1, 1, 1])
    if after == "Relu":
        value = net.add("Relu", [value], "r")
    if after == "Clip":
        bounds = [net.constant("low", np.float32(-1.0)), net.constant("high", np.float32(2.0))]
        value = net.add("Clip", [value, *bounds], "r")
    net.q(value, zero=zero)
    return net.model([1, 4, 6, 6])


def unary(
    op: str, shape: list[int], out: list[int] | None = None, scale: float = STEP, **attributes: Any
) -> Callable[[Net], onnx.ModelProto]:
    def make(net: Net) -> onnx.ModelProto:
        lowest = int(np.iinfo(net.dtype).min)
        net.q(net.add(op, [net.x("x", *shape)], "v", **attributes), scale=scale, zero=ZERO if scale == STEP else lowest)
        return net.model(out or shape)

    return make


def binary(op: str, *, constant: bool = False) -> Callable[[Net], onnx.ModelProto]:
    def make(net: Net) -> onnx.ModelProto:
        other = (
            net.weight("w", 3, 1, 1)
            if constant and net.dtype is np.int8
            else net.x("z", 2, 3, 4, 4, scale=0.08, zero=7)
        )
        net.q(net.add(op, [net.x("x", 2, 3, 4, 4), other], "v"), scale=0.2)
        return net.model([2, 3, 4, 4])

    return make


def matmul(net: Net, *, axis: int | None = None) -> onnx.ModelProto:
    net.q(net.add("MatMul", [net.x("x", 2, 5, 16), net.weight("w", 16, 8, axis=axis)], "v"), scale=0.3)
    return net.model([2, 5, 8])


def biased(net: Net, *shape: int, stored: bool = False, after: str = "") -> onnx.ModelProto:
    """Return a product of rows and a bias, of floats or stored."""
    weight = net.weight("w", 16, 8)
    added = (
        net.bias("b", 8, np.float32(STEP) * np.float32(0.02))
        if stored
        else net.constant("b", np.linspace(-1, 1, 8, dtype=np.float32))
    )
    value = net.add("Add", [net.add("MatMul", [net.x("x", *shape, 16), weight], "p"), added], "v")
    net.q(net.add(after, [value], "r") if after else value, scale=0.3)
    return net.model([*shape, 8])


def gemm(net: Net, *, floats: bool = False) -> onnx.ModelProto:
    inputs = [
        net.x("x", 5, 16),
        net.weight("w", 8, 16, axis=0),
        net.bias("b", 8, np.float32(STEP) * np.linspace(0.01, 0.02, 8)),
    ]
    value = net.add("Gemm", inputs, "y" if floats else "v", transB=1)
    if not floats:
        net.q(value, scale=0.3)
    return net.model([5, 8], floats=floats)


def concat(net: Net, *, scale: float = 0.1) -> onnx.ModelProto:
    net.q(net.add("Concat", [net.x("x", 1, 2, 4), net.x("z", 1, 3, 4, scale=scale)], "v", axis=1))
    return net.model([1, 5, 4])


def where(net: Net) -> onnx.ModelProto:
    condition = net.constant("c", np.arange(8).reshape(2, 4) % 3 == 0)
    net.q(net.add("Where", [condition, net.x("x", 2, 4), net.x("z", 2, 4, scale=0.1)], "v"))
    return net.model([2, 4])


def reshape(net: Net) -> onnx.ModelProto:
    net.q(net.add("Reshape", [net.x("x", 2, 6), net.constant("shape", np.asarray([3, 4]))], "v"))
    return net.model([3, 4])


def to_float(net: Net) -> onnx.ModelProto:
    net.add("MatMul", [net.x("x", 5, 16), net.weight("w", 16, 8, axis=1)], "y")
    return net.model([5, 8], floats=True)


def div(net: Net, *, divisor: float = 6.0) -> onnx.ModelProto:
    net.q(net.add("Div", [net.x("x", 2, 9), net.constant("six", np.float32(divisor))], "v"), scale=STEP / 4)
    return net.model([2, 9])


def spatial_mean(net: Net) -> onnx.ModelProto:
    net.q(net.add("ReduceMean", [net.x("x", 1, 2, 6, 6)], "v", axes=[2, 3]))
    return net.model([1, 2, 1, 1])


def resize(net: Net, *, mode: str = "nearest") -> onnx.ModelProto:
    scales = net.constant("scales", np.asarray([1, 1, 2, 2], np.float32))
    net.q(net.add("Resize", [net.x("x", 1, 2, 3, 3), "", scales], "v", mode=mode))
    return net.model([1, 2, 6, 6])


def attention(net: Net, *, floats: bool = False) -> onnx.ModelProto:
    inputs = [net.x("x", 1, 4, 8), net.weight("w", 8, 24), net.constant("b", np.zeros(24, np.float32))]
    made = net.add("Attention", inputs, "y" if floats else "v", domain="com.microsoft", num_heads=2)
    if not floats:
        net.q(made)
    model = net.model([1, 4, 8], floats=floats)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


MS = "com.microsoft."
LOWERED: dict[str, tuple[Callable[[Net], onnx.ModelProto], list[str]]] = {
    "conv": (conv, ["QLinearConv"]),
    "conv, one scale": (lambda net: conv(net, axis=None), ["QLinearConv"]),
    "conv, relu": (lambda net: conv(net, after="Relu"), ["QLinearConv", "Clip"]),
    "conv, relu where the range begins at 0": (
        lambda net: conv(net, after="Relu", zero=int(np.iinfo(net.dtype).min)),
        ["QLinearConv"],
    ),
    "conv, clip": (lambda net: conv(net, after="Clip"), ["QLinearConv", "Clip"]),
    "add": (binary("Add"), [MS + "QLinearAdd"]),
    "add, constant": (binary("Add", constant=True), [MS + "QLinearAdd"]),
    "sum": (binary("Sum"), [MS + "QLinearAdd"]),
    "difference": (binary("Sub"), ["BitwiseNot", MS + "QLinearAdd"]),
    "difference, constant": (binary("Sub", constant=True), ["BitwiseNot", MS + "QLinearAdd"]),
    "hard sigmoid": (unary("HardSigmoid", [2, 9], scale=1 / 255), [MS + "QLinearAdd"]),
    "hard sigmoid, stored beyond its bounds": (
        unary("HardSigmoid", [2, 9], alpha=1 / 3, beta=-0.5),
        [MS + "QLinearAdd", "Clip"],
    ),
    "hard sigmoid of no addend": (unary("HardSigmoid", [2, 9], beta=0.0), [MS + "QLinearAdd", "Clip"]),
    "mul": (binary("Mul"), [MS + "QLinearMul"]),
    "matmul": (matmul, ["QLinearMatMul"]),
    "matmul, scales": (lambda net: matmul(net, axis=1), ["QLinearMatMul"]),
    "matmul, to floats": (to_float, [MS + "MatMulIntegerToFloat"]),
    "bias": (lambda net: biased(net, 5), [MS + "QGemm"]),
    "bias, stored": (lambda net: biased(net, 5, stored=True), [MS + "QGemm"]),
    "bias, three axes": (lambda net: biased(net, 2, 5, after="Relu"), ["Reshape", MS + "QGemm", "Reshape", "Clip"]),
    "gemm": (gemm, [MS + "QGemm"]),
    "gemm, to floats": (lambda net: gemm(net, floats=True), [MS + "QGemm"]),
    "concat": (concat, [MS + "QLinearConcat"]),
    "concat, equal scales": (lambda net: concat(net, scale=STEP), ["Concat"]),
    "where": (where, [MS + "QLinearWhere"]),
    "sigmoid": (unary("Sigmoid", [2, 9], scale=1 / 255), [MS + "QLinearSigmoid"]),
    "leaky relu": (unary("LeakyRelu", [2, 9], alpha=0.2), [MS + "QLinearLeakyRelu"]),
    "softmax, a scale of 1 / 256": (unary("Softmax", [2, 9], scale=1 / 256, axis=-1), [MS + "QLinearSoftmax"]),
    "softmax": (unary("Softmax", [2, 9], scale=1 / 255, axis=-1), [MS + "QLinearSoftmax"]),
    "average pool": (
        unary("AveragePool", [1, 2, 6, 6], [1, 2, 3, 3], kernel_shape=[2, 2], strides=[2, 2]),
        [MS + "QLinearAveragePool"],
    ),
    "global average pool": (unary("GlobalAveragePool", [1, 2, 6, 6], [1, 2, 1, 1]), [MS + "QLinearGlobalAveragePool"]),
    "max pool": (unary("MaxPool", [1, 2, 6, 6], [1, 2, 3, 3], kernel_shape=[2, 2], strides=[2, 2]), ["MaxPool"]),
    "transpose": (unary("Transpose", [2, 3], [3, 2], perm=[1, 0]), ["Transpose"]),
    "reshape": (reshape, ["Reshape"]),
    "resize": (resize, ["Resize"]),
    "division": (div, [MS + "QLinearMul"]),
    "mean": (spatial_mean, [MS + "QLinearGlobalAveragePool"]),
    "attention": (attention, [MS + "QAttention", "QuantizeLinear"]),
    "attention, to floats": (lambda net: attention(net, floats=True), [MS + "QAttention"]),
}  # fmt: skip


OTHERS = {"bias", "bias, stored", "sum", "division", "mean", "attention", "attention, to floats"}
OTHERS |= {case for case in LOWERED if case.startswith(("difference", "hard sigmoid"))}
"""Cases that do not come back as the operator that they were."""
MOVED = {"Concat", "MaxPool", "Transpose", "Reshape", "Resize"}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (case, dtype)
        for case in LOWERED
        for dtype in (np.int8, np.uint8)
        if dtype is np.uint8 or "attention" not in case
    ],
)
def test_an_island_becomes_an_operator(case: str, dtype: Any, operators: Callable[[FuseResult], list[str]]) -> None:
    make, expected = LOWERED[case]
    result = api.fuse(make(Net(dtype)), lower="ort")
    assert operators(result) == expected
    worst = result.sites[0].outputs[0]
    floats = "to floats" in case
    assert worst.equal and worst.max_abs <= (1e-4 if floats else 1), worst
    assert worst.floor == 1.0 or floats or expected[0] in MOVED


@pytest.mark.parametrize(
    "case", [case for case, (_, made) in LOWERED.items() if not MOVED & {*made} and case not in OTHERS]
)
def test_and_back_again(case: str, operators: Callable[[FuseResult], list[str]]) -> None:
    """Each operator on stored tensors becomes the float one between DequantizeLinear and QuantizeLinear."""
    original = LOWERED[case][0](Net(np.uint8))
    result = api.fuse(api.fuse(original, lower="ort").model, lower="qdq")
    wanted = {node.op_type for node in original.graph.node} - {"Relu"}
    assert {name for name in operators(result) if not name.startswith("Clip")} == wanted - {"Clip"}
    assert [site.reason for site in result.lowered] == [""]
    assert result.sites[0].outputs[0].max_abs <= 1
    names = {node.op_type for node in api.fuse(result.model).model.graph}
    assert all(name.startswith(("Q", "Clip")) for name in names), "its islands are found again"


def softmax_beyond(net: Net) -> onnx.ModelProto:
    return unary("Softmax", [2, 9], scale=1 / 300, axis=-1)(net)


def float_result(net: Net) -> onnx.ModelProto:
    net.add("Add", [net.x("x", 2, 4), net.x("z", 2, 4)], "y")
    return net.model([2, 4], floats=True)


def other_scale(net: Net) -> onnx.ModelProto:
    return unary("Transpose", [2, 3], [3, 2], scale=0.1, perm=[1, 0])(net)


def tanh_after(net: Net) -> onnx.ModelProto:
    net.q(net.add("Tanh", [net.add("Add", [net.x("x", 2, 4), net.x("z", 2, 4)], "v")], "t"))
    return net.model([2, 4])


def bad_bias(net: Net) -> onnx.ModelProto:
    inputs = [net.x("x", 5, 16, scale=50.0), net.weight("w", 16, 8), net.constant("b", np.full(8, 0.3, np.float32))]
    net.q(net.add("Gemm", inputs, "v"), scale=0.3)
    return net.model([5, 8])


def scale_of_nothing(net: Net) -> onnx.ModelProto:
    net.q(net.add("Relu", [net.add("Add", [net.x("x", 2, 4), net.x("z", 2, 4)], "v")], "r"), scale=0.0)
    return net.model([2, 4])


@pytest.mark.parametrize(
    ("moved", "out", "scales"),
    [
        ("Transpose <perm = [1, 0]> (x)", "3, 2", 1),
        ("Tile(x, twice)", "4, 3", 1),
        ("Transpose <perm = [1, 0]> (x)", "3, 2", 2),
        ("Gather(x, twice)", "2, 3", 1),
    ],
)
def test_floats_are_quantised_before_they_are_moved(
    moved: str, out: str, scales: int, operators: Callable[[FuseResult], list[str]]
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 19]>
        g (float[2, 3] x) => (int8[{out}] y) <int64[2] twice = {{{"0, 1" if "Gather" in moved else "2, 1"}}}> {{
            m = {moved}
            y = QuantizeLinear(m, s, z)
        }}"""
    )
    size = () if scales == 1 else (scales,)
    model.graph.initializer.append(numpy_helper.from_array(np.full(size, STEP, np.float32), "s"))
    model.graph.initializer.append(numpy_helper.from_array(np.full(size, ZERO, np.int8), "z"))
    result = api.fuse(model, lower="ort")
    if scales == 1 and "Gather" not in moved:
        assert operators(result) == ["QuantizeLinear", moved.split(maxsplit=1)[0].split("(", maxsplit=1)[0]]
        assert result.sites[0].outputs[0].max_abs == 0
    else:
        assert len(operators(result)) == 1, "a scale for each channel, and what leaves elements out, stay"


REFUSED: dict[str, tuple[Callable[[Net], onnx.ModelProto], str]] = {
    "a softmax whose type ends below 1": (softmax_beyond, "QLinearSoftmax does not saturate"),
    "a softmax of one element": (unary("Softmax", [2, 1], scale=1 / 255, axis=-1), "of one element"),
    "a float result": (float_result, "its result is not quantised"),
    "another scale": (other_scale, "different scales"),
    "another function after it": (tanh_after, "Tanh follows Add"),
    "an unknown operator": (unary("Erf", [2, 4]), "no operator is known that means Erf on quantised operands"),
    "an attention of int8": (attention, "the input of QAttention is of uint8"),
    "a negative divisor": (lambda net: div(net, divisor=-6.0), "divided by a negative number"),
    "a hard sigmoid that falls": (unary("HardSigmoid", [2, 4], alpha=-0.2), "its alpha is not positive"),
    "an image between elements": (lambda net: resize(net, mode="linear"), "its mode is linear"),
    "a scale of 0": (scale_of_nothing, "its scale is no positive finite number"),
    "a bias between two units": (bad_bias, "its bias is not a whole number of units"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_island_that_no_operator_fits_stays_with_the_reason(
    case: str, reasons: Callable[[FuseResult], list[str]]
) -> None:
    make, reason = REFUSED[case]
    result = api.fuse(make(Net()), lower="ort")
    assert [node.domain for node in result.model.graph] == ["onnxtile"]
    assert reason in reasons(result)[0]
    assert result.verdict is not None and result.verdict.equal


def test_between_equal_scales_standard_operators_take_what_is_stored(
    operators: Callable[[FuseResult], list[str]],
) -> None:
    assert operators(api.fuse(conv(Net()), ["quantised"], lower="onnx")) == ["QLinearConv"]
    assert operators(api.fuse(reshape(Net()), ["quantised"], lower="onnx")) == ["Reshape"]


def test_a_site_several_steps_off_stays_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is rounding, more are not."""
    right = StoredIsland.to_ort

    def wrong(self: StoredIsland, island: IslandSite) -> Replacement:
        found = right(self, island)
        return replace(found, steps=(replace(found.steps[0], attributes={"alpha": 0.3}),))

    monkeypatch.setattr(StoredIsland, "to_ort", wrong)
    result = api.fuse(unary("LeakyRelu", [2, 99], alpha=0.2)(Net()), lower="ort")
    assert "run alone, the operator is off by" in result.lowered[0].reason
    assert result.verdict is not None and result.verdict.equal


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_of_four_bits_are_as_onnxruntimes_quantiser_writes_them(symmetric: bool) -> None:
    """The QDQ form, lowered, has the very bytes of the QOperator form."""
    random = np.random.default_rng(3)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    constants = {
        "w": random.standard_normal((96, 40)).astype(np.float32),
        "v": random.standard_normal((40, 16)).astype(np.float32),
    }
    proto = build.model(nodes, {"x": (1, [3, 96])}, {"y": (1, [3, 16])}, constants, opset=21)

    def quantised(form: QuantFormat) -> onnx.ModelProto:
        copy = onnx.ModelProto.FromString(proto.SerializeToString())
        quantiser = MatMulNBitsQuantizer(copy, block_size=32, is_symmetric=symmetric, quant_format=form)
        quantiser.process()
        model: onnx.ModelProto = quantiser.model.model
        return model

    theirs = quantised(QuantFormat.QOperator)
    result = api.fuse(quantised(QuantFormat.QDQ), lower="ort")
    mine = [node for node in result.model.graph if node.op_type == "MatMulNBits"]
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in theirs.graph.initializer}
    for node, wanted in zip(mine, [node for node in theirs.graph.node if node.op_type == "MatMulNBits"], strict=True):
        held_here = [value.const_value for value in node.inputs[1:] if value is not None]
        arrays = [tensor.numpy() for tensor in held_here if tensor is not None]
        expected = [held[name] for name in wanted.input[1:]]
        assert [array.tobytes() for array in arrays] == [array.tobytes() for array in expected]
        assert {name: node.attributes[name].as_int() for name in ("K", "N", "bits", "block_size")} == {
            a.name: a.i for a in wanted.attribute if a.name in {"K", "N", "bits", "block_size"}
        }
    assert result.verdict is not None and result.verdict.equal


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [32, 40, 96])
def test_packing_is_undone(bits: int, rows: int) -> None:
    weight: Array = np.random.default_rng(0).integers(0, 1 << bits, (rows, 6)).astype(np.uint8)
    zeros: Array = np.random.default_rng(1).integers(0, 1 << bits, (-(-rows // 32), 6)).astype(np.uint8)
    assert (unpacked_weight(packed_weight(weight, 32, bits), rows, bits) == weight).all()
    assert (unpacked_zeros(packed_zeros(zeros, bits), len(zeros), 6, bits) == zeros).all()
