"""The items of a batch one after the other: each runs through all operators that treat every item alone.

So the tensors between operators are those of one item. No product is computed twice.
"""

from __future__ import annotations

from itertools import pairwise

import onnx_ir as ir

from onnxtile.fitting.unblocking.editing import ModelEdit
from onnxtile.fitting.unblocking.joins import JoinTail, alone, read_behind, write_part
from onnxtile.model.walk import dependencies

_MOST = 16
"""Items of a batch, at most."""
_NODES = 50_000
"""Nodes of all items together, at most."""


def items_apart(edit: ModelEdit) -> list[ir.Node]:
    """Let each item of a batch run through the nodes that treat every item alone; return these nodes."""
    inputs = [value for value in edit.model.graph.inputs if edit.sizes(value)]
    count = next((sizes[0] for value in inputs if (sizes := edit.sizes(value)) and sizes[0] > 1), 0)
    if not 1 < count <= _MOST or edit.opset < 10 or count * len(edit.model.graph) > _NODES:
        return []
    batch = [value for value in inputs if (edit.sizes(value) or (0,))[0] == count]
    tail = JoinTail(list(range(count + 1)), dict.fromkeys(batch, 0))
    for node in edit.model.graph:
        found = None if tail.axes.keys().isdisjoint(node.inputs) else alone(edit, tail, node, frozenset())
        if found is not None:
            tail.add(node, *found)
    if tail.links:
        _write(edit, tail, batch)
    return list(tail.links)


def _write(edit: ModelEdit, tail: JoinTail, batch: list[ir.Value]) -> None:
    nodes = list(tail.links)
    before = _first_behind(edit, nodes)
    joined = read_behind(nodes)
    parts: dict[ir.Value, list[ir.Value]] = {value: [] for value in batch}
    read = [value for value in batch if any(use.node in tail.links for use in value.uses())]
    for number, (start, stop) in enumerate(pairwise(tail.ends)):
        bounds = [edit.numbers([one]) for one in (start, stop, 0)]
        for value in read:
            item = edit.value(f"{value.name}/item{number}", (1, *(edit.sizes(value) or ())[1:]), edit.dtype(value))
            parts[value].append(edit.add(before, "Slice", [value, *bounds], item))
        for node in nodes:
            write_part(edit, tail, node, number, parts, before)
    for value in joined:
        axis = ir.AttrInt64("axis", tail.axes[value])
        whole = edit.value(f"{value.name}/items", edit.sizes(value) or (), edit.dtype(value))
        edit.replace(value, edit.add(before, "Concat", parts[value], whole, [axis]))
    edit.drop_unread()


def _first_behind(edit: ModelEdit, nodes: list[ir.Node]) -> ir.Node | None:
    """Return the first other node that depends on `nodes`; None where there is none."""
    made = {value for node in nodes for value in node.outputs}
    inside = set(nodes)
    return next((one for one in edit.model.graph if one not in inside and not made.isdisjoint(dependencies(one))), None)
