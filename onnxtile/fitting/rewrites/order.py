"""Nodes run late or early, or once more, so that less lives at every place in between."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit, NodePosition
from onnxtile.fitting.network import FitKernel
from onnxtile.fitting.read_network import island_tensors, runs_as_one, separate
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.rewrites.means import SecondPass, makers_from_narrower, reductions_of, run_again
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import converts, quantises
from onnxtile.model.topology import dependencies
from onnxtile.system.dataclass import dataclass

# Nodes that make more than they use up run as late as they can.

_LARGEST = 24
"""Nodes that are moved together, at most."""


def delay_nodes(edit: ModelEdit) -> list[ir.Node]:
    """Move each node that raises the bytes alive to right before the first reader of its results; return the nodes that were moved.

    Its operands live until then. A node stays where those that no other node reads by then take as many bytes as its results; but with the
    nodes that make operands for it alone, it may raise the bytes alive, and then these are moved together. A node that draws random
    numbers stays.
    """
    moved = _LateOrder(edit).run()
    # Nodes that were moved together are then moved one by one.
    _LateOrder(edit).run(frozenset(moved))
    return moved


class _LateOrder:
    def __init__(self, edit: ModelEdit) -> None:
        self.edit, self.graph = edit, edit.model.graph
        self.keys: dict[ir.Node, NodePosition] = {node: (index,) for index, node in enumerate(self.graph)}
        self.reads = {node: list(dict.fromkeys(dependencies(node))) for node in self.graph}
        # In the order of the graph, so that the last reader is known without a look at the others.
        self.readers: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                self.readers.setdefault(value, []).append(node)
        self.outputs = set(self.graph.outputs)
        self.moved: dict[ir.Node, None] = {}

    def run(self, only: frozenset[ir.Node] | None = None) -> list[ir.Node]:
        """Move the nodes of the graph, or `only` these; return those that were moved."""
        previous: ir.Node | None = None
        for node in reversed(list(self.graph)):
            if node in self.moved:
                continue
            first = self._first_reader(node) if only is None or node in only else None
            group = [] if first is None or first is previous else self._group(node, first)
            if first is None or not group:
                previous = node
                continue
            for member in group:
                self._move(member, first)
        return list(self.moved)

    def _move(self, node: ir.Node, first: ir.Node) -> None:
        """Move `node` to right before `first`."""
        at, key = self.keys.__getitem__, self.keys[first]
        lists = [self.readers[value] for value in self.reads[node]]
        for readers in lists:
            del readers[bisect_left(readers, at(node), key=at)]
        # Of two nodes before the same one, the one that is moved later stands last.
        self.keys[node] = (*key[:-1], key[-1] - 1, len(self.reads) + len(self.moved))
        for readers in lists:
            insort(readers, node, key=at)
        self.graph.remove(node)
        self.graph.insert_before(first, [node])
        self.moved[node] = None

    def _first_reader(self, node: ir.Node) -> ir.Node | None:
        if not self.outputs.isdisjoint(node.outputs) or node in self.edit.random:
            return None
        readers = (reader for value in node.outputs for reader in self.readers.get(value, ()))
        return min(readers, key=self.keys.__getitem__, default=None)

    def _group(self, node: ir.Node, first: ir.Node) -> list[ir.Node]:
        """Return `node` with as few nodes before it as raise the bytes alive together, in their order; empty where none do."""
        group, results = {node}, set(node.outputs)
        size = sum(map(self.edit.bytes, node.outputs))
        while self.edit.least < size and len(group) <= _LARGEST:
            given = {value for maker in group for value in self.reads[maker]} - results
            if sum(self.edit.bytes(value) for value in given if self._lives_longer(value, group, first)) < size:
                return sorted(group, key=self.keys.__getitem__)
            makers = {value.producer() for value in given}
            alone = [maker for maker in makers if maker is not None and self._is_alone(maker, group)]
            if not alone:
                return []
            nearest = max(alone, key=self.keys.__getitem__)
            group.add(nearest)
            results.update(nearest.outputs)
        return []

    def _lives_longer(self, value: ir.Value, group: set[ir.Node], first: ir.Node) -> bool:
        if value in self.outputs:
            return False
        last = next((reader for reader in reversed(self.readers[value]) if reader not in group), None)
        return last is None or self.keys[last] < self.keys[first]

    def _is_alone(self, node: ir.Node, group: set[ir.Node]) -> bool:
        if node not in self.keys or node in self.moved or not self.outputs.isdisjoint(node.outputs):
            return False
        if node in self.edit.random:
            return False
        return all(reader in group for value in node.outputs for reader in self.readers.get(value, ()))


# Reductions of one tensor run one after the other, so that one run of strips makes its rows and reduces them in all ways.


def reduce_together(edit: ModelEdit) -> list[ir.Node]:
    """Move each reduction of a tensor that matters to right after the first one of the tensor; return the nodes that were moved.

    Their results are much smaller than the tensor, as the mean and the maximum of its channels are, and live longer.
    """
    graph, moved = edit.model.graph, list[ir.Node]()
    places = {node: position for position, node in enumerate(graph)}
    for value in [value for node in graph for value in node.outputs if len(value.uses()) > 1]:
        together = reductions_of(edit, value) if edit.bytes(value) > edit.least else set()
        in_order = sorted(together, key=places.__getitem__)
        for before, node in pairwise(in_order):
            makers = (operand.producer() for operand in node.inputs if operand is not None)
            is_ready = all(maker is None or places[maker] < places[in_order[0]] for maker in makers)
            if is_ready and places[node] > places[before] + 1:
                graph.remove(node)
                graph.insert_after(before, [node])
                moved.append(node)
    return moved


# Nodes that make less than they use up run as early as they can, so that less lives at every place in between.


def hasten_nodes(edit: ModelEdit) -> list[ir.Node]:
    """Move each node that lowers the bytes alive to right after the last node that it waits for; return the nodes that were moved.

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
    left = {value: len(value_readers) for value, value_readers in readers.items()}
    moved: list[ir.Node] = []
    end: ir.Node | None = None
    for index, node in enumerate(nodes):
        keys[node] = (index,)
        for value in read[node]:
            left[value] -= 1
        dying = [value for value in read[node] if not left[value] and value not in outputs]
        waits = [value.producer() for value in read[node]]
        waits += [reader for value in dying if edit.bytes(value) for reader in readers[value] if reader is not node]
        last = max(
            (reader for reader in waits if reader is not None and reader in keys), key=keys.__getitem__, default=None
        )
        is_smaller = sum(map(edit.bytes, dying)) > sum(map(edit.bytes, node.outputs)) + edit.least
        if last is None or last is end or not is_smaller or node in edit.random:
            end = node
            continue
        # Of two nodes moved to after the same node, the one that was moved later stands first.
        keys[node] = (*keys[last], -len(moved))
        graph.remove(node)
        graph.insert_after(last, [node])
        moved.append(node)
    return moved


