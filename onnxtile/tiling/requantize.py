"""From the int32 sum of a quantized product to its result: scaled, rounded to even, shifted by the zero point, saturated."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.tiling.contraction import Parameter, Requantize
from onnxtile.tiling.tensors import ConstantTable, TensorDims
from onnxtile.tiling.writer import Writer

MOST_NODES = 6


def requantize(writer: Writer, total: ir.Value, how: Requantize, constants: ConstantTable) -> ir.Value:
    """Write Cast, Mul and QuantizeLinear on the whole result: the steps of onnxruntime's kernels, so equal to the last bit.

    They multiply once, by alpha · a_scale · b_scale / y_scale, computed in float32 from the left.
    """
    dims = writer.contraction.dims
    to = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    wide = writer.node("Cast", [total], "to_float", {}, dims, [to], ir.DataType.FLOAT)
    scaled = writer.node("Mul", [wide, _factor(writer, how, constants)], "scale", {}, dims, (), ir.DataType.FLOAT)
    if how.y_zero is None:
        return scaled
    one = writer.constant(ir.Tensor(np.ones((), np.float32)), "one")
    zero = how.y_zero.value
    if how.y_zero.constant:
        zero = writer.constant(ir.Tensor(constants.array(zero).reshape(())), "y_zero")
    return writer.node("QuantizeLinear", [scaled, one, zero], "quantize", {}, dims, (), how.dtype)


def _factor(writer: Writer, how: Requantize, constants: ConstantTable) -> ir.Value:
    scales = [how.a_scale, how.b_scale, *([] if how.y_scale is None else [how.y_scale])]
    if all(scale.constant for scale in scales):
        a, b, *y = (_array(scale, constants) for scale in scales)
        product = np.float32(how.alpha) * a * b if how.alpha != 1.0 else a * b
        factor = np.asarray(product / y[0] if y else product, np.float32)
        return writer.constant(ir.Tensor(factor), "factor")
    return _computed(writer, how)


def _array(scale: Parameter, constants: ConstantTable) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return a scale; without dimensions where it is a single number, so that it fits a result of any rank."""
    array = constants.array(scale.value).astype(np.float32, copy=False)
    return array.reshape(()) if array.size == 1 else array


def _computed(writer: Writer, how: Requantize) -> ir.Value:
    """Write the factor's own nodes, where a scale is known only when the model runs."""
    dims: TensorDims = max((how.a_scale.dims, how.b_scale.dims), key=lambda d: (len(d), d))
    factor = how.a_scale.value
    if how.alpha != 1.0:
        alpha = writer.constant(ir.Tensor(np.asarray(how.alpha, np.float32)), "alpha_factor")
        factor = writer.node("Mul", [alpha, factor], "scale_alpha", {}, how.a_scale.dims, (), ir.DataType.FLOAT)
    factor = writer.node("Mul", [factor, how.b_scale.value], "scale_ab", {}, dims, (), ir.DataType.FLOAT)
    if how.y_scale is None:
        return factor
    dims = max((dims, how.y_scale.dims), key=lambda d: (len(d), d))
    return writer.node("Div", [factor, how.y_scale.value], "scale_y", {}, dims, (), ir.DataType.FLOAT)
