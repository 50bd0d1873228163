"""com.microsoft's MatMulNBits: a MatMul by weights of few bits, with a scale for each block of K."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable
from onnxtile.tiling.contraction import (
    Bias,
    Contraction,
    PackedFactor,
    Parameter,
    TensorOperand,
    matrix_product,
    times_sign,
)
from onnxtile.tiling.operators.matmul import factor, placed
from onnxtile.tiling.tileable import FLOATS, Tileable, TilingFacts, required_input

_SIZES = {"K", "N"}
_TYPES = {2: ir.DataType.UINT2, 4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class MatMulNBits(Tileable):
    """https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits."""

    name = "MatMulNBits"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        """Return the product. Each tile is a MatMulNBits of whole blocks of K, whose weights, scales and zero points stay as stored."""
        a = factor(required_input(node, 0), 0, facts, facts.dtype(required_input(node, 0), self.name, FLOATS))
        b = _packed(node, facts)
        product = matrix_product(a, b, *placed(a, b), a.dtype, bias=_bias(node, b, facts), tile=self.name)
        attributes = tuple(attribute for name, attribute in node.attributes.items() if name not in _SIZES)
        how = b.packed
        assert how is not None
        return replace(
            product, tile_domain=self.domain, attributes=attributes, units=(how.unit, 1), read=how.parameters
        )


def _packed(node: ir.Node, facts: TilingFacts) -> TensorOperand:
    """Return B. Raises NotApplicable where it or its parameters are no initializers, or its rows have another order."""
    values = [required_input(node, 1), required_input(node, 2), *(v for v in node.inputs[3:4] if v is not None)]
    for value in values:
        if value.const_value is None or not value.is_initializer():
            raise NotApplicable(f"its weights or their parameters, {value.name!r}, are not an initializer")
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        raise NotApplicable("its rows have another order (g_idx)")
    k, n, block, bits = (node.attributes.get_int(name, 4) for name in ("K", "N", "block_size", "bits"))
    if bits not in _TYPES or min(k, n, block) < 1:
        raise NotApplicable(f"its weights have {bits} bits in blocks of {block}")
    blocks = -(-k // block)
    dims = (n, blocks, block * bits // 8)
    scales, *zeros = (Parameter(v, facts.known_dims(v), _dtype(v, facts), constant=True) for v in values[1:])
    how = PackedFactor(dims, bits, block, scales, zeros[0] if zeros else None)
    held = facts.known_dims(values[0])
    along = -(-blocks * bits // 8) if how.packs_zeros else blocks
    wanted = [dims, (n, blocks), *([(n, along)] if zeros else [])]
    for sizes, want in zip((held, *(one.dims for one in how.parameters)), wanted, strict=True):
        if _count(sizes) != _count(want):
            raise NotApplicable(
                f"its weights or their parameters have the shape {times_sign(sizes)}, not {times_sign(want)}"
            )
    return TensorOperand(values[0], (k, n), (0, 1), transposed=False, constant=True, dtype=_TYPES[bits], packed=how)


def _dtype(value: ir.Value, facts: TilingFacts) -> ir.DataType:
    return facts.dtype(value, "MatMulNBits", FLOATS | {ir.DataType.UINT8})


def _count(dims: tuple[int | str | None, ...]) -> int:
    count = 1
    for dim in dims:
        assert isinstance(dim, int)
        count *= dim
    return count


def _bias(node: ir.Node, b: TensorOperand, facts: TilingFacts) -> Bias | None:
    value = node.inputs[5] if len(node.inputs) > 5 else None
    if value is None:
        return None
    dims = facts.known_dims(value)
    if dims != (b.size(1),):
        raise NotApplicable(f"its bias of shape {times_sign(dims)} is not one number for each column")
    return Bias(value, dims, 1.0, value in facts.constants)


MATMUL_NBITS = MatMulNBits()
