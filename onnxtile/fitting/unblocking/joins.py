"""Joins below operators that treat each element of the joined axis alone, such as the end of a detection head.

The operators run on each operand of the Concat, and their results are joined instead. Where these are smaller than the joined operands,
fewer bytes live at once. No product is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import onnx_ir as ir

from onnxtile.fitting.axis_maps import AxisLink, AxisLinks, OperatorFacts, Uncut, links
from onnxtile.fitting.unblocking.editing import ModelEdit
from onnxtile.model.walk import dependencies, has_body

_LONGEST = 96
"""Nodes that one join is moved below, at most."""
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def join_late(edit: ModelEdit, *, exact: bool) -> list[ir.Node]:
    """Move joins below the nodes that follow them; return the joins that were moved.

    With `exact`, no join moves below a product, which may round a part of its rows differently.
    """
    found = []
    for node in list(edit.model.graph):
        tail = None if node.graph is None else _tail(edit, node, exact=exact)
        if tail is not None:
            _TailWriter(edit, tail).write()
            # Nodes that ran behind the join are gone before the next join is looked at.
            edit.drop_unread()
            found.append(node)
    return found


@dataclass
class JoinTail:
    """A Concat and nodes behind it that treat each element of the joined axis alone, in their order.

    `axes` has the joined axis of each result, `links` those of the operands of each node, `ends` the places where the parts end.
    """

    join: ir.Node
    ends: list[int]
    axes: dict[ir.Value, int] = field(default_factory=dict)
    links: dict[ir.Node, AxisLinks] = field(default_factory=dict)


def _tail(edit: ModelEdit, join: ir.Node, *, exact: bool) -> JoinTail | None:
    """Return the nodes to run before `join`; None where no fewer bytes would be joined behind them."""
    if join.op_type != "Concat" or join.domain not in {"", "ai.onnx"} or len(join.inputs) < 2:
        return None
    whole = join.outputs[0]
    sizes = [edit.sizes(value) if value is not None else None for value in (whole, *join.inputs)]
    if edit.bytes(whole) <= edit.least or any(one is None for one in sizes):
        return None
    rank = len(sizes[0] or ())
    axis = join.attributes.get_int("axis", 1 if edit.opset < 4 else 0) % max(rank, 1)
    ends = [*accumulate((one[axis] for one in sizes[1:] if one is not None), initial=0)]
    return _least(edit, _grown(edit, JoinTail(join, ends, {whole: axis}), exact=exact))


def _grown(edit: ModelEdit, tail: JoinTail, *, exact: bool) -> JoinTail:
    """Add all nodes behind the join that treat each element of its axis alone."""
    has_passed, known = False, set[ir.Value]()
    for node in edit.model.graph:
        if node is tail.join:
            has_passed = True
        elif not has_passed:
            known.update(node.outputs)
        elif not tail.axes.keys().isdisjoint(node.inputs) and len(tail.links) < _LONGEST:
            found = None if exact and node.op_type in _PRODUCTS else _alone(edit, tail, node, known)
            if found is not None:
                tail.links[node] = found[1]
                tail.axes.update((value, found[0]) for value in node.outputs if value.name)
    return tail


def _alone(edit: ModelEdit, tail: JoinTail, node: ir.Node, known: set[ir.Value]) -> tuple[int, AxisLinks] | None:
    """Return the axis of the parts of a node's results, and its links; None where a result needs more than a part of an operand."""
    made = edit.sizes(node.outputs[0])
    if has_body(node) or made is None or (len(node.outputs) > 1 and node.op_type != "Split"):
        return None
    facts = OperatorFacts(node, edit.shapes, edit.constants, edit.opset)
    for axis in (axis for axis, size in enumerate(made) if size == tail.ends[-1]):
        try:
            found = links(facts, axis)
        except Uncut:
            continue
        pairs = zip(node.inputs, found, strict=True)
        if all(value is None or _is_at_hand(edit, tail, value, link, known) for value, link in pairs):
            return axis, found
    return None


def _is_at_hand(edit: ModelEdit, tail: JoinTail, value: ir.Value, link: AxisLink | None, known: set[ir.Value]) -> bool:
    """Return whether an operand is there for each part: as a part, as a constant, or read whole and made before the join."""
    if value in tail.axes:
        return link is not None and _is_plain(link) and link.axis == tail.axes[value]
    if value in edit.constants:
        return link is None or _is_plain(link)
    return link is None and (value in known or value.producer() is None)


