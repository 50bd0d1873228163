"""Names for the nodes and values that tile writes, and for the nodes that it reports."""

from __future__ import annotations

from collections import Counter
from copy import copy

import onnx_ir as ir

from onnxtile.model.walk import all_nodes, all_values


class Names:
    """The names of a model: the name of each node, and the names that are still free.

    Values and nodes of all graphs count, since a body sees the values of the graphs around it.
    """

    def __init__(self, model: ir.Model) -> None:
        self._nodes = Counter(node.name for node in all_nodes(model))
        self._there = {name for name in self._nodes if name}
        self._there.update(value.name for value in all_values(model) if value.name)
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}

    def apart(self) -> Names:
        """Return names of the same model of which none is taken that it did not have at first."""
        other = copy(self)
        other._taken, other._numbers = set(), {}
        return other

    def of(self, node: ir.Node) -> str:
        """Return the name of `node`, or its first output where the name is empty or repeated."""
        if node.name and self._nodes[node.name] == 1:
            return node.name
        return next((value.name for value in node.outputs if value.name), "")

    def within(self, node: ir.Node) -> str:
        """Return the name of `node` within its function."""
        return node.name or next((value.name for value in node.outputs if value.name), "")

    def fresh(self, wanted: str) -> str:
        """Return `wanted`, with a number behind it where the model uses that name already, and take it."""
        # All numbers up to the last one given for `wanted` are taken: a search from 1 would grow with each name.
        number = self._numbers.get(wanted, 0)
        name = f"{wanted}_{number}" if number else wanted
        while name in self._taken or name in self._there:
            number += 1
            name = f"{wanted}_{number}"
        self._numbers[wanted] = number
        self._taken.add(name)
        return name
