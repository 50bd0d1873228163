"""One quantised island: its nodes, and the region of the graph that becomes its call."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.island_rule import IslandRule
from onnxtile.fusion.region import FusedRegion
from onnxtile.model.quantising import dequantises, quantises


@dataclass(frozen=True)
class Island:
    """`nodes` in the order in which they depend on each other; `operators` are those that neither quantise nor dequantise.

    `copied` operators compute the operands of these, element by element, and may be in other islands, too. `scaling` nodes make and apply
    the scales of a product of integers. Of attention, `query` is Q as it is stored, where the result may be written over it.
    """

    nodes: tuple[ir.Node, ...]
    operators: tuple[ir.Node, ...]
    is_view: bool = False
    copied: tuple[ir.Node, ...] = ()
    scaling: frozenset[ir.Node] = frozenset()
    is_attention: bool = False
    query: ir.Value | None = None

    @property
    def name(self) -> str:
        """The name of its meta-op: Q and the operators in it."""
        if self.is_attention:
            return "QScaledDotProductAttention"
        named = [node for node in (*self.copied, *self.operators) if node not in self.scaling]
        operators = [keys.meta_op(node.op_type) for node in named] or ["Requantize"]
        return f"Q{''.join(operators)}{'View' if self.is_view else ''}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What its function is marked with."""
        return (keys.ISLAND, keys.VIEW) if self.is_view else (keys.ISLAND,)


def island_region(island: Island) -> FusedRegion:
    """Return the region of one meta-op. Every operand is an input, also a constant, so that islands of one structure share a function."""
    members = set(island.nodes)
    made = {value for node in island.nodes for value in node.outputs}
    read = dict.fromkeys(
        value for node in island.nodes for value in node.inputs if value is not None and value not in made
    )
    computing = set(island.operators)
    own = [node for node in island.nodes if node in computing or quantises(node)]
    outputs = [
        value
        for node in own
        for value in node.outputs
        if value.is_graph_output() or any(reader not in members for reader in value.consumers())
    ]
    return FusedRegion(island.nodes, tuple(read), tuple(outputs), (), frozenset(island.nodes) - set(own))


def overwritten(island: Island, part: FusedRegion, rule: IslandRule) -> tuple[int, ...]:
    """Return the places of the operands of `part` that the kernel may write its result over."""
    if island.is_attention:
        return tuple(place for place, value in enumerate(part.inputs) if value is island.query)
    if not island.operators or any(node.op_type not in rule.in_place for node in island.operators):
        return ()
    scales = {value for node in island.nodes if quantises(node) or dequantises(node) for value in node.inputs[1:]}
    return tuple(place for place, value in enumerate(part.inputs) if value not in scales)