def _is_plain(link: AxisLink) -> bool:
    """Return whether element i reads element i alone."""
    slide = link.window
    if slide is None:
        return link.factor == 1
    return (slide.kernel, slide.stride, slide.before, slide.after) == (1, 1, 0, 0) and not slide.transposed


def _least(edit: ModelEdit, tail: JoinTail) -> JoinTail | None:
    """Return the first nodes of a tail behind which the fewest bytes are joined; None for none."""
    whole, nodes = tail.join.outputs[0], list(tail.links)
    best, least = 0, edit.bytes(whole)
    for count in range(1, len(nodes) + 1):
        size = sum(map(edit.bytes, _read_behind([tail.join, *nodes[:count]])))
        if size < least:
            best, least = count, size
    if not best:
        return None
    tail.links = {node: tail.links[node] for node in nodes[:best]}
    return tail


def _read_behind(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the results of `nodes` that other nodes read, or that are outputs of the graph."""
    inside = set(nodes)
    made = [value for node in nodes for value in node.outputs]
    return [value for value in made if value.is_graph_output() or any(use.node not in inside for use in value.uses())]


class _TailWriter:
    """Writes the nodes of a tail once for each operand of the join, right behind the node that makes it."""

    def __init__(self, edit: ModelEdit, tail: JoinTail) -> None:
        self.edit, self.tail = edit, tail
        self.places = {node: place for place, node in enumerate(edit.model.graph)}
        self.parts: dict[ir.Value, list[ir.Value]] = {tail.join.outputs[0]: []}
        self.ready: dict[ir.Value, ir.Value] = {}

    def write(self) -> None:
        """Write all parts, and the joins of those results that other nodes read."""
        tail = self.tail
        for number, operand in enumerate(tail.join.inputs):
            given = self._ready(operand)
            assert operand is not None and given is not None
            self.parts[tail.join.outputs[0]].append(given)
            before = self._behind(operand)
            for node in tail.links:
                for value, part in zip(node.outputs, self._part(node, number, before), strict=True):
                    self.parts.setdefault(value, []).append(part)
        for value in _read_behind([tail.join, *tail.links]):
            axis = ir.AttrInt64("axis", tail.axes[value])
            joined = self.edit.value(f"{value.name}/joined", self._sizes(value), self.edit.dtype(value))
            self.edit.replace(value, self.edit.add(tail.join, "Concat", self.parts[value], joined, [axis]))

    def _ready(self, operand: ir.Value | None) -> ir.Value | None:
        """Return an operand that is read whole; a constant that a node makes, perhaps behind the join, becomes one of the graph."""
        if operand is None or operand not in self.edit.constants or operand.producer() is None:
            return operand
        if operand not in self.ready:
            self.ready[operand] = self.edit.constant(f"{operand.name}", self.edit.constants.array(operand))
        return self.ready[operand]

    def _behind(self, operand: ir.Value) -> ir.Node:
        """Return the node before which the nodes of a part stand: behind all that make its operands."""
        read = [operand, *(value for node in self.tail.links for value in dependencies(node))]
        makers = [one.producer() for one in read if one not in self.parts and one not in self.edit.constants]
        own = [one for one in makers if one in self.places and one not in self.tail.links]
        last = max((self.places[one] for one in own if one is not None), default=-1)
        return next(node for node, place in self.places.items() if place > last)

    def _sizes(self, value: ir.Value) -> tuple[int, ...]:
        sizes = self.edit.sizes(value)
        assert sizes is not None
        return sizes

    def _part(self, node: ir.Node, number: int, before: ir.Node) -> Sequence[ir.Value]:
        start, stop = list(pairwise(self.tail.ends))[number]
        results = []
        for value in node.outputs:
            sizes = list(self._sizes(value))
            sizes[self.tail.axes[value]] = stop - start
            results.append(self.edit.value(f"{value.name}/part{number}", sizes, self.edit.dtype(value)))
        inputs: list[ir.Value | None] = []
        for operand, link in zip(node.inputs, self.tail.links[node], strict=True):
            if operand in self.parts:
                inputs.append(self.parts[operand][number])
            elif operand is None or link is None:
                inputs.append(self._ready(operand))
            else:
                inputs.append(self.edit.part(operand, link.axis, start, stop))
        self.edit.again(before, node, inputs, results)
        return results
