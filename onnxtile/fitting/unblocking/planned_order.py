"""The order in which the plan of a model runs its kernels, as the order of its nodes.

The nodes of a quantised island stand together then: each DequantizeLinear right before its reader.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import pairwise

import onnx_ir as ir

from onnxtile.model.walk import dependencies


def run_as_planned(
    model: ir.Model, results: Sequence[Sequence[str]], random: Container[ir.Node] = frozenset()
) -> list[ir.Node]:
    """Let the nodes of the main graph run in the order of a plan (in place); return those that stand elsewhere now.

    `results` has the names of the results of each step. Nodes that make none of them run right before their first reader. Those that draw
    `random` numbers keep their order.
    """
    graph = model.graph
    before = list(graph)
    makers = {value.name: node for node in before for value in node.outputs if value.name}
    earlier = {node: one for one, node in pairwise(node for node in before if node in random)}
    order: dict[ir.Node, None] = {}
    for node in (makers[name] for step in results for name in step if name in makers):
        _put(order, node, earlier)
    for node in before:
        _put(order, node, earlier)
    moved = [node for place, node in enumerate(order) if before[place] is not node]
    if moved:
        graph.remove(before)
        graph.extend(order)
    return moved


def _put(order: dict[ir.Node, None], last: ir.Node, earlier: Mapping[ir.Node, ir.Node]) -> None:
    """Append a node, after those that it waits for, one `earlier` node among them."""
    pending = [last]
    while pending:
        node = pending[-1]
        makers = [value.producer() for value in dependencies(node) if node not in order]
        makers += [earlier[node]] if node in earlier and node not in order else []
        waits = [one for one in makers if one is not None and one.graph is last.graph and one not in order]
        if waits:
            pending += reversed(waits)
            continue
        order.setdefault(pending.pop())
