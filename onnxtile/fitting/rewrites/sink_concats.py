"""Joins below operators that treat each element of the joined axis alone, such as the end of a detection head.

The operators run on each operand of the Concat, and their results are joined instead. Where these are smaller than the joined operands,
fewer bytes live at once. No product is computed twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from itertools import accumulate, islice, pairwise

import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.read_network import island_tensors
from onnxtile.model.topology import dependencies, has_body, is_read_outside
from onnxtile.operators.node_view import STANDARD
from onnxtile.operators.reads import AxisLink, AxisLinks, SlidingAxis
from onnxtile.operators.table import Products, operator_of
from onnxtile.system.dataclass import dataclass

_LONGEST = 96
"""Nodes that one join is moved below, at most."""


def _sums(node: ir.Node) -> bool:
    """Return whether the elements of the result are sums of products, which may round otherwise in a part of its rows."""
    row = operator_of(node)
    return row is not None and isinstance(row.work, Products)


def sink_concats(edit: ModelEdit, *, exact: bool) -> list[ir.Node]:
    """Move joins below the nodes that follow them; return the joins that were moved.

    With `exact`, no join moves below a product, which may round a part of its rows differently.
    """
    moved = []
    inside = island_tensors(edit.model, edit.constants).inside
    for node in list(edit.model.graph):
        tail = None if node.graph is None else _tail(edit, node, inside, exact=exact)
        if tail is not None:
            _TailWriter(edit, node, tail).write()
            # Nodes that ran after the join are gone before the next join is looked at.
            edit.drop_unread()
            moved.append(node)
    return moved


@dataclass
class JoinTail:
    """Nodes that treat each element of an axis alone, in their order, to be run on parts of it that end at `ends`.

    `axes` has this axis of each operand and result that has parts, `links` those of the operands of each node.
    """

    ends: list[int]
    axes: dict[ir.Value, int] = field(default_factory=dict)
    links: dict[ir.Node, AxisLinks] = field(default_factory=dict)

    def add(self, node: ir.Node, part: tuple[int, AxisLinks] | None) -> None:
        """Add a node by the axis of its results and its links; None for one that needs more than a part."""
        if part is not None:
            axis, self.links[node] = part
            self.axes.update((value, axis) for value in node.outputs if value.name)


def _tail(edit: ModelEdit, join: ir.Node, inside: frozenset[ir.Value], *, exact: bool) -> JoinTail | None:
    """Return the nodes to run before `join`; None where no fewer bytes would be joined after them, outside of quantised islands."""
    if join.op_type != "Concat" or join.domain not in STANDARD or len(join.inputs) < 2:
        return None
    whole = join.outputs[0]
    sizes = [edit.sizes(value) if value is not None else None for value in (whole, *join.inputs)]
    if edit.bytes(whole) <= edit.least or any(size is None for size in sizes):
        return None
    rank = len(sizes[0] or ())
    axis = join.attributes.get_int("axis", 1 if edit.opset < 4 else 0) % max(rank, 1)
    ends = [*accumulate((size[axis] for size in sizes[1:] if size is not None), initial=0)]
    return _least(edit, join, _grown(edit, join, JoinTail(ends, {whole: axis}), exact=exact), inside)


def _grown(edit: ModelEdit, join: ir.Node, tail: JoinTail, *, exact: bool) -> JoinTail:
    """Add all nodes after the join that treat each element of its axis alone."""
    has_passed, known = False, set[ir.Value]()
    for node in edit.model.graph:
        if node is join:
            has_passed = True
        elif not has_passed:
            known.update(node.outputs)
        elif not tail.axes.keys().isdisjoint(node.inputs) and len(tail.links) < _LONGEST:
            tail.add(node, None if exact and _sums(node) else alone(edit, tail, node, known))
    return tail


def alone(edit: ModelEdit, tail: JoinTail, node: ir.Node, known: Collection[ir.Value]) -> tuple[int, AxisLinks] | None:
    """Return the axis of the parts of a node's results, and its links; None where a result needs more than a part of an operand.

    Operands that are read whole are constants, graph inputs, or `known`.
    """
    sizes = edit.sizes(node.outputs[0])
    if has_body(node) or sizes is None or (len(node.outputs) > 1 and node.op_type != "Split"):
        return None
    # The sizes of a part are written anew.
    count = 1 if node.op_type in {"Reshape", "Expand"} else None
    for axis in (axis for axis, size in enumerate(sizes) if size == tail.ends[-1]):
        links = edit.links(node, axis)
        pairs = zip(node.inputs, links or (), strict=False)
        if links and all(
            value is None or _is_at_hand(edit, tail, value, link, known) for value, link in islice(pairs, count)
        ):
            return axis, links
    return None


def _is_at_hand(
    edit: ModelEdit, tail: JoinTail, value: ir.Value, link: AxisLink | None, known: Collection[ir.Value]
) -> bool:
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
        return link.factor == 1 and link.sources is None
    return (slide.kernel, slide.stride, slide.before, slide.after) == (1, 1, 0, 0) and not slide.transposed


def _least(edit: ModelEdit, join: ir.Node, tail: JoinTail, inside: frozenset[ir.Value]) -> JoinTail | None:
    """Return the first nodes of a tail after which the fewest bytes are joined, and none `inside` of an island; None for none."""
    nodes = list(tail.links)
    joined = [read_after([join, *nodes[:count]]) for count in range(len(nodes) + 1)]
    sizes = [(sum(map(edit.bytes, values)), count) for count, values in enumerate(joined) if inside.isdisjoint(values)]
    best = min(sizes, default=(0, 0))
    if not sizes or best[0] == sizes[0][0]:
        return None
    tail.links = {node: tail.links[node] for node in nodes[: best[1]]}
    return tail


def read_after(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the results of `nodes` that other nodes read, or that are outputs of the graph."""
    inside = set(nodes)
    return [value for node in nodes for value in node.outputs if is_read_outside(value, inside)]


