"""Tokens in pieces: every operator that treats each token alone runs on one piece of them after the other.

A tensor between two operators is as many tensors as there are pieces, and each of them lives only until its last reader. Keys and values,
which each token reads whole, are joined. A recurrent layer begins each piece with the state that the piece before left.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.strips import shares
from onnxtile.model.topology import dependencies, has_body
from onnxtile.operators.node_view import STANDARD
from onnxtile.operators.reads import AxisLink, AxisLinks
from onnxtile.system.dataclass import dataclass

_OLDEST = 10
"""The first opset in which Slice takes its bounds as operands."""


@dataclass(frozen=True)
class TokenCut:
    """The axis of tokens of a node's result, and the links of its operands along it; None for a Concat of tokens."""

    axis: int
    links: AxisLinks | None


def split_tokens(edit: ModelEdit, count: int) -> list[ir.Node]:
    """Cut the tokens of `edit.model` into `count` pieces; return the nodes that are now one for each piece."""
    if edit.opset < _OLDEST or count < 2:
        return []
    cuts = _TokenAxes(edit, count).found()
    if cuts:
        _PieceWriter(edit, cuts, count, _breaks(edit, cuts)).write()
    return list(cuts)


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


_PASSES = 4
"""Passes over the graph in both directions, at most, until the axes of tokens are known."""


class _TokenAxes:
    """Finds the nodes whose results have tokens that are computed alone.

    The rows of a product with constant weights, and the steps of a recurrent layer, are tokens. From there the axes are followed to
    readers and makers.
    """

    def __init__(self, edit: ModelEdit, count: int) -> None:
        self.edit, self.count = edit, count
        self.axes: dict[ir.Value, int] = {}
        self.nodes = [
            node
            for node in edit.model.graph
            if (len(node.outputs) == 1 or is_recurrent(node))
            and not has_body(node)
            and node.outputs[0] not in edit.constants
        ]

    def found(self) -> dict[ir.Node, TokenCut]:
        """Return how each node is cut."""
        self.axes.update((node.outputs[0], 0) for node in self.nodes if is_recurrent(node))
        for node in self.nodes:
            if node.op_type in {"MatMul", "Gemm"} and node.inputs[1] in self.edit.constants:
                axis = max(len(self._sizes(node)) - 2, 0)
                # A single token, such as that of a class, says nothing of the tokens before it.
                if self._sizes(node)[axis] > 1:
                    self.axes.setdefault(node.outputs[0], axis)
        for _ in range(_PASSES):
            known = len(self.axes)
            for node in reversed(self.nodes):
                self._follow_back(node)
            for node in self.nodes:
                self._follow(node)
            if len(self.axes) == known:
                break
        cuts = ((node, self._cut(node)) for node in self.nodes)
        return {node: cut for node, cut in cuts if cut is not None}

    def _sizes(self, node: ir.Node) -> tuple[int, ...]:
        return self.edit.sizes(node.outputs[0]) or ()

    def _follow_back(self, node: ir.Node) -> None:
        axis = self.axes.get(node.outputs[0])
        for value, link in zip(node.inputs, (axis is not None and self._links(node, axis)) or (), strict=False):
            if value is not None and link is not None and value not in self.edit.constants:
                self.axes.setdefault(value, link.axis)

    def _follow(self, node: ir.Node) -> None:
        """Let the result have the tokens of the first operand from which it has some."""
        if node.outputs[0] in self.axes:
            return
        for index, value in enumerate(node.inputs):
            token_axis = None if value is None else self.axes.get(value)
            if token_axis is None:
                continue
            for axis in range(len(self._sizes(node))):
                links = self._links(node, axis)
                if links is not None and links[index] == AxisLink(token_axis):
                    self.axes[node.outputs[0]] = axis
                    return

    def _cut(self, node: ir.Node) -> TokenCut | None:
        axis, sizes = self.axes.get(node.outputs[0]), self._sizes(node)
        if axis is None or not sizes or sizes[axis] < self.count:
            return None
        if node.op_type == "Concat" and node.attributes.get_int("axis", 0) % len(sizes) == axis:
            return TokenCut(axis, None)
        links = self._links(node, axis)
        return TokenCut(axis, links) if links is not None and any(link is not None for link in links) else None

    def _links(self, node: ir.Node, axis: int) -> AxisLinks | None:
        """Return the links along an axis; None where an element of the result reads several of an operand that is not read whole."""
        if is_recurrent(node):
            return None if axis else (AxisLink(0), *(None for _ in node.inputs[1:]))
        links = self.edit.links(node, axis)
        return links if links and all(link is None or link == AxisLink(link.axis) for link in links) else None


