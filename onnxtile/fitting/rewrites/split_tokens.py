"""Attention by parts: one head after the other, and one piece of the tokens after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import accumulate, groupby
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.read_network import island_tensors, runs_as_one
from onnxtile.fitting.strips import shares
from onnxtile.model.node_kinds import converts, dequantises
from onnxtile.model.topology import dependencies, has_body, is_read, nodes_inside
from onnxtile.operators.node_view import STANDARD
from onnxtile.operators.reads import AxisLink, AxisLinks
from onnxtile.operators.table import movement_of
from onnxtile.system.dataclass import dataclass

# The heads of attention one after the other: each with its columns of the projections, its scores and its result.
#
# Heads are independent of each other from the projections to the tensor that joins them, so only one head's keys, values and scores live at
# once. Each product is computed once, with the same operands.


_LARGEST = 96
"""Nodes of the heads of one attention, at most."""
_SMALL = 8
"""A tensor of this part of another, such as a mean of each row, is kept rather than made again."""
_LONGEST = 12
"""Nodes that are run again for each head, at most. Of neither number, those that quantise or dequantise are counted."""
_AGAIN = frozenset({"Add", "Cast", "Div", "LayerNormalization", "Mul", "Pow", "RMSNormalization", "Sqrt", "Sub"})
"""Operators without products that are cheap to run again, beside those that quantise, dequantise or rename."""


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


def is_attention(edit: ModelEdit, node: ir.Node) -> bool:
    """Return whether a node is a product of two tensors, as the scores of attention are."""
    factors = edit.factors(node)
    return factors is not None and not any(value in edit.constants for value in factors)


class _HeadFinder:
    """Finds the nodes around one product of two tensors that are computed for each head alone."""

    def __init__(self, edit: ModelEdit) -> None:
        self.edit, self.count = edit, 0

    def found(self, product: ir.Node) -> HeadGroup | None:
        """Return the group around `product`; None where it has no heads."""
        sizes = self.edit.sizes(product.outputs[0]) or ()
        if not is_attention(self.edit, product):
            return None
        # Heads that share their keys and values, as in grouped-query attention, stay together. The first axis may be that of a batch.
        groups = (
            self._group(product, HeadAxis(axis, unit), sizes[axis] // unit)
            for axis in range(len(sizes) - 2)
            for unit in range(1, sizes[axis] // 2 + 1)
            if sizes[axis] % unit == 0
        )
        return next((group for group in groups if group is not None), None)

    def _group(self, product: ir.Node, axis: HeadAxis, count: int) -> HeadGroup | None:
        self.count = count
        group = HeadGroup(count)
        try:
            self._grow(group, product, axis)
        except _NoHeads:
            return None
        # Integers are joined, not the floats of them that other nodes read.
        for node in list(group.nodes):
            if dequantises(node) and any(use.node not in group.nodes for use in node.outputs[0].uses()):
                del group.nodes[node]
        return group if sum(map(self.edit.has_weights, group.nodes)) > 1 else None

    def _grow(self, group: HeadGroup, product: ir.Node, axis: HeadAxis) -> None:
        pending: list[tuple[ir.Node, HeadAxis]] = [(product, axis)]
        while pending:
            node, heads = pending.pop()
            if node in group.nodes:
                if group.axes[node.outputs[0]] != heads:
                    raise _NoHeads
                continue
            if sum(not converts(member) for member in group.nodes) >= _LARGEST or len(node.outputs) > 1:
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
        if node not in done:
            group = finder.found(node)
            if group is not None and done.isdisjoint(group.nodes):
                done.update(group.nodes)
                groups[node] = group
    places = {node: index for index, node in enumerate(edit.model.graph)}
    for group in groups.values():
        _HeadWriter(edit, group, places).write()
    edit.model.graph.sort()  # a value of the heads may have readers before the last node of these
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
        products = [factors for node in self.group.nodes if (factors := edit.factors(node)) is not None]
        pending: list[ir.Value | None] = [right for _, right in products if right not in edit.constants]
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
            self.edit.again(before, node, inputs, [copy])
            copies[result] = copy
        return copies.get(value, value)

    def _cone(self, value: ir.Value) -> list[ir.Node]:
        """Return the nodes that make `value` from tensors that are small or live beside the heads, in their order; empty for none."""
        cone: dict[ir.Node, None] = {}
        pending, small = [value], self.edit.bytes(value) // _SMALL
        if self._is_read_after(value):
            return []
        # Each kernel makes floats of integers for itself.
        floats = [maker for maker in [value.producer()] if maker is not None and dequantises(maker)]
        while pending:
            node = pending.pop()
            maker = node.producer()
            is_there = maker is None or node in self.edit.constants or maker in cone
            if is_there or (node is not value and (self.edit.bytes(node) <= small or self._is_read_after(node))):
                continue
            assert maker is not None
            is_free = converts(maker) or movement_of(maker) == "renames"
            is_cheap = maker.op_type in _AGAIN and maker.domain in STANDARD
            if not (is_free or is_cheap) or sum(not converts(member) for member in cone) >= _LONGEST:
                return floats
            cone[maker] = None
            pending += [operand for operand in maker.inputs if operand is not None]
        return sorted(cone, key=self.places.__getitem__)

    def _is_read_after(self, value: ir.Value) -> bool:
        """Return whether a node after the heads reads `value`, as a residual connection does."""
        last = self.places[self.last]
        return any(self.places.get(use.node, -1) > last for use in value.uses())


# Tokens in pieces: every operator that treats each token alone runs on one piece of them after the other.
#
# A tensor between two operators is as many tensors as there are pieces, and each of them lives only until its last reader. Keys and values,
# which each token reads whole, are joined. A recurrent layer begins each piece with the state that the piece before left.


_OLDEST = 10
"""The first opset in which Slice takes its bounds as operands."""


class TokenRange(NamedTuple):
    """The tokens of a tensor: its axis of tokens, and their place among the `total` tokens that are cut, the first at `offset`.

    A tensor without the class token begins at 1, so that its pieces end where those of all tokens do.
    """

    axis: int
    total: int
    offset: int = 0


class TokenRead(NamedTuple):
    """The axis of tokens of an operand: token i of the result reads token i + `shift`."""

    axis: int
    shift: int = 0


TokenReads = tuple[TokenRead | None, ...]
"""One for each operand of a node; None for an operand that is read whole."""


@dataclass(frozen=True)
class TokenCut:
    """The tokens of a node's result, and those of its operands; a node that `moves` tokens has results that are parts of operands."""

    tokens: TokenRange
    reads: TokenReads
    moves: bool