def write_part(
    edit: ModelEdit,
    tail: JoinTail,
    node: ir.Node,
    number: int,
    parts: dict[ir.Value, list[ir.Value]],
    before: ir.Node | None,
) -> None:
    """Write a node of a tail for the part of this `number`, and add its results to `parts`."""
    start, stop = tail.ends[number : number + 2]
    results = [edit.resized(value, tail.axes[value], stop - start, f"part{number}") for value in node.outputs]
    inputs: list[ir.Value | None] = []
    for operand, link in zip(node.inputs, tail.links[node], strict=True):
        if operand in parts:
            inputs.append(parts[operand][number])
        elif operand is None or link is None:
            inputs.append(None if operand is None else edit.ready(operand))
        else:
            inputs.append(edit.part(f"{operand.name}/{start}", operand, (link.axis, start, stop)))
    edit.again(before, node, inputs, results)
    for value, part in zip(node.outputs, results, strict=True):
        parts.setdefault(value, []).append(part)


class _TailWriter:
    """Writes the nodes of a tail once for each operand of the join, right after the node that makes it."""

    def __init__(self, edit: ModelEdit, join: ir.Node, tail: JoinTail) -> None:
        self.edit, self.join, self.tail = edit, join, tail
        self.places = {node: index for index, node in enumerate(edit.model.graph)}
        self.parts: dict[ir.Value, list[ir.Value]] = {join.outputs[0]: []}

    def write(self) -> None:
        """Write all parts, and the joins of those results that other nodes read."""
        edit, tail = self.edit, self.tail
        for number, operand in enumerate(self.join.inputs):
            assert operand is not None
            self.parts[self.join.outputs[0]].append(edit.ready(operand))
            before = self._after(operand)
            for node in tail.links:
                write_part(edit, tail, node, number, self.parts, before)
        for value in read_after([self.join, *tail.links]):
            edit.replace(value, edit.join(self.join, value, self.parts[value], tail.axes[value], "joined"))

    def _after(self, operand: ir.Value) -> ir.Node:
        """Return the node before which the nodes of a part stand: after all that make its operands."""
        read = [operand, *(value for node in self.tail.links for value in dependencies(node))]
        makers = [
            source.producer() for source in read if source not in self.parts and source not in self.edit.constants
        ]
        last = max(
            (self.places[source] for source in makers if source in self.places and source not in self.tail.links),
            default=-1,
        )
        return next(node for node, index in self.places.items() if index > last)


# The items of a batch one after the other: each runs through all operators that treat every item alone.
#
# So the tensors between operators are those of one item. No product is computed twice.

_MOST = 16
"""Items of a batch, at most."""
_NODES = 50_000
"""Nodes of all items together, at most."""


