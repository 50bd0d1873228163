"""Workspaces that patterns declare for their meta-ops: the bytes that a kernel needs beside its operands and results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import ModelError
from onnxtile.model.shapes import Shapes
from onnxtile.model.size_rule import SizeRule


def workspaces(model: ir.Model, shapes: Shapes) -> dict[ir.Node, int | None]:
    """Return the bytes for each node of all graphs that calls a function with a workspace.

    None where a shape is not known, or where the rule asks for the inside, which only a plan can tell. Raises UsageError for a rule that
    cannot be read.
    """
    texts = {name: one.metadata_props.get(keys.WORKSPACE) for name, one in model.functions.items()}
    rules = {name: SizeRule(text) for name, text in texts.items() if text is not None}
    calls = (node for node in model.graph.all_nodes() if node.op_identifier() in rules)
    return {node: _bytes(rules[node.op_identifier()], node, shapes) for node in calls}


def _bytes(rule: SizeRule, node: ir.Node, shapes: Shapes) -> int | None:
    try:
        return rule.bytes(node, shapes)
    except ModelError:
        return None


def summed(found: Iterable[tuple[str, int | None]]) -> Mapping[str, object]:
    """Return the JSON of the workspaces of nodes, by name: the largest, the sum, and how many are not known."""
    pairs = list(found)
    known = [(size, name) for name, size in pairs if size is not None]
    largest, node = max(known, key=lambda pair: pair[0], default=(0, ""))
    return {
        "nodes": len(pairs),
        "largest": {"node": node, "bytes": largest},
        "sum": sum(size for size, _ in known),
        "unknown_nodes": len(pairs) - len(known),
    }
