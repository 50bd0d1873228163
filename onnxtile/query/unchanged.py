"""Nodes that provably change nothing: each hands on its first input, element for element, as its only result.

A query sees through them wherever they stand. What the proofs need of shapes and element types is asked for only then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.constants import Constants
from onnxtile.query.late_shapes import LateShapes

_ENDLESS = 2**31 - 1
"""From this end of a Slice on there is nothing to cut: exporters write the largest number of their type."""


class Unchanged:
    """Tells which nodes of a model change nothing; `constants` and `shapes` are those of the model."""

    def __init__(self, constants: Constants, shapes: LateShapes) -> None:
        self._constants = constants
        self._shapes = shapes
        self._proofs: Mapping[str, Callable[[ir.Node], bool]] = {
            **dict.fromkeys(("Identity",), lambda _: True),
            **dict.fromkeys(("Concat", "Max", "Mean", "Min", "Sum"), lambda node: len(node.inputs) == 1),
            **dict.fromkeys(("Cast", "CastLike"), self._keeps_type),
            **dict.fromkeys(("Expand", "Flatten", "Reshape", "Squeeze"), self._keeps_shape),
            "Dropout": self._is_inference,
            "Slice": self._cuts_nothing,
            "Transpose": self._keeps_order,
        }
        self._known: dict[ir.Node, bool] = {}

    def may(self, node: ir.Node) -> bool:
        """Return whether `node` is of an operator that may change nothing; no constant is."""
        if node.domain != "" or node.op_type not in self._proofs or not node.inputs or node.inputs[0] is None:
            return False
        rest = (value for value in node.outputs[1:] if value.uses() or value.is_graph_output())
        return node.outputs[0] not in self._constants and not any(rest)

    def does(self, node: ir.Node) -> bool:
        """Return whether `node` provably changes nothing."""
        if node not in self._known:
            try:
                self._known[node] = self.may(node) and self._proofs[node.op_type](node)
            except ModelError:  # shapes contradict each other
                self._known[node] = False
        return self._known[node]

    def origin(self, value: ir.Value) -> ir.Value:
        """Return the value that `value` is a copy of, as far as nodes of its graph that change nothing lead; else `value`."""
        node = value.producer()
        while node is not None and self.does(node):
            source = node.inputs[0]
            maker = None if source is None else source.producer()
            if source is None or (maker is not None and maker.graph is not node.graph):
                break
            value, node = source, maker
        return value

    def same(self, one: ir.Value, other: ir.Value) -> bool:
        """Return whether both are copies of one value. Proofs are asked for only where the graph leaves it open."""
        return self._furthest(one) is self._furthest(other) and self.origin(one) is self.origin(other)

    def _furthest(self, value: ir.Value) -> ir.Value:
        """Return the value that `value` is a copy of, if all nodes that may change nothing do so."""
        node = value.producer()
        while node is not None and self.may(node) and node.inputs[0] is not None:
            value, node = node.inputs[0], node.inputs[0].producer()
        return value

    def between(self, nodes: Collection[ir.Node]) -> list[ir.Node]:
        """Return the nodes that hand on to `nodes`, and to nothing else, a value that these read or make in another way as well."""
        members = set(nodes)
        read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
        copies: dict[ir.Value, list[ir.Value]] = {}
        for value in dict.fromkeys((*read, *(value for node in nodes for value in node.outputs))):
            copies.setdefault(self._furthest(value), []).append(value)
        found: dict[ir.Node, None] = {}
        for values in copies.values():
            for value in values if len(values) > 1 else ():
                if value in read and any(self.same(value, other) for other in values if other is not value):
                    self._take(value, members, found)
        return list(found)

    def _take(self, value: ir.Value, members: set[ir.Node], found: dict[ir.Node, None]) -> None:
        """Add the nodes that lead to `value` from its origin, as far as only `members` and nodes found read their results."""
        node = value.producer()
        while node is not None and node not in members and self.does(node):
            if value.is_graph_output() or any(
                reader not in members and reader not in found for reader in value.consumers()
            ):
                return
            found[node] = None
            source = node.inputs[0]
            assert source is not None
            value, node = source, source.producer()

    # Proofs

    def _keeps_type(self, node: ir.Node) -> bool:
        source, to = node.inputs[0], node.attributes.get("to")
        if source is None or (to is not None and to.is_ref()):
            return False
        after = self._shapes.dtype(node.outputs[0]) if to is None else ir.DataType(to.as_int())
        before = source.dtype or self._shapes.dtype(source)
        return before is not None and before == after

    def _keeps_shape(self, node: ir.Node) -> bool:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        ranks = self._rank(source), self._rank(result)
        if None not in ranks and ranks[0] != ranks[1]:
            return False
        before, after = self._shapes.dims(source), self._shapes.dims(result)
        return before is not None and before == after and None not in before

    def _rank(self, value: ir.Value) -> int | None:
        """Return the number of axes, where the node that makes `value` says it: cheaper than to infer all shapes."""
        node = value.producer()
        if value.shape is not None:
            return len(value.shape)
        if node is not None and node.op_type == "Transpose":
            return len(node.attributes.get_ints("perm", ())) or None
        if node is not None and node.op_type == "Reshape":
            target = self._numbers(node, 1, "shape")
            return None if target is None else len(target)
        return None

    def _is_inference(self, node: ir.Node) -> bool:
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if training is not None:
            return training in self._constants and not np.any(self._constants.array(training))
        return "is_test" not in node.attributes or node.attributes.get_int("is_test", 0) != 0

    def _cuts_nothing(self, node: ir.Node) -> bool:
        steps = self._numbers(node, 4, "steps")
        if steps is None or any(step < 1 for step in steps):
            return False
        starts, ends = self._numbers(node, 1, "starts"), self._numbers(node, 2, "ends")
        endless = starts and ends and not any(starts) and min(ends) >= _ENDLESS and set(steps) <= {1}
        return bool(endless) or self._keeps_shape(node)

    def _keeps_order(self, node: ir.Node) -> bool:
        perm = node.attributes.get_ints("perm", ())
        return len(perm) > 0 and list(perm) == list(range(len(perm)))

    def _numbers(self, node: ir.Node, place: int, name: str) -> Sequence[int] | None:
        """Return the integers of an operand that was an attribute once; none where it is not given, None where it is computed."""
        value = node.inputs[place] if place < len(node.inputs) else None
        if value is None:
            return node.attributes.get_ints(name, ())
        return self._constants.array(value).ravel().tolist() if value in self._constants else None
