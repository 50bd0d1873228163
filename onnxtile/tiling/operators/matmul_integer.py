"""MatMulInteger: (A - zero point) · (B - zero point) of bytes, in int32; partial sums add up to the last bit."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Axes, Contraction, TensorOperand, matrix_product, times_sign
from onnxtile.tiling.operators.matmul import factor, placed
from onnxtile.tiling.tileable import BYTES, Tileable, TilingFacts, required_input


class MatMulInteger(Tileable):
    """https://onnx.ai/onnx/operators/onnx__MatMulInteger.html, with one zero point for A and one, or one a column, for B."""

    name = "MatMulInteger"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulInteger with the zero points that belong to it."""
        zeros = tuple(node.inputs[index] if len(node.inputs) > index else None for index in (2, 3))
        return integer_product(node, facts, (required_input(node, 0), required_input(node, 1)), (zeros[0], zeros[1]))


def integer_product(
    node: ir.Node,
    facts: TilingFacts,
    factors: tuple[ir.Value, ir.Value],
    zeros: tuple[ir.Value | None, ir.Value | None],
) -> Contraction:
    """Return the product of two values of bytes, less their zero points. Raises NotApplicable where `node` cannot be cut so."""
    types = [facts.dtype(value, node.op_type, BYTES) for value in factors]
    a, b = (factor(value, side, facts, types[side]) for side, value in enumerate(factors))
    a, b = (replace(o, zero=zero_point(o, side, zeros[side], facts)) for side, o in enumerate((a, b)))
    return matrix_product(a, b, *placed(a, b), ir.DataType.INT32, tile="MatMulInteger")


def zero_point(operand: TensorOperand, side: int, value: ir.Value | None, facts: TilingFacts) -> TensorOperand | None:
    """Return `value` as the zero point of the left (0) or right (1) factor, None where it is missing.

    Raises NotApplicable unless it is a single number, or for the right factor one for each column.
    """
    if value is None:
        return None
    dims = facts.dims(value)
    axes: Axes = (None, None)
    if side == 1 and dims not in {(), (1,)} and dims == (operand.size(1),):
        axes = (None, 0)
    elif dims not in {(), (1,)}:
        raise NotApplicable(f"its zero point {value.name!r} of shape {times_sign(dims)} is not a single number")
    return TensorOperand(value, dims, axes, transposed=False, constant=value in facts.constants, dtype=operand.dtype)


MATMUL_INTEGER = MatMulInteger()
