"""Products with a transposed tensor become Gemms that read it row by row, so that pieces of its rows need no copy to be joined.

Exporters transpose the keys of attention. The keys of a piece of the tokens would be columns then, and columns are joined by a copy; rows
lie one after the other.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.operators.node_view import STANDARD

_OLDEST = 11
"""The first opset in which Gemm needs no third operand."""
_DEEPEST = 4
"""Products with one number between a Transpose and the product of matrices, at most."""


class Transposed(NamedTuple):
    """A value whose elements, in their order, are the rows of a transposed matrix, and the number that scales them."""

    rows: ir.Value
    scale: float


def read_by_rows(edit: ModelEdit) -> list[ir.Node]:
    """Write products of one matrix with a transposed one as Gemms (in place); return the products that went."""
    changed = []
    for node in list(edit.model.graph) if edit.opset >= _OLDEST else ():
        if node.op_type != "MatMul" or node.domain not in STANDARD or None in node.inputs:
            continue
        left, right = ((value, edit.sizes(value) or ()) for value in node.inputs if value is not None)
        is_one = all(len(sizes) > 1 and prod(sizes[:-2]) == 1 for _, sizes in (left, right))
        turned = _transposed(edit, right[0]) if is_one and edit.dtype(left[0]) == ir.DataType.FLOAT else None
        if turned is not None:
            _write(edit, node, left[0], turned)
            changed.append(node)
    return changed


def _transposed(edit: ModelEdit, value: ir.Value, depth: int = 0) -> Transposed | None:
    """Return the rows of which a matrix is the transpose; None where it is not made so."""
    node, sizes = value.producer(), edit.sizes(value) or ()
    if node is None or node.domain not in STANDARD or value in edit.constants or depth > _DEEPEST:
        return None
    operand, factor = (*node.inputs, None)[:2]
    if node.op_type == "Mul" and operand is not None and factor is not None and factor in edit.constants:
        number = edit.constants.array(factor)
        inner = _transposed(edit, operand, depth + 1) if number.size == 1 and edit.sizes(operand) == sizes else None
        return None if inner is None else inner._replace(scale=inner.scale * float(number.item()))
    if node.op_type != "Transpose" or operand is None:
        return None
    order = node.attributes.get_ints("perm") or range(len(sizes))[::-1]
    long = [axis for axis in order if (edit.sizes(operand) or ())[axis] > 1]
    is_turned = min(sizes[-2:]) > 1 and len(long) == 2 and long[0] > long[1]
    return Transposed(operand, 1.0) if is_turned else None


def _write(edit: ModelEdit, node: ir.Node, left: ir.Value, right: Transposed) -> None:
    result = node.outputs[0]
    sizes, dtype = edit.sizes(result) or (), edit.dtype(result)
    rows, summed, columns = (edit.sizes(left) or ())[-2], (edit.sizes(left) or ())[-1], sizes[-1]

    def flat(value: ir.Value, *length: int) -> ir.Value:
        shaped = edit.value(f"{value.name}/flat", length, dtype)
        return edit.add(node, "Reshape", [value, edit.constant(f"{value.name}/sizes", np.asarray(length))], shaped)

    product = edit.value(f"{result.name}/product", (rows, columns), dtype)
    attributes = [ir.AttrInt64("transB", 1), ir.AttrFloat32("alpha", right.scale)]
    edit.add(node, "Gemm", [flat(left, rows, summed), flat(right.rows, columns, summed)], product, attributes)
    edit.replace(result, flat(product, *sizes))
    edit.model.graph.remove(node, safe=True)
