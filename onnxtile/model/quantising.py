"""Nodes that quantise a tensor, and nodes that give back floats."""

from __future__ import annotations

import onnx_ir as ir

QUANTISING, DEQUANTISING, DYNAMIC = "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"

OWN_DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""The domains whose operators of these names mean the same."""


def quantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a QuantizeLinear."""
    return node is not None and node.op_type == QUANTISING and node.domain in OWN_DOMAINS


def dequantises(node: ir.Node | None) -> bool:
    """Return whether `node` is a DequantizeLinear."""
    return node is not None and node.op_type == DEQUANTISING and node.domain in OWN_DOMAINS


def quantises_dynamically(node: ir.Node | None) -> bool:
    """Return whether `node` is a DynamicQuantizeLinear, which computes scale and zero point as well."""
    return node is not None and node.op_type == DYNAMIC and node.domain in OWN_DOMAINS