class TokenPieces(NamedTuple):
    """The nodes that are now one for each piece, and the segment of each result of theirs, by its name.

    A segment is a run of nodes that is done for one piece after the other. It has the same number whatever the counts of pieces.
    """

    nodes: list[ir.Node]
    segments: dict[str, int]


def split_tokens(edit: ModelEdit, count: int, counts: Mapping[int, int] = MappingProxyType({})) -> TokenPieces:
    """Cut the tokens of `edit.model` into `count` pieces, those of the segments of `counts` into divisors of that."""
    cuts = _TokenAxes(edit, count).found() if edit.opset >= _OLDEST else {}
    writer = _PieceWriter(edit, cuts, count, counts)
    if cuts:
        writer.write(_breaks(edit, cuts))
    return TokenPieces(list(cuts), writer.segments)


class PieceReads(NamedTuple):
    """The tensors that each piece of a node's result reads whole, and those of which it reads the same tokens, by their names."""

    whole: frozenset[str]
    alike: frozenset[str]


def reads_of_pieces(edit: ModelEdit) -> dict[ir.Node, PieceReads]:
    """Return what the nodes read whose tokens are cut into pieces, whatever the number of pieces above one."""
    cuts = _TokenAxes(edit, 2).found() if edit.opset >= _OLDEST else {}
    return {node: _reads_of_pieces(edit, cuts, node) for node in cuts}


