"""The table of lawful aliases: which results may take over the bytes of an operand.

The table is the authority; that a run inside the arena gives the right answer is evidence. An operator stands in it for a view when its
result is, by the ONNX specification, the same elements in the same order and of the same type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.plan.bytes import tensor_bytes

_STANDARD = {"", "ai.onnx"}


@dataclass(frozen=True)
class Alias:
    """`value` may take over the bytes of `source`, an operand of the node that makes it, by the rule `rule` of plan.check."""

    value: ir.Value
    source: ir.Value
    rule: str


@dataclass(frozen=True)
class Facts:
    """What rules ask: shapes and types, and the constants that decide what an operator does."""

    model: ir.Model
    shapes: Shapes
    constants: Constants

    def opset(self) -> int:
        """Return the version of the standard operators."""
        imports = self.model.graph.opset_imports
        return imports.get("", imports.get("ai.onnx", 1))

    def same_bytes(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether both have one element type and one size, and both are known."""
        dtype, size = self.shapes.dtype(a), tensor_bytes(a, self.shapes)
        return size is not None and dtype == self.shapes.dtype(b) and size == tensor_bytes(b, self.shapes)


def aliases(node: ir.Node, facts: Facts) -> Iterator[Alias]:
    """Yield what outputs of `node` may alias."""
    if node.domain not in _STANDARD or node.op_identifier() in facts.model.functions:
        return
    applies = VIEWS.get(node.op_type)
    if applies is None or not node.inputs or not node.outputs or not applies(node, facts):
        return
    source, value = node.inputs[0], node.outputs[0]
    if source is not None and value.name and facts.same_bytes(value, source):
        yield Alias(value, source, "view")


def _always(_node: ir.Node, _facts: Facts) -> bool:
    return True


def _does_not_train(node: ir.Node, facts: Facts) -> bool:
    """A Dropout passes its input on unless it trains: an attribute before opset 7, from 12 on an input, never in between."""
    if facts.opset() < 7:
        return node.attributes.get_int("is_test", 0) == 1
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    return training in facts.constants and not facts.constants.array(training).any()


VIEWS: Mapping[str, Callable[[ir.Node, Facts], bool]] = {
    "Cast": _always,  # of one type to itself: to another, the bytes are not the same
    "CastLike": _always,
    "Dropout": _does_not_train,
    "Flatten": _always,
    "Identity": _always,
    "Reshape": _always,
    "Squeeze": _always,
    "Unsqueeze": _always,
}
"""By operator: whether output 0 is a view of input 0, given that both have one type and one size."""
