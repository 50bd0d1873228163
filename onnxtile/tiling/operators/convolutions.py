"""Conv and its kin as contractions: in one or two dimensions, in groups, transposed, of integers and quantised."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.reads import SlidingAxis
from onnxtile.tiling.contraction import Bias, Contraction, Parameter, Requantize, TensorDims, TensorOperand, times_sign
from onnxtile.tiling.operators.products import parameter, zero_point
from onnxtile.tiling.tileable import BYTES, FLOATS, Tileable, TilingFacts, required_input

_PADDING = ("auto_pad", "pads", "output_padding", "output_shape")
_SPATIAL_AXES = (1, 2)


class Conv(Tileable):
    """https://onnx.ai/onnx/operators/onnx__Conv.html.

    M are the pixels of the output, K the input channels of a group times the kernel's elements, N the output channels of a group.
    """

    name = "Conv"
    windows = True

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction. Each tile is a Conv of some groups, rows, columns, input and output channels."""
        return convolution(node, facts, transposed=False)


def convolution(node: ir.Node, facts: TilingFacts, *, transposed: bool) -> Contraction:
    """Return the contraction that `node` computes. Raises NotApplicable with the reason where it cannot be cut."""
    x, w = required_input(node, 0), required_input(node, 1)
    dtype = facts.dtype(x, node.op_type, FLOATS)
    facts.require_dtype(w, dtype)
    found = sliding_product(node, facts, (x, w), (dtype, dtype, dtype), transposed=transposed)
    return replace(found, tile_bias=_bias(node, facts, found.groups * filters_of(found), dtype))


def filters_of(contraction: Contraction) -> int:
    """Return the output channels of one group of a convolution, which are known."""
    assert isinstance(contraction.filters, int)
    return contraction.filters


def sliding_product(
    node: ir.Node,
    facts: TilingFacts,
    factors: tuple[ir.Value, ir.Value],
    types: tuple[ir.DataType, ir.DataType, ir.DataType],
    *,
    transposed: bool = False,
) -> Contraction:
    """Return the convolution of two values with the attributes of `node`, without a bias; `types` are those of both and of the result.

    Raises NotApplicable with the reason where it cannot be cut.
    """
    x_value, w_value = factors
    dims, kernel = facts.dims(x_value), facts.known_dims(w_value)
    rank = len(dims) - 2
    if rank not in _SPATIAL_AXES:
        raise NotApplicable(f"it slides along {rank} axes: convolutions along one or two are cut")
    if len(kernel) != len(dims):
        raise NotApplicable(f"its weights of shape {times_sign(kernel)} do not fit an input of {len(dims)} dimensions")
    groups = node.attributes.get_int("group", 1)
    if not isinstance(dims[1], int):
        raise NotApplicable(facts.unknown(x_value, 1))
    channels, filters = _channels(kernel, groups, dims[1], transposed=transposed)
    slides = tuple(slide.over(dims[2 + i]) for i, slide in enumerate(_slides(node, kernel[2:], transposed=transposed)))
    out = _result(node, facts, slides, (dims[0], groups * filters))
    if any(isinstance(size, int) and size < 1 for size in (*dims, *kernel, *out)):
        raise NotApplicable("a convolution without elements")
    attributes = tuple(a for name, a in node.attributes.items() if name not in {*_PADDING, "group"})
    padding = tuple(a for name, a in node.attributes.items() if name in _PADDING)
    w = TensorOperand(w_value, kernel, (0, 1) if transposed else (1, 0), False, w_value in facts.constants, types[1])
    return Contraction(
        left=TensorOperand(
            x_value, dims, (None, 1), transposed=False, constant=x_value in facts.constants, dtype=types[0]
        ),
        right=w,
        dims=out,
        row_axes=tuple(range(2, 2 + rank)),
        column_axis=1,
        dtype=types[2],
        sliding=slides,
        channels=channels,
        filters=filters,
        batches=((dims[0],), (), (dims[0],)),
        groups=groups,
        windows=True,
        groups_in_k=transposed,
        letters=("x", "w"),
        tile=node.op_type,
        attributes=attributes,
        padding=padding,
    )