def _reads_of_pieces(edit: ModelEdit, cuts: dict[ir.Node, TokenCut], node: ir.Node) -> PieceReads:
    cut, whole, alike = cuts[node], _whole_reads(edit, cuts, node), list[ir.Value]()
    sizes = edit.sizes(node.outputs[0]) or ()
    # A piece of what moves tokens may read nothing of an operand.
    for operand, read in zip(node.inputs, () if cut.moves else cut.reads, strict=False):
        stored = None if operand is None else edit.stored(operand)
        if stored is None or operand is None or stored in edit.constants:
            continue
        if read is None:
            whole.append(stored)
        elif not read.shift and (edit.sizes(operand) or ())[read.axis] == sizes[cut.tokens.axis]:
            alike.append(stored)
    return PieceReads(*(frozenset(value.name or "" for value in values) for values in (whole, alike)))


# Recurrent layers: the steps are tokens, and each piece of them begins with the state after the piece before.

_STATES = {"GRU": 1, "LSTM": 2, "RNN": 1}
"""The number of states of each recurrent operator: its last results, and its operands from `_FIRST_STATE` on."""
_LENGTHS, _FIRST_STATE = 4, 5


def is_recurrent(node: ir.Node) -> bool:
    """Return whether a node runs all steps of its operand forward and gives a result for each."""
    if node.op_type not in _STATES or node.domain not in STANDARD or not node.outputs[0].name:
        return False
    plain = node.attributes.get_string("direction", "forward") == "forward" and not node.attributes.get_int("layout", 0)
    return plain and (len(node.inputs) <= _LENGTHS or node.inputs[_LENGTHS] is None)


def separate_directions(edit: ModelEdit) -> list[ir.Node]:
    """Let each recurrent layer of two directions be one of each, joined; return those that went. The one that runs forward may be cut."""
    separated = []
    for node in list(edit.model.graph):
        is_plain = node.op_type in _STATES and node.domain in STANDARD and bool(node.outputs[0].name)
        is_plain &= not node.attributes.get_int("layout", 0) and node.attributes.keys().isdisjoint(_OF_DIRECTIONS)
        if is_plain and node.attributes.get_string("direction", "forward") == "bidirectional":
            # The layer that runs in reverse is whole before the pieces of the other.
            parts = [_one_direction(edit, node, number) for number in (1, 0)][::-1]
            for position, value in enumerate(node.outputs):
                if value.name:
                    directions = [results[position] for results in parts]
                    edit.replace(value, edit.join(node, value, directions, 0 if position else 1, "directions"))
            edit.model.graph.remove(node, safe=True)
            separated.append(node)
    return separated


_OF_DIRECTIONS = {"activations", "activation_alpha", "activation_beta"}
"""Attributes with values for both directions."""


def _one_direction(edit: ModelEdit, node: ir.Node, number: int) -> list[ir.Value]:
    """Write one direction of a recurrent layer of two; return its results."""
    inputs: list[ir.Value | None] = []
    for position, value in enumerate(node.inputs):
        if value is None or position in {0, _LENGTHS}:
            inputs.append(value)
        elif value in edit.constants:
            inputs.append(edit.part(f"{value.name}/{number}", value, (0, number, number + 1)))
        else:
            bounds, attributes = edit.slice_bounds(([number], [number + 1], [0]), "numbers")
            part = edit.resized(value, 0, 1, f"direction{number}")
            inputs.append(edit.add(node, "Slice", [value, *bounds], part, attributes))
    results = [
        edit.resized(value, 0 if position else 1, 1, f"direction{number}") if value.name else ir.Value(name="")
        for position, value in enumerate(node.outputs)
    ]
    edit.again(node, node, inputs, results)
    layer = results[0].producer()
    assert layer is not None
    layer.attributes["direction"] = ir.AttrString("direction", ("forward", "reverse")[number])
    return results


_PASSES = 4
"""Passes over the graph in both directions, at most, until the axes of tokens are known."""


