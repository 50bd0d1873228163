"""Nodes that quantise a tensor, nodes that give back floats, and operators that compute on quantised tensors."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.walk import main_graphs

QUANTISING, DEQUANTISING = "QuantizeLinear", "DequantizeLinear"

QUANTISING_AT_RUN = "DynamicQuantizeLinear"
INTEGER = frozenset({"ConvInteger", "MatMulInteger"})
"""Operators that sum products of quantised tensors as int32."""

OWN_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""The domains whose operators of these names mean the same."""


def quantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a QuantizeLinear."""
    return node is not None and node.op_type == QUANTISING and node.domain in OWN_DOMAINS


def dequantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTISING and node.domain in OWN_DOMAINS


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
