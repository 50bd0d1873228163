"""The heads of attention one after the other: each with its columns of the projections, its scores and its result.

Heads are independent of each other from the projections to the tensor that joins them, so only one head's keys, values and scores live at
once. Each product is computed once, with the same operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.model.topology import has_body
from onnxtile.operators.node_view import STANDARD
from onnxtile.operators.reads import AxisLink, AxisLinks
from onnxtile.system.dataclass import dataclass

_LARGEST = 96
"""Nodes of the heads of one attention, at most."""
_SMALL = 8
"""A tensor of this part of another, such as a mean of each row, is kept rather than made again."""
_LONGEST = 12
"""Nodes that are run again for each head, at most."""
_AGAIN = frozenset({"Add", "Cast", "Div", "LayerNormalization", "Mul", "Pow", "RMSNormalization", "Sqrt", "Sub"})
"""Operators without products that are cheap to run again."""


@dataclass(frozen=True)
class HeadAxis:
    """The axis of a tensor along which heads follow each other, each with `unit` elements."""

    axis: int
    unit: int


@dataclass
class HeadGroup:
    """Nodes that compute each head alone, with the axis of heads of each result; `whole` has those that are read as they are."""

    count: int
    axes: dict[ir.Value, HeadAxis] = field(default_factory=dict)
    nodes: dict[ir.Node, AxisLinks] = field(default_factory=dict)


class _NoHeads(Exception):
    """The tensors around a product have no independent heads."""


def _unit(link: AxisLink, unit: int) -> int:
    """Return the elements of an operand that `unit` elements of the result read. Raises _NoHeads where parts would overlap."""
    slide = link.window
    if link.sources is not None:
        raise _NoHeads
    if slide is None:
        if unit % link.factor:
            raise _NoHeads
        return unit // link.factor
    if slide.kernel != slide.stride or slide.dilation != 1 or slide.before or slide.after:
        raise _NoHeads
    return unit * slide.stride


class _HeadFinder:
    """Finds the nodes around one product of two tensors that are computed for each head alone."""

    def __init__(self, edit: ModelEdit) -> None:
        self.edit, self.count = edit, 0

    def found(self, product: ir.Node) -> HeadGroup | None:
        """Return the group around `product`; None where it has no heads."""
        sizes = self.edit.sizes(product.outputs[0]) or ()
        axis = next((axis for axis, size in enumerate(sizes[:-2]) if size > 1), None)
        if axis is None or any(value is None or value in self.edit.constants for value in product.inputs[:2]):
            return None
        # Heads that share their keys and values, as in grouped-query attention, stay together.
        units = (unit for unit in range(1, sizes[axis] // 2 + 1) if sizes[axis] % unit == 0)
        groups = (self._group(product, HeadAxis(axis, unit), sizes[axis] // unit) for unit in units)
        return next((group for group in groups if group is not None), None)

    def _group(self, product: ir.Node, axis: HeadAxis, count: int) -> HeadGroup | None:
        self.count = count
        group = HeadGroup(count)
        try:
            self._grow(group, product, axis)
        except _NoHeads:
            return None
        products = [node for node in group.nodes if self._is_product(node) and self._has_weights(node)]
        return group if len(products) > 1 else None

    def _is_product(self, node: ir.Node) -> bool:
        return node.op_type in {"MatMul", "Gemm"}

    def _has_weights(self, node: ir.Node) -> bool:
        return node.inputs[1] in self.edit.constants

    def _grow(self, group: HeadGroup, product: ir.Node, axis: HeadAxis) -> None:
        pending: list[tuple[ir.Node, HeadAxis]] = [(product, axis)]
        while pending:
            node, heads = pending.pop()
            if node in group.nodes:
                if group.axes[node.outputs[0]] != heads:
                    raise _NoHeads
                continue
            if len(group.nodes) >= _LARGEST or len(node.outputs) > 1:
                raise _NoHeads
            links = self._links(node, heads.axis)
            group.nodes[node] = links
            group.axes[node.outputs[0]] = heads
            pending += self._makers(node, links, heads)
            pending += self._readers(node.outputs[0], heads)

    def _links(self, node: ir.Node, axis: int) -> AxisLinks:
        links = None if has_body(node) or node.graph is not self.edit.model.graph else self.edit.links(node, axis)
        if links is None:
            raise _NoHeads
        return links

    def _makers(self, node: ir.Node, links: AxisLinks, heads: HeadAxis) -> list[tuple[ir.Node, HeadAxis]]:
        makers = []
        for value, link in zip(node.inputs, links, strict=True):
            if value is None or link is None or value in self.edit.constants:
                continue
            maker = value.producer()
            if maker is None:
                raise _NoHeads
            makers.append((maker, HeadAxis(link.axis, _unit(link, heads.unit))))
        return makers

    def _readers(self, value: ir.Value, heads: HeadAxis) -> list[tuple[ir.Node, HeadAxis]]:
        """Return the readers of a head's part that make a head's part, too. All read parts, or all join them."""
        readers = []
        for use in value.uses():
            after = self._after(use.node, use.idx, heads)
            if after is not None:
                readers.append((use.node, after))
        if value.is_graph_output() or 0 < len(readers) < len(list(value.uses())):
            raise _NoHeads
        return readers

    def _after(self, node: ir.Node, index: int, heads: HeadAxis) -> HeadAxis | None:
        sizes = self.edit.sizes(node.outputs[0]) or ()
        for axis, size in enumerate(sizes):
            try:
                link = self._links(node, axis)[index]
                if link is None or link.axis != heads.axis:
                    continue
                unit = heads.unit * link.factor if link.window is None else heads.unit // link.window.stride
                if unit and unit * self.count == size and _unit(link, unit) == heads.unit:
                    return HeadAxis(axis, unit)
            except _NoHeads:
                continue
        return None


def split_heads(edit: ModelEdit) -> list[ir.Node]:
    """Compute each head of each attention alone; return the first product of the scores of each."""
    finder, done, groups = _HeadFinder(edit), set[ir.Node](), dict[ir.Node, HeadGroup]()
    for node in edit.model.graph:
        if node.op_type == "MatMul" and node not in done:
            group = finder.found(node)
            if group is not None and done.isdisjoint(group.nodes):
                done.update(group.nodes)
                groups[node] = group
    places = {node: index for index, node in enumerate(edit.model.graph)}
    for group in groups.values():
        _HeadWriter(edit, group, places).write()
    return list(groups)


class _HeadWriter:
    """Writes the nodes of a group once for each head, and joins the parts that other nodes read."""

    def __init__(self, edit: ModelEdit, group: HeadGroup, places: Mapping[ir.Node, int]) -> None:
        self.edit, self.group, self.places = edit, group, places
        second = self._second(edit)
        # Keys and values, which each token of a head reads whole, come before its queries.
        self.nodes = sorted(group.nodes, key=lambda node: (node not in second, places[node]))
        self.last = max(group.nodes, key=places.__getitem__)

    def _second(self, edit: ModelEdit) -> set[ir.Node]:
        """Return the nodes that the second operands of products of two tensors come from."""
        products = [node for node in self.group.nodes if node.op_type == "MatMul"]
        pending = [node.inputs[1] for node in products if node.inputs[1] not in edit.constants]
        later: set[ir.Node] = set()
        while pending:
            value = pending.pop()
            maker = None if value is None else value.producer()
            if maker is not None and maker in self.group.nodes and maker not in later:
                later.add(maker)
                pending += maker.inputs
        return later

    def write(self) -> None:
        """Write the nodes of each head in the place of the last node of all heads."""
        last = self.last
        parts: dict[ir.Value, list[ir.Value]] = {node.outputs[0]: [] for node in self.nodes}
        for head in range(self.group.count):
            for node in self.nodes:
                parts[node.outputs[0]].append(self._part(node, head, parts, last))
        for node in self.nodes:
            value = node.outputs[0]
            if any(use.node not in self.group.nodes for use in value.uses()):
                axis = self.group.axes[value].axis
                self.edit.replace(value, self.edit.join(last, value, parts[value], axis, "heads"))
        for node in reversed(self.nodes):
            self.edit.model.graph.remove(node, safe=True)

    def _part(
        self,
        node: ir.Node,
        head: int,
        parts: Mapping[ir.Value, list[ir.Value]],
        before: ir.Node,
    ) -> ir.Value:
        heads = self.group.axes[node.outputs[0]]
        inputs: list[ir.Value | None] = []
        for value, link in zip(node.inputs, self.group.nodes[node], strict=True):
            if value is None:
                inputs.append(None)
            elif value in parts:
                inputs.append(parts[value][head])
            elif link is None:
                inputs.append(self._again(value, before))
            else:
                window = link.reads(head * heads.unit, (head + 1) * heads.unit)
                rows = link.axis, window.start, window.stop
                inputs.append(self.edit.part(f"{value.name}/{window.start}", value, rows))
        result = self.edit.resized(node.outputs[0], heads.axis, heads.unit, f"head{head}")
        self.edit.again(before, node, inputs, [result])
        return result

    def _again(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """Return an operand that is read whole; one that elementwise nodes make of tensors that live anyway is made again."""
        cone = self._cone(value)
        copies: dict[ir.Value, ir.Value] = {}
        for node in cone:
            result = node.outputs[0]
            copy = self.edit.value(f"{result.name}/again", self.edit.sizes(result) or (), self.edit.dtype(result))
            inputs = [copies.get(operand, operand) if operand is not None else None for operand in node.inputs]
            copies[result] = self.edit.add(before, node.op_type, inputs, copy, node.attributes.values())
        return copies.get(value, value)

    def _cone(self, value: ir.Value) -> list[ir.Node]:
        """Return the nodes that make `value` from tensors that are small or live beside the heads, in their order; empty for none."""
        cone: dict[ir.Node, None] = {}
        pending, small = [value], self.edit.bytes(value) // _SMALL
        if self._is_read_after(value):
            return []
        while pending:
            node = pending.pop()
            maker = node.producer()
            is_there = maker is None or node in self.edit.constants or maker in cone
            if is_there or (node is not value and (self.edit.bytes(node) <= small or self._is_read_after(node))):
                continue
            assert maker is not None
            if maker.op_type not in _AGAIN or maker.domain not in STANDARD or len(cone) >= _LONGEST:
                return []
            cone[maker] = None
            pending += [operand for operand in maker.inputs if operand is not None]
        return sorted(cone, key=self.places.__getitem__)

    def _is_read_after(self, value: ir.Value) -> bool:
        """Return whether a node after the heads reads `value`, as a residual connection does."""
        last = self.places[self.last]
        return any(self.places.get(use.node, -1) > last for use in value.uses())
