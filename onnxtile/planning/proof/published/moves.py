"""Whether a meta-op only joins or cuts quantised tensors, or gives one another shape, read from its body and the numbers of its scales."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.planning.proof.published.evidence import GraphFacts
from onnxtile.planning.proof.published.operators import JOINS, SAME_ELEMENTS, STANDARD

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


@dataclass(frozen=True)
class Boxes:
    """A Concat of `operands`, or a Split of the first of them, along `axis`."""

    operator: str
    operands: tuple[ir.Value | None, ...]
    results: tuple[ir.Value, ...]
    axis: int


def boxes_of_quantised(node: ir.Node, known: GraphFacts) -> Boxes | None:
    """Return the operands and results that the meta-op `node` joins or cuts, each dequantised before and quantised as it was after."""
    function = known.model.functions.get(node.op_identifier())
    if function is None or len(function.inputs) != len(node.inputs) or len(function.outputs) != len(node.outputs):
        return None
    between = [one for one in function if one.op_type not in {"DequantizeLinear", "QuantizeLinear"}]
    if len(between) != 1 or between[0].op_type not in JOINS | {"Split"} or between[0].domain not in STANDARD:
        return None
    (moving,) = between
    read = moving.inputs if moving.op_type in JOINS else moving.inputs[:1]
    before = [None if value is None else value.producer() for value in read]
    after = [next((user for user in function if user.inputs[0] is value), None) for value in moving.outputs]
    if len(function) != len({*before, *after, moving}) or None in before or None in after:
        return None
    first, last = [one for one in before if one is not None], [one for one in after if one is not None]
    given = dict(zip(function.inputs, node.inputs, strict=True))
    made = dict(zip(function.outputs, node.outputs, strict=True))
    if any(one.op_type != "DequantizeLinear" for one in first) or any(one.op_type != "QuantizeLinear" for one in last):
        return None
    alike = all(_are_alike(one, other, given, known) for one in first for other in last)
    if not alike or any(one.inputs[0] not in given for one in first) or any(one.outputs[0] not in made for one in last):
        return None
    operands = tuple(given[one.inputs[0]] for one in first if one.inputs[0] is not None)
    results = tuple(made[one.outputs[0]] for one in last)
    axis = moving.attributes.get_int("axis", 1 if moving.op_type in JOINS else 0)
    return Boxes(moving.op_type, operands, results, axis)


def boxes_of_joined(node: ir.Node, known: GraphFacts) -> Boxes | None:
    """Return the operands that `node`, a QLinearConcat of onnxruntime, joins where each is quantised as the result is.

    Its inputs are the scale and the zero point of the result, then an operand, its scale and its zero point, and so on.
    """
    if (node.domain, node.op_type) != ("com.microsoft", "QLinearConcat"):
        return None
    scales, zeros, operands = (
        [*node.inputs[0:1], *node.inputs[3::3]],
        [*node.inputs[1:2], *node.inputs[4::3]],
        node.inputs[2::3],
    )
    if node.op_identifier() in known.model.functions or not len(scales) == len(zeros) == len(operands) + 1:
        return None
    pairs = [_scale_and_zero(scale, zero, known) for scale, zero in zip(scales, zeros, strict=True)]
    if pairs[0] is None or any(pair != pairs[0] for pair in pairs):
        return None
    return Boxes("Concat", tuple(operands), (node.outputs[0],), node.attributes.get_int("axis", 1))


def _scale_and_zero(scale: ir.Value | None, zero: ir.Value | None, known: GraphFacts) -> tuple[float, int] | None:
    if scale is None or zero is None or scale not in known.constants or zero not in known.constants:
        return None
    factor, origin = known.constants.array(scale), known.constants.array(zero)
    if factor.size != 1 or origin.size != 1 or not _LEAST_SCALE <= factor.item() < float("inf"):
        return None
    return float(factor.item()), int(origin.item())


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