class _TokenAxes:
    """Finds the nodes whose results have tokens that are computed alone.

    The rows of a product with constant weights, and the steps of a recurrent layer, are tokens. From there the axes are followed to
    readers and makers.
    """

    def __init__(self, edit: ModelEdit, count: int) -> None:
        self.edit, self.count = edit, count
        self.tokens: dict[ir.Value, TokenRange] = {}
        self.nodes = [
            node
            for node in edit.model.graph
            if (len(node.outputs) == 1 or is_recurrent(node))
            and not has_body(node)
            and node.outputs[0] not in edit.constants
        ]

    def found(self) -> dict[ir.Node, TokenCut]:
        """Return how each node is cut."""
        for node in self.nodes:
            if is_recurrent(node):
                self.tokens[node.outputs[0]] = TokenRange(0, self._sizes(node)[0])
        for node in self.nodes:
            if self.edit.has_weights(node):
                axis = max(len(self._sizes(node)) - 2, 0)
                # A single token, such as that of a class, says nothing of the tokens before it.
                if self._sizes(node)[axis] > 1:
                    self.tokens.setdefault(node.outputs[0], TokenRange(axis, self._sizes(node)[axis]))
        for _ in range(_PASSES):
            known = len(self.tokens)
            for node in reversed(self.nodes):
                self._follow_back(node)
            for node in self.nodes:
                self._follow(node)
            if len(self.tokens) == known:
                break
        # Floats of integers are no tensors of their own: a DequantizeLinear is written with each piece that reads it.
        stored = (node for node in self.nodes if self.edit.stored(node.outputs[0]) is node.outputs[0])
        return self._of_whole_islands({node: cut for node in stored if (cut := self._cut(node)) is not None})

    def _of_whole_islands(self, cuts: dict[ir.Node, TokenCut]) -> dict[ir.Node, TokenCut]:
        """Return `cuts` without the islands that are not cut as a whole: a part of one alone would store floats."""
        inside = island_tensors(self.edit.model, self.edit.constants).inside
        for run in runs_as_one(list(self.edit.model.graph), inside):
            members = {node for node in run if len(run) > 1 and not dequantises(node)}
            if not cuts.keys() >= members:
                cuts = {node: cut for node, cut in cuts.items() if node not in members}
        return cuts

    def _sizes(self, node: ir.Node) -> tuple[int, ...]:
        return self.edit.sizes(node.outputs[0]) or ()

    def _follow_back(self, node: ir.Node) -> None:
        """Let operands have the tokens of the result, but for those of which it has a part or that are parts of it."""
        tokens = self.tokens.get(node.outputs[0])
        reads = None if tokens is None else self._reads(node, tokens.axis)
        if tokens is None or reads is None or self._moves(node, tokens.axis):
            return
        for value, read in zip(node.inputs, reads, strict=False):
            if value is not None and read is not None and value not in self.edit.constants:
                self.tokens.setdefault(value, tokens._replace(axis=read.axis))

    def _follow(self, node: ir.Node) -> None:
        """Let the result have the tokens of the first operand from which it has some."""
        if node.outputs[0] in self.tokens:
            return
        for index, value in enumerate(node.inputs):
            tokens = None if value is None else self.tokens.get(value)
            for axis, size in enumerate(() if tokens is None else self._sizes(node)):
                reads = self._reads(node, axis)
                read = None if reads is None else reads[index]
                if tokens is None or read is None or read.axis != tokens.axis:
                    continue
                offset = tokens.offset + read.shift
                if 0 <= offset <= tokens.total - size:
                    self.tokens[node.outputs[0]] = TokenRange(axis, tokens.total, offset)
                    return

    def _cut(self, node: ir.Node) -> TokenCut | None:
        tokens = self.tokens.get(node.outputs[0])
        if tokens is None or not self._sizes(node) or tokens.total < self.count:
            return None
        reads, moves = self._reads(node, tokens.axis), self._moves(node, tokens.axis)
        # A piece of what is moved may be a piece of an operand, which cannot have the name of an output, too.
        if reads is None or not any(reads) or (moves and node.outputs[0].is_graph_output()):
            return None
        return TokenCut(tokens, reads, moves)

    def _moves(self, node: ir.Node, axis: int) -> bool:
        """Return whether a node joins operands along an axis, or takes a part of one."""
        if node.op_type == "Concat":
            return node.attributes.get_int("axis", 0) % len(self._sizes(node)) == axis
        return node.op_type == "Slice" and node.domain in STANDARD and self.edit.links(node, axis) != _same(node, axis)

    def _reads(self, node: ir.Node, axis: int) -> TokenReads | None:
        """Return what a result reads along an axis; None where an element reads several of an operand that is not read whole."""
        if is_recurrent(node):
            return None if axis else (TokenRead(0), *(None for _ in node.inputs[1:]))
        sizes = self._sizes(node)
        if node.op_type == "Concat" and self._moves(node, axis):
            lengths = [0 if value is None else (self.edit.sizes(value) or sizes)[axis] for value in node.inputs]
            return tuple(TokenRead(axis, -before) for before in accumulate(lengths[:-1], initial=0))
        links = self.edit.links(node, axis)
        if not links:
            return None
        reads = [None if link is None else self._read(node, link, sizes[axis]) for link in links]
        return None if any(link and not read for link, read in zip(links, reads, strict=True)) else tuple(reads)

    def _read(self, node: ir.Node, link: AxisLink, size: int) -> TokenRead | None:
        """Return the tokens of an operand as its link has them: the same ones, or of a Slice those after its start."""
        if link == AxisLink(link.axis):
            return TokenRead(link.axis)
        if node.op_type != "Slice" or node.domain not in STANDARD:
            return None
        window = link.reads(0, size)
        return TokenRead(link.axis, window.start) if window.stop - window.start == size else None


