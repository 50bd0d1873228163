"""Fused attention as products, a Softmax and reshapes, so that heads and tokens are cut as in any other attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from math import sqrt

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.model.topology import is_read
from onnxtile.operators.node_view import MICROSOFT, STANDARD, given_input
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

# https://onnx.ai/onnx/operators/onnx__Attention.html
# https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md

_LOWEST = float(np.finfo(np.float32).min)
"""The score of a key that a query must not see."""
_CAUSAL = 1 << 20
"""Scores of one head, at most, for which the keys after each query are masked by a constant."""
_OLDEST = 13
"""The first opset in which the operators below take their operands as they are written here."""
_FILTER = -10000.0
"""What onnxruntime's operators add to the score of a masked key, where they do not say it."""


class _IsLeft(Exception):
    """An attention stays fused: it has a cache, or a form that is not known here."""


@dataclass
class _HeadOperands:
    """Queries, keys and values of heads, (batch, heads, tokens, head), the scale of scores, and what is added to them."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    scale: float = 0.0
    causal: bool = False
    seen: ir.Value | None = None
    """Whether a query sees a key."""
    biases: list[ir.Value] = field(default_factory=list)
    joins: bool = True
    """Whether the heads of each token are joined in the result."""


def write_attention(edit: ModelEdit) -> list[ir.Node]:
    """Write each fused attention of 32-bit floats without a cache as products; return the nodes that went."""
    written = []
    for node in list(edit.model.graph) if edit.opset >= _OLDEST else ():
        forms = {
            ("", "Attention"): _standard,
            (MICROSOFT, "MultiHeadAttention"): _multi_head,
            (MICROSOFT, "Attention"): _projected,
        }
        form = forms.get(("" if node.domain in STANDARD else node.domain, node.op_type))
        if form is None or edit.dtype(node.outputs[0]) != ir.DataType.FLOAT:
            continue
        if any(value.name and is_read(value) for value in node.outputs[1:]):
            continue
        try:
            writer = _ProductWriter(edit, node)
            edit.replace(node.outputs[0], writer.result(form(writer)))
        except _IsLeft:
            continue
        edit.model.graph.remove(node, safe=True)
        written.append(node)
    return written


def _standard(writer: _ProductWriter) -> _HeadOperands:
    """Return Attention of opset 23: of (batch, heads, tokens, head), or of tokens with their heads one after the other."""
    writer.require_only(0, 1, 2, 3)
    ints, floats = writer.node.attributes.get_int, writer.node.attributes.get_float
    if floats("softcap", 0.0) or ints("softmax_precision", 1) != 1:
        raise _IsLeft
    query, key, value = (writer.operand(position) for position in range(3))
    joins = len(writer.sizes(query)) == 3
    if joins:
        heads, groups = ints("q_num_heads", 0), ints("kv_num_heads", 0)
        query, key, value = (
            writer.heads(operand, count) for operand, count in ((query, heads), (key, groups), (value, groups))
        )
    copies = writer.sizes(query)[1] // writer.sizes(key)[1]
    if copies > 1 < writer.sizes(key)[1]:  # the products repeat keys and values of one head by themselves
        key, value = writer.repeated(key, copies), writer.repeated(value, copies)
    scale, causal = floats("scale", 0.0), bool(ints("is_causal", 0))
    operands = _HeadOperands(query, key, value, scale, causal, joins=joins)
    mask = writer.optional(3)
    if mask is not None and writer.edit.dtype(mask) == ir.DataType.BOOL:
        operands.seen = mask
    elif mask is not None:
        operands.biases.append(mask)
    return operands


def _multi_head(writer: _ProductWriter) -> _HeadOperands:
    """Return onnxruntime's MultiHeadAttention of queries, keys and values (batch, tokens, width)."""
    writer.require_only(0, 1, 2, 3, 4, 5)
    parts = [writer.operand(position) for position in range(3)]
    if any(len(writer.sizes(part)) != 3 for part in parts):
        raise _IsLeft
    bias = writer.optional(3)
    if bias is not None:
        parts = writer.with_bias(parts, bias)
    return _of_runtime(writer, parts, mask=4, bias=5)


