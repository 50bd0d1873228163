"""Counts the copies that a plan avoids, and those that remain."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import LayoutFacts, parts
from onnxtile.planning.layout.aliases.lawful import CUTS, JOINS, VIEWS
from onnxtile.planning.layout.aliases.sharing import Sharing
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.result import CopyCount


def copies(schedule: Schedule, facts: LayoutFacts, sharing: Sharing) -> CopyCount:
    """Return the copies, and their bytes, of all nodes that only move bytes into a tensor of the arena.

    One copy counts for each result that could be a view, each result of a Split or Slice, and each operand of a Concat.
    """
    counts = {True: [0, 0], False: [0, 0]}
    for node in schedule.nodes:
        for value, avoided in _moved(node, facts, sharing):
            counts[avoided][0] += 1
            counts[avoided][1] += tensor_bytes(value, facts.shapes) or 0
    return CopyCount(*counts[True], *counts[False])


def _moved(node: ir.Node, facts: LayoutFacts, sharing: Sharing) -> Iterator[tuple[ir.Value, bool]]:
    """Yield each tensor that `node` moves, and whether an alias avoids that."""
    if not facts.is_standard(node):
        return
    results = [value for value in node.outputs if value in sharing.alias_sets.of]
    if node.op_type in JOINS and results:
        there = [alias.source for alias in sharing.shares.get(results[0], ()) if alias.rule != "view"]
        for value in node.inputs:
            if value is not None:
                yield value, value in there
                # An operand that is given twice is avoided once.
                there = [other for other in there if other is not value]
    elif node.op_type in CUTS:
        yield from ((value, bool(sharing.shares.get(value))) for value in results)
        alias_sets = sharing.alias_sets.of
        for alias in parts(node, facts):
            # An output outside the arena is written there.
            is_written = alias.value in alias_sets or alias.value.is_graph_output()
            if not is_written and alias.source not in facts.constants:
                yield alias.value, True
    elif (
        node.op_type in VIEWS
        and results
        and node.inputs[0] is not None
        and facts.same_bytes(results[0], node.inputs[0])
    ):
        yield results[0], bool(sharing.shares.get(results[0]))