def run_items_apart(edit: ModelEdit) -> list[ir.Node]:
    """Let each item of a batch run through the nodes that treat every item alone; return these nodes."""
    inputs = [value for value in edit.model.graph.inputs if edit.sizes(value)]
    count = next((sizes[0] for value in inputs if (sizes := edit.sizes(value)) and sizes[0] > 1), 0)
    if not 1 < count <= _MOST or edit.opset < 10 or count * len(edit.model.graph) > _NODES:
        return []
    batch = [value for value in inputs if (edit.sizes(value) or (0,))[0] == count]
    tail = JoinTail(list(range(count + 1)), dict.fromkeys(batch, 0))
    for node in edit.model.graph:
        if not tail.axes.keys().isdisjoint(node.inputs):
            tail.add(node, alone(edit, tail, node, frozenset()))
    if tail.links:
        _write(edit, tail, batch, _first_after(edit, list(tail.links)))
    return list(tail.links)


def _write(edit: ModelEdit, tail: JoinTail, cut: list[ir.Value], before: ir.Node | None) -> None:
    """Write the nodes of a tail once for each part, before a node; of each tensor of `cut` a part is a Slice."""
    nodes = list(tail.links)
    joined = read_after(nodes)
    parts: dict[ir.Value, list[ir.Value]] = {value: [] for value in cut}
    read = [value for value in cut if any(use.node in tail.links for use in value.uses())]
    for number, (start, stop) in enumerate(pairwise(tail.ends)):
        for value in read:
            axis = tail.axes[value]
            times = (edit.sizes(value) or ())[axis] // tail.ends[-1]
            bounds, attributes = edit.slice_bounds(([start * times], [stop * times], [axis]), "numbers")
            item = edit.resized(value, axis, (stop - start) * times, f"item{number}")
            parts[value].append(edit.add(before, "Slice", [value, *bounds], item, attributes))
        for node in nodes:
            write_part(edit, tail, node, number, parts, before)
    for value in joined:
        edit.replace(value, edit.join(before, value, parts[value], tail.axes[value], "items"))
    edit.drop_unread()


def _first_after(edit: ModelEdit, nodes: list[ir.Node]) -> ir.Node | None:
    """Return the first other node that depends on `nodes`; None where there is none."""
    results = {value for node in nodes for value in node.outputs}
    inside = set(nodes)
    return next(
        (
            reader
            for reader in edit.model.graph
            if reader not in inside and not results.isdisjoint(dependencies(reader))
        ),
        None,
    )


# The output of a model is made some channels at a time. The strips of a map are joined by a copy, so they live beside the whole map.
#
# The strips of a group of channels are joined alone, and die then. The groups lie one after the other in the bytes of the output.


def group_outputs(edit: ModelEdit, names: Collection[str], count: int, *, exact: bool) -> list[ir.Node]:
    """Make each output of `names` in `count` groups of channels at most, which are joined; return the nodes that made them.

    With `exact`, no product is cut. An output is left as it is where the parts of operands would take fewer bytes than its own.
    """
    changed = []
    for value in [operand for operand in edit.model.graph.outputs if operand.name in names and not operand.uses()]:
        node, sizes = value.producer(), edit.sizes(value) or ()
        axis = next((axis for axis, size in enumerate(sizes) if size > 1), None)
        if node is None or axis is None or len(node.outputs) > 1 or has_body(node) or (exact and _sums(node)):
            continue
        links = edit.links(node, axis) or ()
        cut = [
            (operand, link) for operand, link in zip(node.inputs, links, strict=False) if operand is not None and link
        ]
        operands = [operand for operand, _ in cut if operand not in edit.constants]
        parts = (_is_plain(link) or (_is_block(link) and operand not in edit.constants) for operand, link in cut)
        if not links or not all(parts) or len(set(operands)) < len(operands):
            continue
        if not operands or sum(map(edit.bytes, operands)) >= edit.bytes(value):
            tail = JoinTail([*_ends(sizes[axis], count)], {operand: link.axis for operand, link in cut})
            tail.add(node, (axis, links))
            _write(edit, tail, operands, node)
            changed.append(node)
    return changed


def _is_block(link: AxisLink) -> bool:
    """Return whether each element reads as many elements, which no other reads."""
    slide = link.window
    return slide is not None and slide == SlidingAxis(slide.stride, slide.stride, size=slide.size, out=slide.out)


def _ends(size: int, count: int) -> Iterator[int]:
    """Yield where groups of channels begin and end."""
    count = min(count, size)
    return (size * number // count for number in range(count + 1))
