"""Nodes that only join or cut tensors, also as a quantised island whose scales are all equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
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
