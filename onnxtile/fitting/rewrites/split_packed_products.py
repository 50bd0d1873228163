"""Products of several weights packed into one, such as queries, keys and values, become one product for each part that is read alone."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.model.topology import has_body
from onnxtile.operators.node_view import STANDARD
from onnxtile.operators.table import movement_of

_DEEPEST = 12
"""Nodes between a product and the node that takes a part of its result, at most."""


class _NotPacked(Exception):
    """A part of a tensor is not a product with a part of constant weights."""


def split_packed_products(edit: ModelEdit, least: int = 0) -> list[ir.Node]:
    """Let each result of a Split, or of a Gather of one place, come from a product of its own; return the nodes that went.

    Packed tensors of fewer than `least` bytes stay. Nodes that nothing reads any more are left in the graph.
    """
    parted = []
    for node in list(edit.model.graph):
        if not node.inputs or node.inputs[0] is None or edit.bytes(node.inputs[0]) < least:
            continue
        try:
            results = _parts(edit, node)
        except _NotPacked:
            continue
        if results:
            for old, new in zip(node.outputs, results, strict=True):
                edit.replace(old, new)
            parted.append(node)
    return parted


def _parts(edit: ModelEdit, node: ir.Node) -> list[ir.Value]:
    """Return the parts that `node` takes, made anew before it; empty for a node that takes none."""
    source = node.inputs[0] if node.inputs else None
    sizes = None if source is None else edit.sizes(source)
    if source is None or sizes is None or source in edit.constants or node.domain not in STANDARD:
        return []
    axis = node.attributes.get_int("axis", 0) % max(len(sizes), 1)
    maker = _PartMaker(edit, node)
    if node.op_type == "Split":
        ends = accumulate(((edit.sizes(value) or sizes)[axis] for value in node.outputs), initial=0)
        return [maker.part(source, axis, *both) for both in pairwise(ends)]
    chosen = node.inputs[1] if node.op_type == "Gather" else None
    if chosen is None or chosen not in edit.constants or edit.sizes(chosen) != ():
        return []
    index = int(edit.constants.array(chosen)) % sizes[axis]
    result = node.outputs[0]
    after = edit.sizes(result)
    if after is None:
        return []
    part = maker.part(source, axis, index, index + 1)
    numbers = edit.constant(f"{result.name}/sizes", np.asarray(after, np.int64))
    return [edit.add(node, "Reshape", [part, numbers], edit.value(f"{result.name}/part", after, edit.dtype(result)))]


class _PartMaker:
    """Makes parts of tensors from products with parts of their weights, before one node."""

    def __init__(self, edit: ModelEdit, before: ir.Node) -> None:
        self.edit, self.before = edit, before

    def part(self, value: ir.Value, axis: int, start: int, stop: int, depth: int = 0) -> ir.Value:
        """Return the elements of `value` from `start` to `stop`. Raises _NotPacked."""
        node, sizes = value.producer(), self.edit.sizes(value)
        if node is None or sizes is None or depth > _DEEPEST or has_body(node) or len(node.outputs) > 1:
            raise _NotPacked
        is_product = node.op_type in {"MatMul", "Gemm"} and node.inputs[1] in self.edit.constants
        is_moved = movement_of(node) in {"renames", "permutes"} or node.op_type in {"Add", "Mul"}
        if not is_product and not is_moved:
            raise _NotPacked
        links = self.edit.links(node, axis)
        if links is None or (is_product and links[1] is None):
            raise _NotPacked
        inputs: list[ir.Value | None] = []
        for operand, link in zip(node.inputs, links, strict=True):
            if operand is None or link is None:
                inputs.append(operand)
                continue
            window = link.reads(start, stop)
            if link.sources is not None or link.factor > 1 or window.before or window.after:
                raise _NotPacked
            rows = link.axis, window.start, window.stop
            if operand in self.edit.constants:
                inputs.append(self.edit.part(f"{operand.name}/{window.start}", operand, rows))
            else:
                inputs.append(self.part(operand, *rows, depth + 1))
        result = self.edit.resized(value, axis, stop - start, f"part{start}")
        self.edit.again(self.before, node, inputs, [result])
        return result
