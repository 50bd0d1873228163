"""Operators that make the next value of a state of its value before, by output and operand."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

_ATTENTION = {1: 4, 2: 5}
_GROUPED = {1: 3, 2: 4}
_MULTI_HEAD = {1: 6, 2: 7}

STANDARD: Mapping[str, Mapping[int, int]] = {
    "Attention": _ATTENTION,
    "Concat": {0: 0},
    "GRU": {1: 5},
    "LSTM": {1: 5, 2: 6},
    "RNN": {1: 5},
    "ScatterElements": {0: 0},
    "ScatterND": {0: 0},
    "TensorScatter": {0: 0},
}
"""By standard operator, the operand that holds the value before, by the number of the output."""

CONTRIBUTED: Mapping[str, Mapping[int, int]] = {
    "GroupQueryAttention": _GROUPED,
    "MultiHeadAttention": _MULTI_HEAD,
}
"""The same for operators of onnxruntime's domain."""

GROWING = frozenset({"Attention", "Concat", "GroupQueryAttention", "MultiHeadAttention"})
"""Operators whose result may be longer than the operand that it begins with."""

RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""Operators whose result is the value after the last time step: by then, that before the first one has been read."""

OVER = GROWING | RECURRENT
"""Operators that write a state over its operand by their definition, where no other node reads the operand later."""


def operands_of_state(node: ir.Node, *, is_standard: bool) -> Mapping[int, int]:
    """Return the operands of `node` that results are the next value of, by the number of the output."""
    if is_standard:
        return STANDARD.get(node.op_type, {})
    return CONTRIBUTED.get(node.op_type, {}) if node.domain == "com.microsoft" else {}