def _same(node: ir.Node, axis: int) -> AxisLinks:
    """Return the links of a node whose results have the same place as those of its first operand."""
    return (AxisLink(axis), *(None for _ in node.inputs[1:]))


def _whole_reads(edit: ModelEdit, cuts: dict[ir.Node, TokenCut], node: ir.Node) -> list[ir.Value]:
    """Return the stored operands in pieces that a node reads whole, or along another axis than that of their tokens.

    A DequantizeLinear reads none: its readers do.
    """
    if edit.stored(node.outputs[0]) is not node.outputs[0]:
        return []
    cut = cuts.get(node)
    whole = []
    for index, operand in enumerate(node.inputs):
        value = None if operand is None else edit.stored(operand)
        maker = None if value is None else value.producer()
        if value is None or maker is None or maker not in cuts:
            continue
        if cut is None or value is not maker.outputs[0] or not _is_aligned(cut, index, cuts[maker]):
            whole.append(value)
    return whole


def _is_aligned(cut: TokenCut, index: int, maker: TokenCut | None) -> bool:
    """Return whether each piece of a node's result reads the same piece of an operand."""
    if maker is None:
        return False
    read, tokens = cut.reads[index], maker.tokens
    return read is not None and tokens._replace(offset=tokens.offset + read.shift) == (
        read.axis,
        cut.tokens.total,
        cut.tokens.offset,
    )


def _breaks(edit: ModelEdit, cuts: dict[ir.Node, TokenCut]) -> set[ir.Node]:
    """Return the nodes before which all pieces of the nodes before them are done.

    These are the nodes soon after the last reader of a tensor that is read whole, and those where the fewest bytes live in between.
    """
    inside = island_tensors(edit.model, edit.constants).inside
    runs = runs_as_one(list(edit.model.graph), inside)
    last: dict[ir.Value, int] = {}
    last_whole: dict[ir.Value, int] = {}
    for index, node in ((index, node) for index, run in enumerate(runs) for node in run):
        last.update(dict.fromkeys(dependencies(node), index))
        last_whole.update(dict.fromkeys(_whole_reads(edit, cuts, node), index))
    live: list[int] = []
    free: list[bool] = []
    held: set[ir.Value] = set()
    for index, run in enumerate(runs):
        results = [value for node in run for value in node.outputs if value not in inside]
        held = {value for value in (*held, *results) if last_whole.get(value, -1) > index}
        free.append(not held)
        read = dict.fromkeys(value for node in run for value in dependencies(node) if value not in inside)
        dying = (value for value in read if last[value] == index)
        live.append((live or [0])[-1] + sum(map(edit.bytes, results)) - sum(map(edit.bytes, dying)))
    stretches = (list(places) for is_free, places in groupby(range(len(runs) - 1), free.__getitem__) if is_free)
    breaks: set[int] = set()
    for stretch in stretches:
        breaks |= _least(live, stretch if not stretch[0] else stretch[1:])
        breaks |= {_soon(live, stretch)} if stretch[0] else set()
    return {
        next(node for node in runs[index + 1] if not dequantises(node) or len(runs[index + 1]) == 1) for index in breaks
    }