# The order in which the plan of a model runs its kernels, as the order of its nodes.
#
# The nodes of a quantised island stand together then: each DequantizeLinear right before its reader.


def order_as_planned(
    model: ir.Model, results: Sequence[Sequence[str]], random: Container[ir.Node] = frozenset()
) -> list[ir.Node]:
    """Let the nodes of the main graph run in the order of a plan (in place); return those that stand elsewhere now.

    `results` has the names of the results of each step. Nodes that make none of them run right before their first reader. Those that draw
    `random` numbers keep their order.
    """
    graph = model.graph
    before = list(graph)
    makers = {value.name: node for node in before for value in node.outputs if value.name}
    earlier = {node: previous for previous, node in pairwise(node for node in before if node in random)}
    order: dict[ir.Node, None] = {}
    for node in (makers[name] for step in results for name in step if name in makers):
        _put(order, node, earlier)
    for node in before:
        _put(order, node, earlier)
    moved = [node for index, node in enumerate(order) if before[index] is not node]
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
        waits = [maker for maker in makers if maker is not None and maker.graph is last.graph and maker not in order]
        if waits:
            pending += reversed(waits)
            continue
        order.setdefault(pending.pop())


def join_islands(edit: ModelEdit) -> None:
    """Let the nodes of each quantised island stand together (in place), each with the DequantizeLinear nodes that it reads."""
    separate(edit.model, edit.shapes)
    runs = runs_as_one(list(edit.model.graph), island_tensors(edit.model, Constants(edit.model)).inside)
    order_as_planned(edit.model, [[value.name or "" for value in run[-1].outputs] for run in runs], edit.random)


# A wide tensor that waits long for its last readers is made again for them, from narrower tensors or from inputs.
#
# So it is in no memory meanwhile. The first level of a U-Net, which skips all others, is of this kind: it is made again from the image,
# strip by strip, together with what reads it.


_LONG = 8
"""Nodes that run while a tensor waits, at least; those that quantise or dequantise are not counted."""
_PART = 8
"""A tensor of this part of the largest sum of live bytes may be made again, and none of fewer bytes."""
_NARROWER = 2
"""What a tensor is made from again takes at most this part of its bytes."""


