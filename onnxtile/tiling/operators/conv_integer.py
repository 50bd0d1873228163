"""ConvInteger: a convolution of bytes with their zero points taken off, in int32; partial sums add up to the last bit."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Contraction, Parameter, TensorOperand
from onnxtile.tiling.operators.conv import sliding_product
from onnxtile.tiling.operators.matmul_integer import zero_point
from onnxtile.tiling.tileable import BYTES, Tileable, TilingFacts, required_input


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
