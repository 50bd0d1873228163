"""Rules of onnx-shape-inference that are replaced in its own registry: one that is wrong, and all for operators of onnxruntime.

What follows from a wrong shape is wrong, too: a rule must be right while the engine goes through the model, not only afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock

import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext, registry

from onnxtile.model.contributed import KnownOperand, results
from onnxtile.model.known import declared
from onnxtile.model.validity import INLINE_BYTES
from onnxtile.runtime import Array

_FAR = 2**29
"""Exporters write such ends of a Slice for "to the last": no dimension that is still open becomes larger."""

_LOCK = Lock()
_REPLACED: set[tuple[str, str]] = set()


def correct(contributed: Iterable[tuple[str, str]]) -> None:
    """Replace the engine's rules for Slice, and for the `contributed` operators (domain, name), for this process."""
    with _LOCK:
        registry.collect()
        if ("", "Slice") not in _REPLACED:
            _replace_slice()
        for domain, name in contributed:
            if (domain, name) not in _REPLACED:
                registry.register(domain, name, since_version=1)(_contributed)
                _REPLACED.add((domain, name))


def _contributed(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Note what onnxruntime infers for the outputs of `node`."""
    operands = [None if value is None else _operand(value) for value in node.inputs]
    opsets = {domain: context.get_opset_version(domain) for domain in ("", node.domain)}
    for value, known in zip(node.outputs, results(node, operands, opsets), strict=True):
        if known.dims is not None:
            value.shape = ir.Shape([context.new_symbolic_dim() if dim is None else dim for dim in known.dims])
        if known.dtype is not None:
            context.set_dtype(value, known.dtype)


def _operand(value: ir.Value) -> KnownOperand:
    known = declared(value)
    return KnownOperand(known.dtype, known.dims, _number(value))


def _number(value: ir.Value | None) -> Array | None:
    """Return the elements of `value` where they are known and few; the engine notes those that it computes as constants."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.nbytes > INLINE_BYTES or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy()


def _replace_slice() -> None:
    library = registry.get("", "Slice", version=10)
    assert library is not None

    def clamped(context: ShapeInferenceContext, node: ir.Node) -> None:
        """Clamp to the size that is sliced where that is open: the library takes the numbers of the operands to lie inside."""
        library(context, node)
        data, made = node.inputs[0], node.outputs[0]
        if data is None or data.shape is None or made.shape is None or len(data.shape) != len(made.shape):
            return
        dims = list(made.shape)
        for axis, start, end, step in _cuts(node, len(dims)):
            size = data.shape[axis]
            if isinstance(size, ir.SymbolicDim) and isinstance(dims[axis], int) and dims[axis]:
                dims[axis] = _clamped(size, start, end, step)
        made.shape = ir.Shape(dims)

    registry.register("", "Slice", since_version=10)(clamped)
    _REPLACED.add(("", "Slice"))


def _clamped(size: ir.SymbolicDim, start: int, end: int, step: int) -> ir.SymbolicDim | int:
    """Return how many elements an axis of the open `size` has from `start`, below `end`; none of the numbers is negative."""
    last = size if end >= _FAR else ir.SymbolicDim(f"Min({end}, {size.value})")
    length = last if start == 0 else ir.SymbolicDim(f"Max(0, {last.value} - {start})")
    return length if step == 1 else (length + step - 1) // step


def _cuts(node: ir.Node, rank: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield axis (counted from 0), start, end and step of each axis that `node`, a Slice, cuts by known numbers."""
    starts, ends = _integers(node, 1), _integers(node, 2)
    axes = _integers(node, 3) or range(len(starts))
    steps = _integers(node, 4) or [1] * len(starts)
    if len(starts) == len(ends) == len(axes) == len(steps):
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            yield axis % rank, start, end, step


def _integers(node: ir.Node, place: int) -> Sequence[int]:
    number = _number(node.inputs[place]) if place < len(node.inputs) else None
    return [] if number is None else [int(one) for one in number.ravel()]