def _soon(live: Sequence[int], stretch: Sequence[int]) -> int:
    """Return the first place of a stretch with fewer bytes than at its start, unless a place before has more; else the start.

    Tensors that are read whole before the stretch live until then.
    """
    start = stretch[0]
    change = next((index for index in stretch if live[index] != live[start]), start)
    return change if live[change] < live[start] else start


def _least(live: Sequence[int], stretch: Sequence[int]) -> set[int]:
    """Return the places of a stretch where the fewest bytes live; of neighbouring places the last."""
    least = min((live[index] for index in stretch), default=0)
    places = {index for index in stretch if live[index] == least}
    return {index for index in places if index + 1 not in places}


class _PieceWriter:
    """Writes each node once for each piece, segment by segment."""

    def __init__(self, edit: ModelEdit, cuts: dict[ir.Node, TokenCut], count: int, counts: Mapping[int, int]) -> None:
        self.edit, self.cuts, self.count, self.counts = edit, cuts, count, counts
        self.pieces: dict[ir.Value, list[tuple[int, int, ir.Value]]] = {}
        """The pieces of each result, with the first of their tokens and one past the last."""
        self.joined: dict[ir.Value, ir.Value] = {}
        self.parts: dict[tuple[ir.Value, int, int, int], ir.Value] = {}
        self.segment: list[ir.Node] = []
        self.states: dict[ir.Node, list[ir.Value]] = {}
        self.segments: dict[str, int] = {}
        self.written = 0

    def write(self, breaks: set[ir.Node]) -> None:
        """Write all segments; each node of `breaks` begins another one."""
        graph = self.edit.model.graph
        gone: list[ir.Node] = []
        for node in list(graph):
            if node in breaks:
                self._flush(node)
            if self._is_written_by_readers(node):
                gone.append(node)
                continue
            self._flush_makers(_whole_reads(self.edit, self.cuts, node), node)
            if node in self.cuts:
                self.segment.append(node)
                gone.append(node)
            else:
                self._keep(node)
        self._flush(None)
        for value in list(graph.outputs):
            if value in self.pieces:
                self.edit.replace(value, self._whole(value, None))
        for node in reversed(gone):
            graph.remove(node, safe=True)

    def _is_written_by_readers(self, node: ir.Node) -> bool:
        """Return whether a node gives floats of integers to nodes that are cut alone."""
        value = node.outputs[0]
        uses = value.uses() if self.edit.stored(value) is not value else ()
        return bool(uses) and all(use.node in self.cuts for use in uses)

    def _keep(self, node: ir.Node) -> None:
        """Give a node that is not cut, and the nodes of its bodies, their operands as wholes."""
        read = list(dict.fromkeys(dependencies(node)))
        if not set(self.segment).isdisjoint(value.producer() for value in read):
            self._flush(node)
        readers = {node, *nodes_inside(node)}
        for value in [value for value in read if value in self.pieces]:
            whole = self._whole(value, node)
            for use in [use for use in value.uses() if use.node in readers]:
                use.node.replace_input_with(use.idx, whole)

    def _flush_makers(self, values: Sequence[ir.Value], before: ir.Node) -> None:
        """Write all pieces of values, and what these are made of; other nodes of the segment wait, as queries do for the keys."""
        wanted = set(values)
        makers: list[ir.Node] = []
        for node in reversed(self.segment):
            if not wanted.isdisjoint(node.outputs):
                makers.append(node)
                wanted.update(map(self.edit.stored, dependencies(node)))
        if makers:
            taken = set(makers)
            waiting = [node for node in self.segment if node not in taken]
            self.segment = makers[::-1]
            self._flush(before)
            self.segment = waiting

    def _flush(self, before: ir.Node | None) -> None:
        count = self.counts.get(self.written, self.count)
        for piece in range(count if self.segment else 0):
            for node in self.segment:
                self._add_piece(node, piece, count, before)
        self.written += bool(self.segment)
        self.segment = []

    def _add_piece(self, node: ir.Node, piece: int, count: int, before: ir.Node | None) -> None:
        """Write one of `count` pieces of a node, where some of its tokens are in it."""
        result, tokens = node.outputs[0], self.cuts[node].tokens
        rows = shares(tokens.total, count)[piece]
        assert rows is not None
        start = max(rows[0] - tokens.offset, 0)
        stop = min(rows[1] - tokens.offset, (self.edit.sizes(result) or ())[tokens.axis])
        if start < stop:
            written = self._piece(node, start, stop, (piece, count), before)
            self.pieces.setdefault(result, []).append((start, stop, written))
            self.segments.setdefault(written.name or "", self.written)

    def _whole(self, value: ir.Value, before: ir.Node | None) -> ir.Value:
        """Return a tensor as a whole; its pieces are joined once."""
        if value not in self.pieces:
            return value
        if value not in self.joined:
            maker = value.producer()
            assert maker is not None
            pieces = [piece for _, _, piece in self.pieces[value]]
            axis = self.cuts[maker].tokens.axis
            self.joined[value] = self.edit.join(before, value, pieces, axis, "whole") if len(pieces) > 1 else pieces[0]
        return self.joined[value]

    def _piece(self, node: ir.Node, start: int, stop: int, number: tuple[int, int], before: ir.Node | None) -> ir.Value:
        """Write the tokens of a node from `start` to `stop`, with the number of the piece and of all pieces."""
        output, cut = node.outputs[0], self.cuts[node]
        axis, piece = cut.tokens.axis, number[0]
        if cut.moves:
            return self._joined(output, axis, self._moved(node, start, stop, before), f"piece{piece}", before)
        inputs = [
            None if value is None else self._operand(node, index, start, stop, before)
            for index, value in enumerate(node.inputs)
        ]
        is_reshaped = node.op_type in {"Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten"}
        sizes = self.edit.sizes(output) or ()
        numbers = self._numbers([*sizes[:axis], stop - start, *sizes[axis + 1 :]]) if is_reshaped else None
        result = self.edit.resized(output, axis, stop - start, f"piece{piece}")
        if is_recurrent(node):
            states = self._states(node, inputs, *number)
            self.edit.again(before, node, inputs, [result, *states])
        else:
            self.edit.again(before, node, inputs, [result], numbers)
        return result

    def _states(self, node: ir.Node, inputs: list[ir.Value | None], piece: int, pieces: int) -> list[ir.Value]:
        """Let a piece of a recurrent layer begin with the states after the piece before; return those after it.

        Readers of the states of the layer take those after the last piece; one that nothing reads has no name.
        """
        count, is_last = _STATES[node.op_type], piece == pieces - 1
        if piece:
            inputs += [None] * (_FIRST_STATE + count - len(inputs))
            inputs[_FIRST_STATE : _FIRST_STATE + count] = self.states[node]
        batch, hidden = (self.edit.sizes(node.outputs[0]) or ())[2:]
        results = [*node.outputs[1:], *(ir.Value(name="") for _ in range(count + 1 - len(node.outputs)))]
        states = []
        for number, whole in enumerate(results):
            is_kept = not is_last or is_read(whole)
            name, dtype = f"{node.outputs[0].name}/state{number}", self.edit.dtype(node.outputs[0])
            states.append(self.edit.value(name, (1, batch, hidden), dtype) if is_kept else ir.Value(name=""))
            if is_last and is_kept:
                self.edit.replace(whole, states[-1])
        self.states[node] = states
        return states

    def _operand(self, node: ir.Node, index: int, start: int, stop: int, before: ir.Node | None) -> ir.Value:
        """Return what the tokens of the result from `start` to `stop` read of an operand: of integers, floats for this reader alone."""
        value, read = node.inputs[index], self.cuts[node].reads[index]
        assert value is not None
        stored, maker = self.edit.stored(value), value.producer()
        part = self._stored_part(stored, node, index, start, stop, before)
        if stored is value or maker is None:
            return part
        links = None if read is None else self.edit.links(maker, read.axis)
        inputs: list[ir.Value | None] = [part, *maker.inputs[1:]]
        for position, (number, link) in enumerate(zip(maker.inputs, links or (), strict=False)):
            if position and number is not None and link is not None and read is not None:
                inputs[position] = self._slice(number, link.axis, start + read.shift, stop + read.shift, before)
        result = self.edit.value(f"{value.name}/{start}", self.edit.sizes(part) or (), self.edit.dtype(value))
        self.edit.again(before, maker, inputs, [result])
        return result

    def _stored_part(
        self, value: ir.Value, node: ir.Node, index: int, start: int, stop: int, before: ir.Node | None
    ) -> ir.Value:
        """Return what the tokens of a node's result read of the operand that is stored for one."""
        maker, cut = value.producer(), self.cuts[node]
        read = cut.reads[index]
        if read is None:
            return self._whole(value, before)
        first, last = start + read.shift, stop + read.shift
        if value not in self.joined and maker is not None and _is_aligned(cut, index, self.cuts.get(maker)):
            for base, end, piece in self.pieces[value]:
                if base <= first and last <= end:
                    return self._slice(piece, read.axis, first - base, last - base, before)
        # Parts of several pieces are parts of all, which are joined once: a second copy of some pieces would live beside them.
        return self._slice(self._whole(value, before), read.axis, first, last, before)

    def _joined(
        self, value: ir.Value, axis: int, parts: Sequence[ir.Value], ending: str, before: ir.Node | None
    ) -> ir.Value:
        """Return the Concat of neighbouring parts of a value."""
        if len(parts) == 1:
            return parts[0]
        part = self.edit.resized(value, axis, sum((self.edit.sizes(piece) or ())[axis] for piece in parts), ending)
        return self.edit.add(before, "Concat", parts, part, [ir.AttrInt64("axis", axis)])

    def _moved(self, node: ir.Node, start: int, stop: int, before: ir.Node | None) -> list[ir.Value]:
        """Return what the tokens from `start` to `stop` of a Concat or Slice are: parts of its operands."""
        parts = []
        for index, (value, read) in enumerate(zip(node.inputs, self.cuts[node].reads, strict=True)):
            if value is None or read is None:
                continue
            length = (self.edit.sizes(value) or ())[read.axis]
            first, last = max(start, -read.shift), min(stop, length - read.shift)
            if first < last:
                parts.append(self._operand(node, index, first, last, before))
        return parts

    def _numbers(self, numbers: Sequence[int]) -> ir.Value:
        return self.edit.shared("pieces/sizes", np.asarray(numbers, np.int64))

    def _slice(self, value: ir.Value, axis: int, start: int, stop: int, before: ir.Node | None) -> ir.Value:
        if (start, stop) == (0, (self.edit.sizes(value) or ())[axis]):
            return value
        key = (value, axis, start, stop)
        if key not in self.parts and value in self.edit.constants:
            self.parts[key] = self.edit.part(f"{value.name}/{start}", value, key[1:])
        if key not in self.parts:
            part = self.edit.resized(value, axis, stop - start, str(start))
            bounds = [self._numbers([number]) for number in (start, stop, axis)]
            self.parts[key] = self.edit.add(before, "Slice", [value, *bounds], part)
        return self.parts[key]
