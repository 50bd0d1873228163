"""Proofs of meta-ops that are made of standard operators only: these are written in place of the call."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from onnxtile.fusion.lowering import CallSite, Literal, Made, NewNode, NotLowered, Operand, Replacement, Setting
from onnxtile.model.constants import constant_array


def inlined(site: CallSite, since: Mapping[str, int], *, main: int) -> Replacement:
    """Return the nodes of the body as they are; `since` has their operators. `main` counts the nodes that are no constants.

    Raises NotLowered where an attribute is a graph or a tensor, or an operator is not in `since`.
    """
    operands: dict[ir.Value | None, Operand] = {None: None}
    for value, argument in zip(site.function.inputs, site.arguments, strict=True):
        operands[value] = argument.value
    steps: list[NewNode] = []
    for node in site.function:
        if node.op_type == "Constant":
            array = constant_array(node)
            operands[node.outputs[0]] = Literal(array, ir.DataType.from_numpy(array.dtype), "constant")
            continue
        if node.op_type not in since or node.domain not in {"", "ai.onnx"}:
            raise NotLowered(f"its body contains {node.op_type}")
        inputs = tuple(operands[value] for value in node.inputs)
        steps.append(
            NewNode(node.op_type, inputs, settings(node), since=since[node.op_type], outputs=len(node.outputs))
        )
        operands.update((value, Made(len(steps) - 1, i)) for i, value in enumerate(node.outputs))
    outputs = tuple(operands[value] for value in site.function.outputs)
    return Replacement(tuple(steps), tuple(made for made in outputs if isinstance(made, Made)), main, plain=True)


def settings(node: ir.Node) -> dict[str, Setting]:
    """Return the attributes of a node. Raises NotLowered where one is no number, text or list of integers."""
    held = {name: attribute.value for name, attribute in node.attributes.items()}
    for name, value in held.items():
        if not isinstance(value, (int, float, str)) and not _is_ints(value):
            raise NotLowered(f"the attribute {name} of {node.op_type} is no number")
    return held


def _is_ints(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(item, int) for item in value)