@dataclass(frozen=True)
class LongSkip:
    """What runs again so that a tensor need not wait, the bytes that this spares, and the multiply-accumulates that are done again."""

    again: SecondPass
    spared: int
    macs: int


def long_skips(edit: ModelEdit, regions: Regions, nodes: Mapping[ir.Node, ir.Node]) -> list[LongSkip]:
    """Return the tensors that may be made again, those first that spare most bytes for their multiply-accumulates.

    `nodes` has the nodes of `edit` for those of the `regions`.
    """
    skips = list(_long_skips(edit, regions, nodes))
    return sorted(skips, key=lambda skip: (-skip.spared / max(skip.macs, 1), skip.again.nodes[-1].name or ""))


def make_again(edit: ModelEdit, skips: list[LongSkip]) -> list[ir.Node]:
    """Let the late readers of tensors read copies that are made for them; return the nodes that make these tensors."""
    for skip in sorted(skips, key=lambda skip: len(skip.again.nodes)):
        run_again(edit, skip.again)
    return [skip.again.nodes[-1] for skip in skips]


def _long_skips(edit: ModelEdit, regions: Regions, nodes: Mapping[ir.Node, ir.Node]) -> Iterator[LongSkip]:
    network = regions.network
    readers: dict[int, list[int]] = {}
    for index, kernel in enumerate(network.kernels):
        for tensor in dict.fromkeys(kernel.reads):
            readers.setdefault(tensor, []).append(index)
    least = max((region.peak for region in regions.whole), default=0) // _PART
    counts = list(accumulate((len(kernel.members) - _conversions(kernel) for kernel in network.kernels), initial=0))
    macs = {nodes[kernel.source.node]: kernel.macs for kernel in network.kernels}
    sizes = {about.name: about.size for about in network.tensors}
    inside = frozenset(about.name for about in network.tensors if about.is_inside)
    places = {node: position for position, node in enumerate(edit.model.graph)}
    for tensor, maker in regions.makers.items():
        about, reading = network.tensors[tensor], readers.get(tensor, [])
        before = _last_before_gap(reading, counts)
        if before is None or about.size < max(least, 1) or about.is_kept:
            continue
        last = nodes[network.kernels[before].members[-1].source.node]
        node = next(nodes[part.source.node] for part in network.kernels[maker].members if tensor in part.makes)
        late = (part for index in reading if index > before for part in network.kernels[index].members)
        first = min(places[nodes[part.source.node]] for part in late if tensor in part.reads)
        cone = makers_from_narrower(edit, node.outputs[0], inside)
        # Nodes of an island may stand apart: those that read the tensor for a late kernel must come late, too.
        if cone is None or first < places[last]:
            continue
        again = (_quantised_from_outside(value, sizes) for value in _operands_of(cone))
        cone |= {member for member in again if member is not None}
        if not _is_made_once_more(cone):
            continue
        kept = sum(sizes.get(value.name or "", 0) for value in _operands_of(cone))
        if kept * _NARROWER <= about.size:
            second = SecondPass(last, tuple(sorted(cone, key=places.__getitem__)))
            yield LongSkip(second, about.size - kept, sum(macs.get(member, 0) for member in cone))


def _conversions(kernel: FitKernel) -> int:
    """Return how many nodes of a quantised island only quantise or dequantise."""
    return sum(converts(part.source.node) for part in kernel.parts)


def _operands_of(cone: set[ir.Node]) -> set[ir.Value]:
    """Return what nodes read that others make."""
    given = {value for member in cone for value in member.inputs if value is not None}
    return given - {value for member in cone for value in member.outputs}


def _quantised_from_outside(value: ir.Value, sizes: Mapping[str, int]) -> ir.Node | None:
    """Return the node that quantises a graph input to a value, where the input takes no bytes of the arena: so the value need not wait."""
    node = value.producer()
    source = node.inputs[0] if node is not None and quantises(node) else None
    is_outside = source is not None and source.is_graph_input() and not sizes.get(source.name or "", 1)
    return node if is_outside else None


def _last_before_gap(readers: list[int], nodes: Sequence[int]) -> int | None:
    """Return the last of the first readers of a tensor, after which it waits longest; None where it does not wait long.

    So many `nodes` run before each kernel.
    """
    gaps = [(nodes[later] - nodes[earlier], -earlier) for earlier, later in pairwise(readers)]
    longest, earlier = max(gaps, default=(0, 0))
    return -earlier if longest > _LONG else None


def _is_made_once_more(cone: set[ir.Node]) -> bool:
    """Return whether nodes may read their operands again: the rows of an input that comes row by row come once."""
    read = (value for node in cone for value in node.inputs if value is not None)
    return not any(keys.STREAM in value.metadata_props for value in read)
