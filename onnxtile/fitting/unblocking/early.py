"""Nodes that make less than they use up run as early as they can, so that less lives at every place in between."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fitting.unblocking.editing import ModelEdit, NodePosition
from onnxtile.model.walk import dependencies


def run_early(edit: ModelEdit) -> list[ir.Node]:
    """Move each node that lowers the bytes alive to right behind the last node that it waits for; return the nodes that were moved.

    It waits for the nodes that make its operands, and for the other readers of the operands that it is the last to read. One that draws
    random numbers stays.
    """
    graph, outputs = edit.model.graph, set(edit.model.graph.outputs)
    keys: dict[ir.Node, NodePosition] = {}
    readers: dict[ir.Value, list[ir.Node]] = {}
    nodes = list(graph)
    read = {node: list(dict.fromkeys(dependencies(node))) for node in nodes}
    for node in nodes:
        for value in read[node]:
            readers.setdefault(value, []).append(node)
    left = {value: len(found) for value, found in readers.items()}
    moved: list[ir.Node] = []
    end: ir.Node | None = None
    for place, node in enumerate(nodes):
        keys[node] = (place,)
        for value in read[node]:
            left[value] -= 1
        dying = [value for value in read[node] if not left[value] and value not in outputs]
        waits = [value.producer() for value in read[node]]
        waits += [one for value in dying if edit.bytes(value) for one in readers[value] if one is not node]
        last = max((one for one in waits if one is not None and one in keys), key=keys.__getitem__, default=None)
        is_smaller = sum(map(edit.bytes, dying)) > sum(map(edit.bytes, node.outputs)) + edit.least
        if last is None or last is end or not is_smaller or node in edit.random:
            end = node
            continue
        # Of two nodes behind the same one, the one that was moved later stands first.
        keys[node] = (*keys[last], -len(moved))
        graph.remove(node)
        graph.insert_after(last, [node])
        moved.append(node)
    return moved
