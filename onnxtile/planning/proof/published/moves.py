"""Whether a meta-op only gives a quantised tensor another shape, read from its body and the numbers of its scales."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.planning.proof.published.evidence import GraphFacts
from onnxtile.planning.proof.published.operators import SAME_ELEMENTS

_EIGHT_BITS = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_LEAST_SCALE = 2.0**-126
"""The smallest normal float32: of a subnormal scale a quotient may round to another step."""


def moves_quantised(node: ir.Node, known: GraphFacts) -> bool:
    """Return whether the body of the meta-op `node` dequantises operand 0, at most reshapes it, and quantises it as it was.

    Quotient and product of one normal scale differ by less than half a step from the whole number, so every element comes back.
    """
    function = known.model.functions.get(node.op_identifier())
    if function is None or len(function.inputs) != len(node.inputs) or len(function.outputs) != 1:
        return False
    body = list(function)
    if not 2 <= len(body) <= 3 or [body[0].op_type, body[-1].op_type] != ["DequantizeLinear", "QuantizeLinear"]:
        return False
    first, last, between = body[0], body[-1], body[1:-1]
    if any(one.op_type not in SAME_ELEMENTS - {"Cast", "CastLike", "Dropout"} for one in between):
        return False
    chain = [function.inputs[0], *(one.outputs[0] for one in body)]
    wired = all(one.inputs[0] is value for one, value in zip(body, chain, strict=False))
    return (
        wired
        and function.outputs[0] is chain[-1]
        and _are_alike(first, last, dict(zip(function.inputs, node.inputs, strict=True)), known)
    )


def _are_alike(first: ir.Node, last: ir.Node, operands: dict[ir.Value, ir.Value | None], known: GraphFacts) -> bool:
    """Return whether both have one scale and one zero point, known numbers, for the whole tensor."""
    if len(first.inputs) != 3 or len(last.inputs) != 3:
        return False
    arrays = []
    for inner in (*first.inputs[1:], *last.inputs[1:]):
        value = None if inner is None else operands.get(inner)
        if value is None or value not in known.constants or known.constants.array(value).size != 1:
            return False
        arrays.append(known.constants.array(value))
    scale, zero, other_scale, other_zero = (array.ravel()[0] for array in arrays)
    is_same = scale == other_scale and zero == other_zero and arrays[0].dtype == arrays[2].dtype
    same_type = arrays[1].dtype == arrays[3].dtype and ir.DataType.from_numpy(arrays[1].dtype) in _EIGHT_BITS
    return bool(is_same and same_type and _LEAST_SCALE <= float(scale) < float("inf"))