def _whole_reads(cuts: dict[ir.Node, TokenCut], node: ir.Node) -> list[ir.Value]:
    """Return the operands in pieces that a node reads whole, or along another axis than that of their tokens."""
    cut = cuts.get(node)
    whole = []
    for index, value in enumerate(node.inputs):
        maker = None if value is None else value.producer()
        if value is None or maker is None or maker not in cuts:
            continue
        link = None if cut is None or cut.links is None else cut.links[index]
        if link != AxisLink(cuts[maker].axis) or value is not maker.outputs[0]:
            whole.append(value)
    return whole


def _breaks(edit: ModelEdit, cuts: dict[ir.Node, TokenCut]) -> set[ir.Node]:
    """Return the nodes before which all pieces of the nodes before them are done.

    These are the nodes soon after the last reader of a tensor that is read whole, and those where the fewest bytes live in between.
    """
    nodes = list(edit.model.graph)
    last: dict[ir.Value, int] = {}
    last_whole: dict[ir.Value, int] = {}
    for index, node in enumerate(nodes):
        last.update(dict.fromkeys(dependencies(node), index))
        last_whole.update(dict.fromkeys(_whole_reads(cuts, node), index))
    live: list[int] = []
    free: list[bool] = []
    held: set[ir.Value] = set()
    for index, node in enumerate(nodes):
        held = {value for value in (*held, *node.outputs) if last_whole.get(value, -1) > index}
        free.append(not held)
        dying = (value for value in dict.fromkeys(dependencies(node)) if last[value] == index)
        live.append((live or [0])[-1] + sum(map(edit.bytes, node.outputs)) - sum(map(edit.bytes, dying)))
    stretches = (list(places) for is_free, places in groupby(range(len(nodes) - 1), free.__getitem__) if is_free)
    breaks: set[int] = set()
    for stretch in stretches:
        breaks |= _least(live, stretch if not stretch[0] else stretch[1:])
        breaks |= {_soon(live, stretch)} if stretch[0] else set()
    return {nodes[index + 1] for index in breaks}


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

    def __init__(self, edit: ModelEdit, cuts: dict[ir.Node, TokenCut], count: int, breaks: set[ir.Node]) -> None:
        self.edit, self.cuts, self.count, self.breaks = edit, cuts, count, breaks
        self.pieces: dict[ir.Value, list[ir.Value]] = {}
        self.joined: dict[ir.Value, ir.Value] = {}
        self.parts: dict[tuple[ir.Value, int, int, int], ir.Value] = {}
        self.segment: list[ir.Node] = []
        self.states: dict[ir.Node, list[ir.Value]] = {}

    def write(self) -> None:
        graph = self.edit.model.graph
        nodes = list(graph)
        for node in nodes:
            if node in self.breaks:
                self._flush(node)
            self._flush_makers(_whole_reads(self.cuts, node), node)
            if node in self.cuts:
                self.segment.append(node)
            else:
                self._keep(node)
        self._flush(None)
        for value in list(graph.outputs):
            if value in self.pieces:
                self.edit.replace(value, self._whole(value, None))
        for node in reversed(nodes):
            if node in self.cuts:
                graph.remove(node, safe=True)

    def _keep(self, node: ir.Node) -> None:
        """Give a node that is not cut its operands as wholes."""
        if not set(self.segment).isdisjoint(value.producer() for value in dependencies(node)):
            self._flush(node)
        for index, value in enumerate(node.inputs):
            if value in self.pieces:
                node.replace_input_with(index, self._whole(value, node))

    def _flush_makers(self, values: Sequence[ir.Value], before: ir.Node) -> None:
        """Write all pieces of values, and what these are made of; other nodes of the segment wait, as queries do for the keys."""
        wanted = set(values)
        makers: list[ir.Node] = []
        for node in reversed(self.segment):
            if not wanted.isdisjoint(node.outputs):
                makers.append(node)
                wanted.update(dependencies(node))
        if makers:
            taken = set(makers)
            waiting = [node for node in self.segment if node not in taken]
            self.segment = makers[::-1]
            self._flush(before)
            self.segment = waiting

    def _flush(self, before: ir.Node | None) -> None:
        for piece in range(self.count):
            for node in self.segment:
                result = node.outputs[0]
                self.pieces.setdefault(result, []).append(self._piece(node, piece, before))
        self.segment = []

    def _range(self, value: ir.Value, axis: int, piece: int) -> tuple[int, int]:
        sizes = self.edit.sizes(value)
        assert sizes is not None
        rows = shares(sizes[axis], self.count)[piece]
        assert rows is not None
        return rows

    def _whole(self, value: ir.Value, before: ir.Node | None) -> ir.Value:
        """Return a tensor as a whole; its pieces are joined once."""
        if value not in self.pieces:
            return value
        if value not in self.joined:
            maker = value.producer()
            assert maker is not None
            self.joined[value] = self.edit.join(before, value, self.pieces[value], self.cuts[maker].axis, "whole")
        return self.joined[value]

    def _piece(self, node: ir.Node, piece: int, before: ir.Node | None) -> ir.Value:
        output, cut = node.outputs[0], self.cuts[node]
        start, stop = self._range(output, cut.axis, piece)
        inputs: list[ir.Value | None]
        if cut.links is None:
            inputs = [*self._concatenated(node, cut.axis, start, stop, before)]
            if len(inputs) == 1 and inputs[0] is not None:
                return inputs[0]
        else:
            inputs = [
                None if value is None else self._operand(value, link, start, stop, piece, before)
                for value, link in zip(node.inputs, cut.links, strict=True)
            ]
        is_reshaped = node.op_type in {"Reshape", "Expand", "Squeeze", "Unsqueeze", "Flatten"}
        sizes = self.edit.sizes(output) or ()
        numbers = self._numbers([*sizes[: cut.axis], stop - start, *sizes[cut.axis + 1 :]]) if is_reshaped else None
        result = self.edit.resized(output, cut.axis, stop - start, f"piece{piece}")
        if is_recurrent(node):
            states = self._states(node, inputs, piece)
            self.edit.again(before, node, inputs, [result, *states])
        else:
            self.edit.again(before, node, inputs, [result], numbers)
        return result

    def _states(self, node: ir.Node, inputs: list[ir.Value | None], piece: int) -> list[ir.Value]:
        """Let a piece of a recurrent layer begin with the states after the piece before; return those after it.

        Readers of the states of the layer take those after the last piece; one that nothing reads has no name.
        """
        count, is_last = _STATES[node.op_type], piece == self.count - 1
        if piece:
            inputs += [None] * (_FIRST_STATE + count - len(inputs))
            inputs[_FIRST_STATE : _FIRST_STATE + count] = self.states[node]
        batch, hidden = (self.edit.sizes(node.outputs[0]) or ())[2:]
        results = [*node.outputs[1:], *(ir.Value(name="") for _ in range(count + 1 - len(node.outputs)))]
        states = []
        for number, whole in enumerate(results):
            is_read = bool(whole.uses()) or whole.is_graph_output() or not is_last
            name, dtype = f"{node.outputs[0].name}/state{number}", self.edit.dtype(node.outputs[0])
            states.append(self.edit.value(name, (1, batch, hidden), dtype) if is_read else ir.Value(name=""))
            if is_last and is_read:
                self.edit.replace(whole, states[-1])
        self.states[node] = states
        return states

    def _operand(
        self, value: ir.Value, link: AxisLink | None, start: int, stop: int, piece: int, before: ir.Node | None
    ) -> ir.Value:
        maker = value.producer()
        if value in self.pieces and maker is not None and link == AxisLink(self.cuts[maker].axis):
            return self.pieces[value][piece]
        whole = self._whole(value, before)
        return whole if link is None else self._slice(whole, link.axis, start, stop, before)

    def _concatenated(self, node: ir.Node, axis: int, start: int, stop: int, before: ir.Node | None) -> list[ir.Value]:
        """Return the parts of the operands of a Concat of tokens that lie in a piece of its result."""
        pieces, base = [], 0
        for value in node.inputs:
            assert value is not None
            length = (self.edit.sizes(value) or ())[axis]
            first, last = max(start - base, 0), min(stop - base, length)
            if first < last:
                pieces.append(self._slice(self._whole(value, before), axis, first, last, before))
            base += length
        return pieces

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
