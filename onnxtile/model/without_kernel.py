"""Shapes that onnxruntime's own operators make where its CPU has no kernel: it then infers nothing of them.

By https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. T are tokens of all sequences, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.model.known import Dims

OperandDims: TypeAlias = Sequence[Dims | None]
"""The dimensions of the operands of a node, in order; None for one that is left out or not known."""


def result_dims(node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """Return the dimensions of the results of `node`, an operator of onnxruntime; None where they are not known."""
    rule = _RULES.get(node.op_type) if node.domain == "com.microsoft" else None
    found = [] if rule is None else rule(node, operands)
    return [found[place] if place < len(found) else None for place in range(len(node.outputs))]


def _dims(operands: OperandDims, place: int, rank: int | None = None) -> Dims | None:
    dims = operands[place] if place < len(operands) else None
    return dims if rank is None or dims is None or len(dims) == rank else None


def _same(*places: int) -> Callable[[ir.Node, OperandDims], list[Dims | None]]:
    """Return a rule by which each result has the dimensions of the operand at one of `places`."""
    return lambda _node, operands: [_dims(operands, place) for place in places]


def _packed_attention(node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """PackedAttention: (T, width) by weights (width, queries + keys + values) gives (T, values)."""
    tokens, weights = _dims(operands, 0, 2), _dims(operands, 1, 2)
    if tokens is None or weights is None:
        return []
    sizes = node.attributes.get_ints("qkv_hidden_sizes", ())
    width = weights[1] // 3 if isinstance(weights[1], int) else None
    return [(tokens[0], sizes[2] if len(sizes) == 3 else width)]


def _packed_heads(_node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """PackedMultiHeadAttention: values (T, width) give (T, width), packed operands (T, heads, 3, head) give (T, heads × head)."""
    values, packed = _dims(operands, 2, 2), _dims(operands, 0, 4)
    if values is not None:
        return [values]
    if packed is None or not isinstance(packed[1], int) or not isinstance(packed[3], int):
        return []
    return [(packed[0], packed[1] * packed[3])]


def _remove_padding(_node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """RemovePadding: (batch, length, width) gives tokens of which only the data know the number, and their places."""
    padded = _dims(operands, 0, 3)
    if padded is None:
        return []
    batch = padded[0] + 1 if isinstance(padded[0], int) else None
    return [(None, padded[2]), (padded[0], padded[1]), (batch,), (1,)]


def _restore_padding(_node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """RestorePadding: tokens (T, width) at the places (batch, length) give (batch, length, width)."""
    tokens, places = _dims(operands, 0, 2), _dims(operands, 1, 2)
    return [] if tokens is None or places is None else [(*places, tokens[1])]


def _paged_attention(node: ir.Node, operands: OperandDims) -> list[Dims | None]:
    """PagedAttention: queries (T, width), with keys and values or packed with these, and two caches, which it hands out."""
    queries, keys = _dims(operands, 0, 2), _dims(operands, 1)
    cache = [_dims(operands, place, 4) for place in (3, 4)]
    if keys is not None:
        return [queries, *cache]
    head = None if cache[0] is None else cache[0][3]
    heads = node.attributes.get_int("num_heads", 0)
    width = heads * head if isinstance(head, int) and heads else None
    return [None if queries is None else (queries[0], width), *cache]


_RULES: Mapping[str, Callable[[ir.Node, OperandDims], list[Dims | None]]] = {
    "PackedAttention": _packed_attention,
    "PackedMultiHeadAttention": _packed_heads,
    "RemovePadding": _remove_padding,
    "RestorePadding": _restore_padding,
    "PagedAttention": _paged_attention,
    **dict.fromkeys(("BiasAdd", "BiasSoftmax", "GroupNorm", "LongformerAttention", "QOrderedGelu"), _same(0)),
    "SkipGroupNorm": _same(0, 0),
}
