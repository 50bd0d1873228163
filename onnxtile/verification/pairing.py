"""Pairs values of two models: by name, and where names changed, by operator and operands."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.model.constants import Constants


@dataclass(frozen=True)
class Pair:
    """A value of the first model, and the one that stands for it in the second."""

    first: ir.Value
    second: ir.Value

    @property
    def name(self) -> str:
        """The name in the second model."""
        return self.second.name or ""


def paired(first: ir.Model, second: ir.Model) -> list[Pair]:
    """Return the values of the main graphs that both models compute, in the order of the second; constants are none.

    Values of one name are a pair. Of the others those are that the same operator makes of pairs, from the inputs forward: of several such
    nodes first those with the same attributes and constants, then those that are left, in the order of the file.
    """
    return _Pairing(first, second).found()


@dataclass
class _Side:
    """One model: its constants, and the nodes of its main graph that compute something."""

    model: ir.Model
    constants: Constants = field(init=False)
    nodes: list[ir.Node] = field(init=False)

    def __post_init__(self) -> None:
        self.constants = Constants(self.model)
        self.nodes = [node for node in self.model.graph if not all(v in self.constants for v in node.outputs)]

    def made(self) -> dict[str, ir.Value]:
        """Return the outputs of the nodes, by name."""
        return {value.name: value for node in self.nodes for value in node.outputs if value.name}

    def free(self) -> dict[str, ir.Value]:
        return {value.name: value for value in self.model.graph.inputs if value.name and value not in self.constants}


class _Pairing:
    def __init__(self, first: ir.Model, second: ir.Model) -> None:
        self._first, self._second = _Side(first), _Side(second)
        self._partner: dict[ir.Value, ir.Value] = {}
        self._taken: set[ir.Value] = set()
        for mine, others in ((self._first.free(), self._second.free()), (self._first.made(), self._second.made())):
            for name in others:
                if name in mine:
                    self._join(mine[name], others[name])

    def found(self) -> list[Pair]:
        self._by_structure()
        values = (value for node in self._second.nodes for value in node.outputs)
        return [Pair(self._partner[value], value) for value in values if value in self._partner]

    def _join(self, first: ir.Value, second: ir.Value) -> None:
        self._partner[second] = first
        self._taken.add(first)

    def _by_structure(self) -> None:
        """Pair nodes in waves: a node is looked at once all that it reads is paired, and with it all that read the same."""
        candidates: defaultdict[Hashable, list[ir.Node]] = defaultdict(list)
        for node in self._first.nodes:
            if not any(value in self._taken for value in node.outputs):
                candidates[_structure(node, self._first, {})].append(node)
        waiting = {node: self._unpaired(node) for node in self._second.nodes}
        wave = [node for node, count in waiting.items() if count == 0]
        while wave:
            groups: defaultdict[Hashable, list[ir.Node]] = defaultdict(list)
            for node in wave:
                if not any(value in self._partner for value in node.outputs):
                    groups[_structure(node, self._second, self._partner)].append(node)
            new = [value for key, group in groups.items() for value in self._pair(candidates.pop(key, []), group)]
            wave = list(_ready(new, waiting))

    def _unpaired(self, node: ir.Node) -> int:
        read = dict.fromkeys(dependencies(node))
        return sum(value not in self._partner and value not in self._second.constants for value in read)

    def _pair(self, first: list[ir.Node], second: list[ir.Node]) -> Iterable[ir.Value]:
        """Pair nodes of one structure, and yield the values of the second model that have a partner now."""
        for one, other in self._matched(first, second):
            for mine, value in zip(one.outputs, other.outputs, strict=True):
                if value.name and mine.name:
                    self._join(mine, value)
                    yield value

    def _matched(self, first: list[ir.Node], second: list[ir.Node]) -> list[tuple[ir.Node, ir.Node]]:
        if len(first) == len(second) == 1:  # weights need not be read to tell these
            return [(first[0], second[0])]
        equal: defaultdict[Hashable, list[ir.Node]] = defaultdict(list)
        for node in reversed(first):
            equal[_content(node, self._first)].append(node)
        chosen: dict[ir.Node, ir.Node] = {}
        for node in second:
            same = equal[_content(node, self._second)]
            if same:
                chosen[node] = same.pop()
        used = set(chosen.values())
        left = [node for node in first if node not in used], [node for node in second if node not in chosen]
        return [*((one, other) for other, one in chosen.items()), *zip(*left, strict=False)]


def _ready(new: Sequence[ir.Value], waiting: dict[ir.Node, int]) -> Iterable[ir.Node]:
    """Yield the nodes that waited for nothing but the values in `new`."""
    for value in new:
        for reader in dict.fromkeys(value.consumers()):
            if waiting.get(reader, 0) > 0:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    yield reader


def _structure(node: ir.Node, side: _Side, partner: dict[ir.Value, ir.Value]) -> Hashable:
    """Return the operator of a node and what it reads: values of the first model, and of constants the element type and shape."""
    read = tuple(_token(value, side, partner) for value in node.inputs)
    return (node.domain, node.op_type, len(node.outputs), read)


def _token(value: ir.Value | None, side: _Side, partner: dict[ir.Value, ir.Value]) -> Hashable:
    if value is None:
        return None
    if value in side.constants:
        tensor = value.const_value
        return ("constant",) if tensor is None else (tensor.dtype, tuple(tensor.shape.numpy()))
    return partner.get(value, value)


def _content(node: ir.Node, side: _Side) -> Hashable:
    """Return the attributes and the constants of a node."""
    attributes = tuple(sorted((name, repr(attribute.value)) for name, attribute in node.attributes.items()))
    held = (value for value in node.inputs if value is not None and value in side.constants)
    return (attributes, tuple(hashlib.sha256(side.constants.array(value).tobytes()).digest() for value in held))
