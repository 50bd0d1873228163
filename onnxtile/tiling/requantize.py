"""From the int32 sum of a block to its result: plus the bias, scaled, rounded to even, shifted by the zero point, saturated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.runtime import Array
from onnxtile.tiling.blocks import Blocks, ConstantBlocks, RuntimeBlocks, WholeBlock
from onnxtile.tiling.contraction import Axes, Bias, Parameter, Requantize, TensorOperand
from onnxtile.tiling.cutting import Cutting
from onnxtile.tiling.grid import Axis
from onnxtile.tiling.tensors import ConstantTable, TensorDims
from onnxtile.tiling.writer import GridPlace, Writer

ONCE = 7
"""The most nodes that make the factor and cut bias and factor, save what each block takes."""
EACH = 4
"""The most nodes that one block takes."""
_ONE = Axis(1, 1)
_Addend: TypeAlias = tuple[ir.Value, TensorDims, Array | None]
"""A value that broadcasts to the result, its dimensions, and its elements where they are constant."""


@dataclass(frozen=True)
class BlockRequantizer:
    """Requantizes one finished block after another, so that no more than one of them is in int32.

    onnxruntime's kernels multiply once, by alpha · a_scale · b_scale / y_scale, computed in float32 from the left. So do these nodes,
    and their results are equal to the last bit.
    """

    writer: Writer
    how: Requantize
    bias: Blocks | None
    factor: Blocks
    one: ir.Value | None
    zero: ir.Value | None

    @classmethod
    def of(cls, writer: Writer, how: Requantize, constants: ConstantTable) -> BlockRequantizer:
        """Return the steps for the blocks that `writer` writes."""
        bias = writer.contraction.bias
        one = zero = None
        if how.y_zero is not None:
            one, zero = writer.constant(ir.Tensor(np.ones((), np.float32)), "one"), how.y_zero.value
            if how.y_zero.constant:
                zero = writer.constant(ir.Tensor(constants.array(zero).reshape(())), "y_zero")
        addend = None if bias is None else _blocks(writer, _of_bias(writer, bias, constants), "bias")
        return cls(writer, how, addend, _blocks(writer, _factor(writer, how, constants), "factor"), one, zero)

    def finish(self, total: ir.Value, at: tuple[int, int], place: GridPlace, dims: TensorDims) -> ir.Value:
        """Write the steps on the block of `dims` at stretches `at` of rows and columns; return its result."""
        if self.bias is not None:
            total = self.writer.node("Add", [total, self.bias.block(*at)], "bias", place, dims)
        to = ir.AttrInt64("to", int(ir.DataType.FLOAT))
        wide = self.writer.node("Cast", [total], "to_float", place, dims, [to], ir.DataType.FLOAT)
        scaled = self.writer.node("Mul", [wide, self.factor.block(*at)], "scale", place, dims, (), ir.DataType.FLOAT)
        if self.zero is None:
            return scaled
        return self.writer.node(
            "QuantizeLinear", [scaled, self.one, self.zero], "quantize", place, dims, (), self.how.dtype
        )


def _blocks(writer: Writer, addend: _Addend, stem: str) -> Blocks:
    """Return the part of a value that broadcasts to the result, for each of its blocks."""
    contraction, grid = writer.contraction, writer.grid
    value, dims, array = addend
    rank = len(contraction.dims)
    aligned = (1,) * (rank - len(dims)) + dims

    def axis_of(axis: int | None) -> int | None:
        return None if axis is None or aligned[axis] == 1 else axis - rank + len(dims)

    rows = None if contraction.windows else axis_of(contraction.row_axes[0])
    axes: Axes = (rows, axis_of(contraction.column_axis))
    dtype = value.dtype or contraction.dtype if array is None else ir.DataType.from_numpy(array.dtype)
    operand = TensorOperand(value, dims, axes, transposed=False, constant=array is not None, dtype=dtype)
    cutting = Cutting(operand, _ONE if rows is None else grid.rows, grid.outputs, (stem, "m", "n"))
    cut = any(
        axis is not None and (cuts.is_cut or cuts.fills)
        for axis, cuts in zip(axes, (cutting.rows, cutting.columns), strict=True)
    )
    if array is None:
        return RuntimeBlocks(cutting, writer) if cut else WholeBlock(value)
    if not cut:
        return WholeBlock(writer.constant(ir.Tensor(array), stem))
    return ConstantBlocks(cutting, writer, lambda: array, {})


def _of_bias(writer: Writer, bias: Bias, constants: ConstantTable) -> _Addend:
    if bias.constant:
        return _over_pixels(writer, (bias.value, bias.dims, constants.array(bias.value)), "bias")
    return _over_pixels(writer, (bias.value, bias.dims, None), "bias")


def _factor(writer: Writer, how: Requantize, constants: ConstantTable) -> _Addend:
    scales = [how.a_scale, how.b_scale, *([] if how.y_scale is None else [how.y_scale])]
    if all(scale.constant for scale in scales):
        a, b, *y = (_array(scale, constants) for scale in scales)
        product = np.float32(how.alpha) * a * b if how.alpha != 1.0 else a * b
        factor = np.asarray(product / y[0] if y else product, np.float32)
        return _over_pixels(writer, (how.b_scale.value, factor.shape, factor), "factor")
    return _over_pixels(writer, (*_computed(writer, how), None), "factor")


def _over_pixels(writer: Writer, addend: _Addend, stem: str) -> _Addend:
    """Return a value with one number for each output channel so that it broadcasts to a convolution's result; others as they are."""
    value, dims, array = addend
    spatial = (1,) * len(writer.contraction.sliding)
    if not writer.contraction.windows or not dims:
        return addend
    if array is not None:
        shaped = array.reshape(-1, *spatial)
        return value, shaped.shape, shaped
    dims = (*dims[:1], *spatial)
    sizes = writer.int64s([-1, *spatial], f"{stem}_sizes")
    dtype = value.dtype or ir.DataType.FLOAT
    return writer.node("Reshape", [value, sizes], f"{stem}_channels", {}, dims, (), dtype), dims, None


def _array(scale: Parameter, constants: ConstantTable) -> Array:
    """Return a scale; without dimensions where it is a single number, so that it fits a result of any rank."""
    array = constants.array(scale.value).astype(np.float32, copy=False)
    return array.reshape(()) if array.size == 1 else array


def _computed(writer: Writer, how: Requantize) -> tuple[ir.Value, TensorDims]:
    """Write the factor's own nodes, where a scale is known only when the model runs."""
    dims: TensorDims = max((how.a_scale.dims, how.b_scale.dims), key=lambda d: (len(d), d))
    factor = how.a_scale.value
    if how.alpha != 1.0:
        alpha = writer.constant(ir.Tensor(np.asarray(how.alpha, np.float32)), "alpha_factor")
        factor = writer.node("Mul", [alpha, factor], "scale_alpha", {}, how.a_scale.dims, (), ir.DataType.FLOAT)
    factor = writer.node("Mul", [factor, how.b_scale.value], "scale_ab", {}, dims, (), ir.DataType.FLOAT)
    if how.y_scale is None:
        return factor, dims
    dims = max((dims, how.y_scale.dims), key=lambda d: (len(d), d))
    return writer.node("Div", [factor, how.y_scale.value], "scale_y", {}, dims, (), ir.DataType.FLOAT), dims
