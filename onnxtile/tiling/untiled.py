"""Operators that multiply matrices or convolve, and that tile leaves as they are; the report lists them with the reason."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

_ONNX = {
    "Attention": "fuse without --lower leaves MatMuls, which are cut",
    "DeformConv": "",
    "Einsum": "",
    "GRU": "its products depend on each other step by step",
    "LSTM": "its products depend on each other step by step",
    "RNN": "its products depend on each other step by step",
}
_MICROSOFT = {
    "Attention": "fuse without --lower leaves MatMuls, which are cut",
    "DynamicQuantizeMatMul": "",
    "FusedConv": "",
    "FusedGemm": "",
    "FusedMatMul": "",
    "GroupQueryAttention": "fuse without --lower leaves MatMuls, which are cut",
    "MatMulIntegerToFloat": "",
    "MultiHeadAttention": "fuse without --lower leaves MatMuls, which are cut",
    "QAttention": "",
    "QLinearConv": "the QLinearConv of ONNX is cut",
}
_REASONS: Mapping[str, Mapping[str, str]] = {"": _ONNX, "com.microsoft": _MICROSOFT}


def reason_untiled(node: ir.Node) -> str | None:
    """Return why a node with products in it is left whole; None for any other."""
    more = _REASONS.get(node.domain, {}).get(node.op_type)
    return None if more is None else f"tile does not cut {node.op_type}" + (f": {more}" if more else "")
