"""MatMul of matrices, vectors and batches of them."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Axes, Contraction, TensorDims, TensorOperand, broadcast, matrix_product
from onnxtile.tiling.tileable import Tileable, TilingFacts, required_input


class MatMul(Tileable):
    """https://onnx.ai/onnx/operators/onnx__MatMul.html, which multiplies as numpy.matmul does."""

    name = "MatMul"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. A vector on the left is one row, on the right one column, and the result lacks that axis.

        The axes before the last two are a batch, which broadcasts and is not cut.
        """
        dtype = facts.dtype(required_input(node, 0))
        a, b = (factor(required_input(node, side), side, facts, dtype) for side in (0, 1))
        return matrix_product(a, b, *placed(a, b), dtype)


def placed(a: TensorOperand, b: TensorOperand) -> tuple[TensorDims, Axes]:
    """Return the dimensions of the product of `a` and `b`, and where its rows and columns lie.

    Raises NotApplicable where batches differ.
    """
    rows, columns = ((o.size(side),) if o.axes[side] is not None else () for side, o in enumerate((a, b)))
    batch = broadcast(a.batch, b.batch)
    return batch + rows + columns, (len(batch) if rows else None, len(batch) + len(rows) if columns else None)


def factor(value: ir.Value, side: int, facts: TilingFacts, dtype: ir.DataType) -> TensorOperand:
    """Return `value`, of elements of `dtype`, as the left (0) or right (1) factor. Raises NotApplicable for a scalar."""
    facts.require_dtype(value, dtype)
    dims = facts.dims(value)
    if not dims:
        raise NotApplicable("an operand is a scalar")
    last = len(dims) - 1
    axes: Axes = (last - 1, last)
    if last == 0:
        axes = (None, 0) if side == 0 else (0, None)
    return TensorOperand(value, dims, axes, transposed=False, constant=value in facts.constants, dtype=dtype)


MATMUL = MatMul()
