"""What a node is: it quantises, gives back floats or draws random numbers."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtile.model.topology import main_graphs, nodes_in, nodes_inside, opset_in, roots
from onnxtile.operators.node_view import KnownConstants
from onnxtile.operators.table import draws, may_draw

QUANTISING, DEQUANTISING = "QuantizeLinear", "DequantizeLinear"

QUANTISING_AT_RUN = "DynamicQuantizeLinear"
INTEGER = frozenset({"ConvInteger", "MatMulInteger"})
"""Operators that sum products of quantised tensors as int32."""

OWN_DOMAINS = frozenset({"", "com.microsoft"})
"""The domains whose operators of these names mean the same."""


def quantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a QuantizeLinear."""
    return node is not None and node.op_type == QUANTISING and node.domain in OWN_DOMAINS


def dequantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTISING and node.domain in OWN_DOMAINS


def converts(node: ir.Node | None) -> bool:
    """Return whether `node` quantises or dequantises with a given scale."""
    return quantises(node) or dequantises(node)


def quantises_at_run(node: ir.Node | None) -> bool:
    """Return whether `node` quantises with a scale that it computes from its operand."""
    return node is not None and node.op_type == QUANTISING_AT_RUN and node.domain in OWN_DOMAINS


def sums_integers(node: ir.Node) -> bool:
    """Return whether `node` is a product of quantised tensors with an int32 result."""
    return node.op_type in INTEGER and node.domain in OWN_DOMAINS


def is_quantised(model: ir.Model) -> bool:
    """Return whether any graph of `model` has a node that quantises or dequantises, or multiplies quantised tensors."""
    return any(
        quantises(node) or dequantises(node) or sums_integers(node) for graph in main_graphs(model) for node in graph
    )


# Random operators: the nodes that may give other results each time they run.

SEED = "seed"
"""The attribute with the seed of a random operator."""


def has_seed(node: ir.Node) -> bool:
    """Return whether a random operator has a seed, or takes it from elsewhere. Sampling has an operand for it, or starts at 0."""
    return SEED in node.attributes or node.op_type == "Sampling"


class RandomNodes:
    """The nodes of a model that draw random numbers: themselves, in a body, or in a local function that they call."""

    def __init__(self, model: ir.Model, constants: KnownConstants) -> None:
        self.themselves = {
            node
            for root in roots(model)
            for node in nodes_in(root)
            if may_draw(node)
            and node.op_identifier() not in model.functions
            and draws(node, opset_in(root.opset_imports), constants)
        }
        """The nodes of all graphs and functions that draw, without those that only hold or call such a node."""
        self.holding = holders(model, self.themselves.__contains__) if self.themselves else lambda _: False

    def __contains__(self, node: object) -> bool:
        return isinstance(node, ir.Node) and self.holding(node)


def holders(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> Callable[[ir.Node], bool]:
    """Return a test whether a node is `wanted`, has such a node in a body, or calls a local function with one."""
    callers: dict[ir.OperatorIdentifier, list[ir.OperatorIdentifier]] = {}
    pending: list[ir.OperatorIdentifier] = []
    for identifier, function in model.functions.items():
        for node in nodes_in(function):
            if wanted(node):
                pending.append(identifier)
            callers.setdefault(node.op_identifier(), []).append(identifier)
    inside: set[ir.OperatorIdentifier] = set()
    while pending:
        identifier = pending.pop()
        if identifier not in inside:
            inside.add(identifier)
            pending += callers.get(identifier, ())
    return lambda node: any(wanted(inner) or inner.op_identifier() in inside for inner in (node, *nodes_inside(node)))
