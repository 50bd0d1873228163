"""Nodes that a lowering adds: transposes, reshapes and masks around its operator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lowering import (
    HALVES,
    Argument,
    CallSite,
    Literal,
    Made,
    NewNode,
    Operand,
)
from onnxtile.fusion.proofs.attention import EXCHANGED, Heads, HeadTensor
from onnxtile.fusion.proofs.masks import Mask, lowest_numbers
from onnxtile.model.infer import Dim, Dims


@dataclass
class NewNodes:
    """Collects new nodes as steps; each method returns the operand that its step makes."""

    steps: list[NewNode]

    def add(self, step: NewNode) -> Made:
        """Append a step."""
        self.steps.append(step)
        return Made(len(self.steps) - 1)

    def transposed(self, operand: Operand, perm: tuple[int, ...]) -> Operand:
        """Return `operand` with its axes permuted: where it is made by a Transpose, that is undone, not added to."""
        value = operand if isinstance(operand, ir.Value) else None
        producer = value.producer() if value is not None else None
        if producer is not None and producer.op_type == "Transpose" and "perm" in producer.attributes:
            before = producer.attributes["perm"].as_ints()
            perm = tuple(before[axis] for axis in perm)
            operand = producer.inputs[0]
        if perm == tuple(range(len(perm))):
            return operand
        return self.add(NewNode("Transpose", (operand,), {"perm": perm}))

    def laid_out(self, tensor: HeadTensor, perm: tuple[int, ...]) -> Operand:
        """Return `tensor` with the axes (batch, heads, sequence, size) of the formula in the order `perm`.

        Without an axis of heads it stays without one; `perm` may then exchange the last two axes only.
        """
        value, exchanged = tensor.argument.value, perm[2:] == EXCHANGED[2:]
        if tensor.is_flat:
            return self.transposed(value, (0, 2, 1)) if exchanged != tensor.turned else value
        order = tuple(EXCHANGED[axis] for axis in perm) if tensor.turned else perm
        return value if order == tuple(range(4)) else self.transposed(value, order)

    def reshaped(self, operand: Operand, *shape: int) -> Made:
        """Return `operand` in another shape."""
        return self.add(NewNode("Reshape", (operand, Literal.ints(*shape, hint="shape")), since=5))

    def mask(self, heads: Heads) -> Operand:
        """Return the sum of the masks; None where there is none."""
        operand: Operand = None
        for mask in heads.masks:
            own = self._added(mask, heads.dtype)
            operand = own if operand is None else self.add(NewNode("Add", (operand, own), since=7))
        return operand

    def _added(self, mask: Mask, dtype: ir.DataType) -> Operand:
        own = mask.argument.value if mask.argument.value is not None else literal_of(mask.argument, "mask")
        if mask.keep is None:
            return own
        fill = max(mask.fill, lowest_numbers(dtype)[1]) if np.isfinite(mask.fill) else mask.fill
        kept, hidden = (Literal(np.asarray(n, dtype.numpy()), dtype, "fill") for n in (0.0, fill))
        return self.add(NewNode("Where", (own, kept, hidden) if mask.keep else (own, hidden, kept), since=9))

    def hidden_rows(self, mask: Operand, dtype: ir.DataType) -> Made:
        """Return where the masks, 4-D and summed, hide a row as a whole, as (…, 1)."""
        mask = self._in_float(mask, dtype)
        top = self.add(NewNode("ReduceMax", (mask, Literal.ints(-1, hint="axes")), {"keepdims": 1}, since=18))
        hidden = Literal(np.asarray(-np.inf, np.float32), ir.DataType.FLOAT, "hidden")
        return self.add(NewNode("Equal", (top, hidden), since=11))

    def raised(self, mask: Operand, dtype: ir.DataType) -> Made:
        """Return the masks, the lowest number of the element type made the lowest but one."""
        lowest, next_one = lowest_numbers(dtype)
        wide = Literal(np.asarray(lowest, np.float32), ir.DataType.FLOAT, "lowest")
        found = self.add(NewNode("Equal", (self._in_float(mask, dtype), wide), since=11))
        instead = Literal(np.asarray(next_one, dtype.numpy()), dtype, "low")
        return self.add(NewNode("Where", (found, instead, mask), since=9))

    def _in_float(self, mask: Operand, dtype: ir.DataType) -> Operand:
        """Return a mask as floats: onnxruntime compares and reduces few other types."""
        if dtype not in HALVES:
            return mask
        return self.add(NewNode("Cast", (mask,), {"to": ir.DataType.FLOAT.value}, since=13))

    def without(self, hidden: Operand, operand: Operand, dtype: ir.DataType) -> Made:
        """Return `operand`, 0 where rows are `hidden`."""
        zero = Literal(np.zeros((), dtype.numpy()), dtype, "zero")
        return self.add(NewNode("Where", (hidden, zero, operand), since=9))

    def merged(self, operand: Operand, dims: tuple[Dim, Dim], heads: int, size: int, site: CallSite) -> Operand:
        """Return a value of shape (batch, sequence, heads, size) as (batch, sequence, heads · size).

        Where a Reshape has just split the last axis so, what it split.
        """
        producer = operand.producer() if isinstance(operand, ir.Value) else None
        if producer is not None and producer.op_type == "Reshape" and not producer.domain and site.facts is not None:
            source = producer.inputs[0]
            assert source is not None
            if known_dims_or(site.facts.argument(source)) == (*dims, heads * size) and None not in dims:
                return source
        return self.reshaped(operand, 0, 0, heads * size)


def literal_of(argument: Argument, hint: str) -> Literal:
    """Return a constant of the function's own as one of the graph."""
    assert argument.array is not None and argument.dtype is not None
    return Literal(argument.array, argument.dtype, hint)


def known_dims_or(argument: Argument) -> Dims:
    """Return the dimensions, none where the rank is unknown."""
    return argument.dims or ()
