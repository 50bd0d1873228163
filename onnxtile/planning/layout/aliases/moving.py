"""Nodes that only join or cut tensors: also a quantised island, and a QLinearConcat, whose scales are all equal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.model.constants import Constants
from onnxtile.model.quantising import dequantises, quantises

_AXIS = {"Concat": 1, "Slice": 0, "Split": 0}
"""The axis where the attribute is missing."""


@dataclass(frozen=True)
class Move:
    """A Concat, Split or Slice of `operands`, of which a Split or Slice reads the first alone, along `axis`."""

    op_type: str
    operands: Sequence[ir.Value | None]
    results: Sequence[ir.Value]
    axis: int


def standard_move(node: ir.Node) -> Move | None:
    """Return what `node`, of the ONNX specification, moves; None for an operator that computes."""
    if node.op_type not in _AXIS or not node.inputs or not node.outputs:
        return None
    return Move(node.op_type, node.inputs, node.outputs, node.attributes.get_int("axis", _AXIS[node.op_type]))


def quantised_move(call: ir.Node, model: ir.Model) -> Move | None:
    """Return what `call` moves, a quantised island that fuse marked as a view; None for any other call."""
    function = model.functions.get(call.op_identifier())
    if function is None or keys.VIEW not in function.metadata_props:
        return None
    inner = next((node for node in function if not quantises(node) and not dequantises(node)), None)
    moved = None if inner is None else standard_move(inner)
    if moved is None:
        return None
    given = dict(zip(function.inputs, call.inputs, strict=False))
    made = dict(zip(function.outputs, call.outputs, strict=False))
    makers = [None if value is None else value.producer() for value in moved.operands]
    stored = [None if maker is None or not dequantises(maker) else maker.inputs[0] for maker in makers]
    operands = [None if value is None else given.get(value) for value in stored]
    readers = [next(iter(value.consumers()), None) for value in moved.results]
    results = [made.get(reader.outputs[0]) for reader in readers if reader is not None and quantises(reader)]
    known = tuple(value for value in results if value is not None)
    return Move(moved.op_type, operands, known, moved.axis) if len(known) == len(moved.results) else None


def joins_quantised(node: ir.Node, model: ir.Model, constants: Constants) -> Move | None:
    """Return what `node`, a QLinearConcat of operands quantised as its result, joins; None for any other node."""
    is_join = node.op_type == "QLinearConcat" and node.domain == "com.microsoft"
    if not is_join or node.op_identifier() in model.functions or len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        return None
    written = _numbers(node.inputs[:2], constants)
    read = [_numbers(node.inputs[place : place + 2], constants) for place in range(3, len(node.inputs), 3)]
    if written is None or any(numbers != written for numbers in read):
        return None
    return Move("Concat", node.inputs[2::3], node.outputs, node.attributes.get_int("axis", _AXIS["Concat"]))


def _numbers(pair: Sequence[ir.Value | None], constants: Constants) -> tuple[float, int] | None:
    """Return the scale and the zero point of `pair` where both are known, and the scale is finite and no subnormal."""
    if any(value is None or value not in constants for value in pair):
        return None
    scale, zero = (constants.array(value) for value in pair if value is not None)
    if scale.size != 1 or zero.size != 1 or not math.isfinite(scale.item()):
        return None
    return (float(scale.item()), int(zero.item())) if scale.item() > float(np.finfo(np.float32).tiny) else None
