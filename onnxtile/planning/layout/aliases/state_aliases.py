"""Aliases of states: a result that an operator writes over the operand that holds the value before, where both are one state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.model.body_shapes import CONTROL_FLOW
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.states.state_operators import OVER, operands_of_state

if TYPE_CHECKING:
    from onnxtile.planning.layout.aliases.find import LayoutFacts


def over_states(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield each result of `node` with the operand that it may be written over, because both are one state of the graph.

    The result may be longer along one axis. Views between these and the input and output of the graph make no difference. The results of
    bodies are moved out of them when these have ended, and have read what they capture.
    """
    if not facts.states or node.op_identifier() in facts.model.functions:
        return
    pairs = _captured(node) if node.op_type in CONTROL_FLOW and facts.is_standard(node) else _appended(node, facts)
    for result, operand in pairs:
        if result.name and facts.states.get(facts.root(operand)) is result and _holds(result, operand, facts):
            yield result, operand


def _captured(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    read = tuple(dict.fromkeys(dependencies(node)))
    return ((result, operand) for result in node.outputs for operand in read)


def _appended(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[ir.Value, ir.Value]]:
    if node.op_type not in OVER:
        return
    for place, index in operands_of_state(node, is_standard=facts.is_standard(node)).items():
        operand = node.inputs[index] if index < len(node.inputs) else None
        if operand is not None and place < len(node.outputs) and sum(value is operand for value in node.inputs) == 1:
            yield node.outputs[place], operand


def _holds(result: ir.Value, operand: ir.Value, facts: LayoutFacts) -> bool:
    """Return whether both have known bytes of one type, and `result` has at least those of `operand`."""
    sizes = [tensor_bytes(value, facts.shapes) for value in (operand, result)]
    dtype = facts.shapes.dtype(result)
    if None in sizes or dtype is None or dtype.bitwidth < 8 or dtype != facts.shapes.dtype(operand):
        return False
    return (sizes[0] or 0) <= (sizes[1] or 0)
