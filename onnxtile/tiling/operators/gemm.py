"""Gemm: alpha · A' · B' + beta · C."""

from __future__ import annotations

from collections.abc import Set

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import Bias, Contraction, TensorDims, TensorOperand, matrix_product, times_sign
from onnxtile.tiling.tileable import FLOATS, INTEGERS, Tileable, TilingFacts, require_factor, required_input


class Gemm(Tileable):
    """https://onnx.ai/onnx/operators/onnx__Gemm.html; C may be absent since opset 11, and broadcasts to (M, N) one way only."""

    name = "Gemm"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product, with the bias where there is one."""
        a = factor(node, 0, "transA", facts)
        b = factor(node, 1, "transB", facts)
        dtype = facts.dtype(a.value)
        facts.require_dtype(b.value, dtype)
        alpha = node.attributes.get_float("alpha", 1.0)
        require_factor("alpha", alpha, dtype)
        dims = (a.size(0), b.size(1))
        added = bias(node, node.inputs[2] if len(node.inputs) > 2 else None, dims, dtype, facts)
        return matrix_product(a, b, dims, (0, 1), dtype, alpha=alpha, bias=added)


def factor(node: ir.Node, index: int, attribute: str, facts: TilingFacts) -> TensorOperand:
    """Return input `index` as a factor, transposed where `attribute` says so. Raises NotApplicable where it is not a matrix."""
    return matrix_factor(node, required_input(node, index), attribute, facts)


def matrix_factor(
    node: ir.Node, value: ir.Value, attribute: str, facts: TilingFacts, taken: Set[ir.DataType] = FLOATS | INTEGERS
) -> TensorOperand:
    """Return `value` as a factor, transposed where `attribute` of `node` says so. Raises NotApplicable where it is not a matrix."""
    dims = facts.dims(value)
    if len(dims) != 2:
        raise NotApplicable(f"{value.name!r} has {len(dims)} dimensions, Gemm multiplies matrices")
    transposed = bool(node.attributes.get_int(attribute, 0))
    return TensorOperand(
        value,
        dims[::-1] if transposed else dims,
        (0, 1),
        transposed,
        value in facts.constants,
        facts.dtype(value, node.op_type, taken),
    )


def bias(
    node: ir.Node, value: ir.Value | None, dims: TensorDims, dtype: ir.DataType, facts: TilingFacts
) -> Bias | None:
    """Return `value` as the bias, None where it is missing. Raises NotApplicable where it does not broadcast to `dims`."""
    beta = node.attributes.get_float("beta", 1.0)
    if value is None:
        return None
    if beta != 0.0:
        require_factor("beta", beta, dtype)
    facts.require_dtype(value, dtype)
    sizes = facts.dims(value)
    # Aligned at the last axis, each size must be 1 or the size of the result.
    pairs = list(zip(range(len(sizes))[::-1], sizes[::-1], dims[::-1], strict=False))
    for axis, size, full in pairs:
        if not isinstance(size, int) and (size is None or size != full):
            raise NotApplicable(facts.unknown(value, axis))
    if len(sizes) > 2 or any(size not in {1, full} for _, size, full in pairs):
        raise NotApplicable(f"its bias of shape {times_sign(sizes)} does not broadcast to {times_sign(dims)}")
    return Bias(value, sizes, beta, value in facts.constants)


GEMM = Gemm()
