"""A product with a weight in blocks of 4 or 8 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import unpacked_weight, unpacked_zeros
from onnxtile.fusion.lower.lowering import Literal, NotLowered, Operand, Replacement
from onnxtile.fusion.lower.operator_lowering import OperatorLowering, OperatorSite, QdqSteps
from onnxtile.system.runtime import Array

_STORED = {4: ir.DataType.UINT4, 8: ir.DataType.UINT8}


class MatMulNBitsToQdq(OperatorLowering):
    """MatMulNBits of onnxruntime's docs/ContribOperators.md."""

    name = "com.microsoft::MatMulNBits"

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Return MatMul with a weight of unsigned integers that is dequantised by blocks, and the sum with the bias."""
        given = {name: site.node.attributes.get_int(name, 0) for name in ("K", "N", "bits", "block_size")}
        rows, columns, bits, block = given["K"], given["N"], given["bits"] or 4, given["block_size"]
        if bits not in _STORED or block < 1 or site.argument(4) is not None:
            raise NotLowered("its weight has another form than blocks of 4 or 8 bits in the order of its rows")
        count, dtype = -(-rows // block), _STORED[bits]
        scales = site.elements(2).reshape(columns, count)
        weight = unpacked_weight(site.elements(1).reshape(columns, count, -1), rows, bits)
        zeros = np.full((count, columns), 1 << (bits - 1), np.uint8)
        if site.argument(3) is not None:
            zeros = unpacked_zeros(_bytes(site.elements(3)), count, columns, bits)
        steps = QdqSteps(site)
        operands: list[Operand] = [
            Literal(weight.astype(dtype.numpy()), dtype, "weight"),
            Literal(np.ascontiguousarray(scales.T), ir.DataType.from_numpy(scales.dtype), "scales"),
            Literal(zeros.astype(dtype.numpy()), dtype, "zero_points"),
        ]
        made = steps.compute("MatMul", (site.operand(0), steps.dequantised(operands, axis=0, block=block)), {}, since=1)
        return steps.finished(steps.summed(made, 5), len(site.arguments), len(site.arguments))


def _bytes(zeros: Array) -> Array:
    if zeros.dtype != np.uint8:
        raise NotLowered("its zero points are floats")
    return zeros


MATMUL_NBITS = MatMulNBitsToQdq()