def _projected(writer: _ProductWriter) -> _HeadOperands:
    """Return onnxruntime's Attention, which projects its operand (batch, tokens, width) to queries, keys and values first."""
    writer.require_only(0, 1, 2, 3, 5)
    edit, weights = writer.edit, writer.operand(1)
    if writer.node.attributes.get_int("do_rotary", 0) or weights not in edit.constants:
        raise _IsLeft
    source, width = writer.operand(0), writer.sizes(weights)[1]
    lengths = writer.node.attributes.get_ints("qkv_hidden_sizes", [width // 3] * 3)
    if len(lengths) != 3 or sum(lengths) != width:
        raise _IsLeft
    parts, start = [], 0
    for length in lengths:
        part = edit.part(f"{weights.name}/{start}", weights, (1, start, start + length))
        parts.append(writer.add("MatMul", [source, part], (*writer.sizes(source)[:-1], length)))
        start += length
    bias = writer.optional(2)
    return _of_runtime(writer, parts if bias is None else writer.with_bias(parts, bias), mask=3, bias=5)


def _of_runtime(writer: _ProductWriter, parts: Sequence[ir.Value], *, mask: int, bias: int) -> _HeadOperands:
    """Return what onnxruntime's operators share: the number of heads, the mask of keys, a bias of scores."""
    attributes = writer.node.attributes
    heads = attributes.get_int("num_heads", 0)
    query, key, value = (writer.heads(part, heads) for part in parts)
    causal = bool(attributes.get_int("unidirectional", 0))
    operands = _HeadOperands(query, key, value, attributes.get_float("scale", 0.0), causal)
    seen, more = writer.optional(mask), writer.optional(bias)
    if seen is not None:
        operands.biases.append(writer.of_padding(seen, attributes.get_float("mask_filter_value", _FILTER)))
    if more is not None:
        operands.biases.append(more)
    return operands


class _ProductWriter:
    """Writes the nodes of one attention before it."""

    def __init__(self, edit: ModelEdit, node: ir.Node) -> None:
        self.edit, self.node = edit, node

    def sizes(self, value: ir.Value) -> tuple[int, ...]:
        """Return the sizes of a value. Raises _IsLeft where they are not known."""
        sizes = self.edit.sizes(value)
        if sizes is None:
            raise _IsLeft
        return sizes

    def optional(self, position: int) -> ir.Value | None:
        """Return the operand at a place; None where there is none."""
        return given_input(self.node, position)

    def operand(self, position: int) -> ir.Value:
        """Return the operand at a place. Raises _IsLeft where there is none."""
        value = self.optional(position)
        if value is None:
            raise _IsLeft
        return value

    def require_only(self, *places: int) -> None:
        """Raise _IsLeft where the node has an operand at another place, such as a cache."""
        if any(value is not None and position not in places for position, value in enumerate(self.node.inputs)):
            raise _IsLeft

    def add(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        sizes: Sequence[int],
        attributes: Sequence[ir.Attr] = (),
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """Add a node; return its result."""
        result = self.edit.value(f"{self.node.outputs[0].name}/{op}", sizes, dtype)
        return self.edit.add(self.node, op, inputs, result, attributes)

    def _shared(self, array: Array) -> ir.Value:
        return self.edit.shared("attention", array)

    def _number(self, number: float) -> ir.Value:
        return self._shared(np.asarray(number, np.float32))

    def reshaped(self, value: ir.Value, *sizes: int) -> ir.Value:
        """Return a value with other sizes."""
        kind = self.edit.dtype(value) or ir.DataType.FLOAT
        return self.add("Reshape", [value, self._shared(np.asarray(sizes, np.int64))], sizes, dtype=kind)

    def turned(self, value: ir.Value, *order: int) -> ir.Value:
        """Return a value with its axes in another order."""
        sizes = self.sizes(value)
        return self.add("Transpose", [value], [sizes[axis] for axis in order], [ir.AttrInt64s("perm", order)])

    def heads(self, value: ir.Value, count: int) -> ir.Value:
        """Return (batch, heads, tokens, head) of (batch, tokens, width). Raises _IsLeft where the heads do not divide the width."""
        sizes = self.sizes(value)
        if len(sizes) != 3 or count < 1 or sizes[2] % count:
            raise _IsLeft
        return self.turned(self.reshaped(value, *sizes[:2], count, sizes[2] // count), 0, 2, 1, 3)

    def repeated(self, value: ir.Value, copies: int) -> ir.Value:
        """Return keys or values of which each head is repeated for the heads of queries that share it."""
        batch, heads, *rest = self.sizes(value)
        wide = (batch, heads, copies, *rest)
        apart = self.reshaped(value, batch, heads, 1, *rest)
        numbers = self._shared(np.asarray(wide, np.int64))
        return self.reshaped(self.add("Expand", [apart, numbers], wide), batch, heads * copies, *rest)

    def with_bias(self, parts: Sequence[ir.Value], bias: ir.Value) -> list[ir.Value]:
        """Return queries, keys and values with their parts of a constant bias added. Raises _IsLeft for another one."""
        if bias not in self.edit.constants:
            raise _IsLeft
        summed, start = [], 0
        for value in parts:
            stop = start + self.sizes(value)[-1]
            part = self.edit.part(f"{bias.name}/{start}", bias, (0, start, stop))
            summed.append(self.add("Add", [value, part], self.sizes(value)))
            start = stop
        return summed

    def of_padding(self, mask: ir.Value, number: float) -> ir.Value:
        """Return what is added to scores for a mask (batch, keys) of whole numbers; `number` for each that is not positive."""
        sizes = self.sizes(mask)
        kind = self.edit.dtype(mask)
        if len(sizes) != 2 or kind not in {ir.DataType.INT32, ir.DataType.INT64}:
            raise _IsLeft
        none = self._shared(np.zeros((), np.int32 if kind == ir.DataType.INT32 else np.int64))
        seen = self.add("Greater", [mask, none], sizes, dtype=ir.DataType.BOOL)
        bias = self.add("Where", [seen, self._number(0.0), self._number(number)], sizes)
        return self.reshaped(bias, sizes[0], 1, 1, sizes[1])

    def result(self, operands: _HeadOperands) -> ir.Value:
        """Add the products of an attention; return its result."""
        batch, heads, queries, head = self.sizes(operands.query)
        keys, width = self.sizes(operands.key)[2], self.sizes(operands.value)[3]
        if operands.causal and queries * keys > _CAUSAL:
            raise _IsLeft
        scale = self._number(operands.scale or 1 / sqrt(head))
        scaled = self.add("Mul", [operands.query, scale], self.sizes(operands.query))
        of_scores = batch, heads, queries, keys
        scores = self.add("MatMul", [scaled, self.turned(operands.key, 0, 1, 3, 2)], of_scores)
        for bias in operands.biases:
            scores = self.add("Add", [scores, bias], of_scores)
        lowest = self._number(_LOWEST)
        if operands.seen is not None:
            scores = self.add("Where", [operands.seen, scores, lowest], of_scores)
        if operands.causal:
            later = np.triu(np.full((queries, keys), _LOWEST, np.float32), 1)
            scores = self.add("Add", [scores, self._shared(later)], of_scores)
        shares = self.add("Softmax", [scores], of_scores, [ir.AttrInt64("axis", -1)])
        mixed = self.add("MatMul", [shares, operands.value], (batch, heads, queries, width))
        if not operands.joins:
            return mixed
        return self.reshaped(self.turned(mixed, 0, 2, 1, 3), batch, queries, heads * width)