def _channels(kernel: tuple[int, ...], groups: int, channels: int, *, transposed: bool) -> tuple[int, int]:
    """Return the input and output channels of a group. Raises NotApplicable where weights and input do not fit."""
    first, second = kernel[:2]
    inputs = first if transposed else second * groups
    if groups < 1 or first % groups or inputs != channels:
        raise NotApplicable(
            f"its weights of shape {times_sign(kernel)} in {groups} groups do not fit {channels} input channels"
        )
    return (first // groups, second) if transposed else (second, first // groups)


def _slides(node: ir.Node, kernel: tuple[int, ...], *, transposed: bool) -> list[SlidingAxis]:
    rank = len(kernel)

    def ints(name: str, default: int, count: int = rank) -> list[int]:
        return list(node.attributes.get_ints(name, [default] * count) or [])

    pads = ints("pads", 0, 2 * rank)
    strides, dilations, extra = ints("strides", 1), ints("dilations", 1), ints("output_padding", 0)
    wanted = ints("output_shape", 0)[-rank:] if "output_shape" in node.attributes else [None] * rank
    if any(len(each) != size for each, size in ((pads, 2 * rank), (strides, rank), (dilations, rank), (extra, rank))):
        raise NotApplicable(f"its attributes are not for {rank} spatial axes")
    if min(pads) < 0:
        raise NotApplicable("its padding is negative")
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    return [
        SlidingAxis(
            kernel=kernel[i],
            stride=strides[i],
            dilation=dilations[i],
            before=pads[i],
            after=pads[rank + i],
            output_padding=extra[i],
            auto=auto,
            wanted=wanted[i],
            transposed=transposed,
        )
        for i in range(rank)
    ]


def _result(node: ir.Node, facts: TilingFacts, slides: tuple[SlidingAxis, ...], first: TensorDims) -> TensorDims:
    """Return the dimensions of the result, symbols where the shapes' table has them."""
    table = facts.shapes.dims(node.outputs[0]) or ()
    known = table[2:] if len(table) == 2 + len(slides) else (None,) * len(slides)
    sizes = (slide.out if isinstance(slide.out, int) else dim for slide, dim in zip(slides, known, strict=True))
    return (*first, *sizes)


def _bias(node: ir.Node, facts: TilingFacts, filters: int, dtype: ir.DataType) -> TensorOperand | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    facts.require_dtype(value, dtype)
    dims = facts.known_dims(value)
    if dims != (filters,):
        raise NotApplicable(
            f"its bias of shape {times_sign(dims)} is not one number for each of {filters} output channels"
        )
    return TensorOperand(value, dims, (None, 0), transposed=False, constant=value in facts.constants, dtype=dtype)


CONV = Conv()


# ConvInteger: a convolution of bytes with their zero points taken off, in int32; partial sums add up to the last bit.


class ConvInteger(Tileable):
    """https://onnx.ai/onnx/operators/onnx__ConvInteger.html, with one zero point for X and one for W."""

    name = "ConvInteger"
    windows = True

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction. Each tile is a ConvInteger with the zero points of the whole."""
        zeros = tuple(node.inputs[index] if len(node.inputs) > index else None for index in (2, 3))
        return integer_convolution(
            node, facts, (required_input(node, 0), required_input(node, 1)), (zeros[0], zeros[1])
        )


def integer_convolution(
    node: ir.Node,
    facts: TilingFacts,
    factors: tuple[ir.Value, ir.Value],
    zeros: tuple[ir.Value | None, ir.Value | None],
) -> Contraction:
    """Return the convolution of two values of bytes, less their zero points, with the attributes of `node`.

    Raises NotApplicable where a zero point is not a single number: onnxruntime has no kernel for others.
    """
    types = [facts.dtype(value, node.op_type, BYTES) for value in factors]
    found = sliding_product(node, facts, factors, (types[0], types[1], ir.DataType.INT32))
    left = replace(found.left, zero=zero_point(found.left, 0, zeros[0], facts))
    right = replace(found.right, zero=_one_zero(found.right, zeros[1], facts))
    # The node reads a zero point of 0, its tiles do not.
    read = () if zeros[1] is None or right.zero is not None else (_parameter(zeros[1], right, facts),)
    return replace(found, left=left, right=right, read=read, tile="ConvInteger")


def _parameter(value: ir.Value, operand: TensorOperand, facts: TilingFacts) -> Parameter:
    return Parameter(value, facts.dims(value), operand.dtype, value in facts.constants)


def _one_zero(w: TensorOperand, value: ir.Value | None, facts: TilingFacts) -> TensorOperand | None:
    """Return the zero point of the weights, None where it is 0; of many equal ones the first is the one that counts."""
    if value is not None and value in facts.constants:
        array = facts.constants.array(value)
        if not array.any():
            return None
        if (array == array.flat[0]).all():
            return TensorOperand(value, array.shape, (None, None), transposed=False, constant=True, dtype=w.dtype)
    zero = zero_point(w, 1, value, facts)
    if zero is not None and zero.axes != (None, None):
        raise NotApplicable(f"its weights have a zero point for each output channel, {zero.value.name!r}")
    return zero


CONV_INTEGER = ConvInteger()


# ConvTranspose in one or two dimensions, in groups.


class ConvTranspose(Tileable):
    """https://onnx.ai/onnx/operators/onnx__ConvTranspose.html.

    M are the pixels of the output, K the input channels of a group times the kernel's elements, N the output channels of a group.
    """

    name = "ConvTranspose"
    windows = True

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction. Each tile is a ConvTranspose of some groups, rows, columns, input and output channels."""
        return convolution(node, facts, transposed=True)


CONV_TRANSPOSE = ConvTranspose()


# QLinearConv: a ConvInteger and an int32 bias, scaled and quantized; tiles add up in int32, to the last bit.


class QLinearConv(Tileable):
    """https://onnx.ai/onnx/operators/onnx__QLinearConv.html, with one scale for X and Y, and one, or one a channel, for W."""

    name = "QLinearConv"
    windows = True

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the contraction. Each tile is a ConvInteger; each finished block is scaled and quantized once."""
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (required_input(node, index) for index in range(8))
        found = integer_convolution(node, facts, (x, w), (x_zero, w_zero))
        zero = parameter(node, y_zero, None, found, facts)
        dtype = facts.dtype(y_zero, self.name, BYTES)
        scales = [
            parameter(node, value, columns, found, facts)
            for value, columns in ((x_scale, None), (w_scale, found.right), (y_scale, None))
        ]
        requantize = Requantize(scales[0], scales[1], scales[2], zero, dtype)
        bias = channel_bias(node.inputs[8] if len(node.inputs) > 8 else None, found, facts)
        return replace(found, bias=bias, requantize=requantize)


def channel_bias(value: ir.Value | None, found: Contraction, facts: TilingFacts) -> Bias | None:
    """Return an int32 bias of a convolution, None where it is missing. Raises NotApplicable unless it has one number for each channel."""
    if value is None:
        return None
    facts.require_dtype(value, ir.DataType.INT32)
    dims, filters = facts.known_dims(value), found.groups * filters_of(found)
    if dims != (filters,):
        raise NotApplicable(
            f"its bias of shape {times_sign(dims)} is not one number for each of {filters} output channels"
        )
    return Bias(value, dims, 1.0, value in facts.constants)


QLINEAR_CONV = QLinearConv()
