"""The numbers that operators take, for random operands: indices below the size of an axis, valid shapes, lengths, counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.operators.node_view import given_input
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array


@dataclass(frozen=True)
class Domain:
    """Numbers from `low` to below `high` (None: open on that side), or one of `choices`, or exactly `fixed` (by the last axis)."""

    low: float | None = None
    high: float | None = None
    choices: tuple[int, ...] = ()
    fixed: tuple[float, ...] | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether anything limits the numbers."""
        return self != Domain()

    def bounds(self, dtype: np.dtype[Any]) -> tuple[int, int]:
        """Return the lowest and the highest whole number of `dtype` that is allowed.

        Eight-bit integers are quantised data, of which every value is meant; wider ones are more often counts, indices and masks: where
        nothing is known of these, they are 0 or 1.
        """
        if self.choices:
            return min(self.choices), max(self.choices)
        low = 0 if self.low is None else int(self.low)
        if self.high is not None:
            return low, max(low, int(np.ceil(self.high)) - 1)
        eight_bits = dtype.kind in "iu" and dtype.itemsize == 1
        return low, low + (99 if eight_bits else 1)

    def clipped(self, numbers: Array, dtype: np.dtype[Any]) -> Array:
        """Return `numbers` brought inside the domain, as `dtype`."""
        if dtype.kind in "iub" or "int" in dtype.name:
            whole = np.clip(np.rint(numbers), *self.bounds(dtype))
            nearest = (
                np.asarray(self.choices)[np.abs(whole[..., None] - self.choices).argmin(-1)] if self.choices else whole
            )
            return np.asarray(nearest).astype(dtype)
        top = float(float_info(dtype).max)
        return np.clip(numbers, self._above(-top), top if self.high is None else self.high).astype(dtype)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return random numbers of the domain: floats standard normal where nothing limits them, else uniform."""
        if self.fixed is not None:
            # One number stands for all, also where there is no axis.
            numbers = self.fixed[0] if len(self.fixed) == 1 else self.fixed
            return np.broadcast_to(np.asarray(numbers), shape).astype(dtype)
        if dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name):
            return self._floats(generator, shape).astype(dtype)
        if self.choices:
            return generator.choice(np.asarray(self.choices), shape).astype(dtype)
        low, high = self.bounds(dtype)
        return generator.integers(low, high + 1, shape).astype(dtype)

    def _floats(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        if self.low is None and self.high is None:
            return np.asarray(generator.standard_normal(shape))
        low = self._above(min(0.0, self.high or 0.0) - 1)
        return np.asarray(generator.uniform(low, low + 1 if self.high is None else self.high, shape))

    def _above(self, otherwise: float) -> float:
        return otherwise if self.low is None else self.low


def float_info(dtype: np.dtype[Any]) -> Any:
    """Return the limits of a float type, also of one that numpy lacks."""
    if dtype.kind != "V" and dtype.itemsize >= 2:
        return np.finfo(dtype)
    import ml_dtypes

    finfo: Callable[[Any], Any] = ml_dtypes.finfo
    return finfo(dtype)


Sizes: TypeAlias = Callable[[ir.Value], tuple[int, ...] | None]
"""Gives the shape of a value."""

ConstantOf: TypeAlias = Callable[[ir.Value], ir.TensorProtocol | None]
"""Gives the tensor of a constant."""


@dataclass(frozen=True)
class Use:
    """An operand: the node, its position and type, the shape of the value asked about, and how shapes and constants of others are found."""

    node: ir.Node
    position: int
    dtype: ir.DataType | None
    shape: tuple[int, ...]
    sizes: Sizes
    constant: ConstantOf

    @property
    def length(self) -> int:
        """The number of elements along the last axis; 1 for a single number."""
        return self.shape[-1] if self.shape else 1

    def operand(self, position: int) -> tuple[int, ...] | None:
        """Return the shape of another operand of the node; None where it is not known."""
        value = given_input(self.node, position)
        return None if value is None else self.sizes(value)


OperandRule: TypeAlias = Callable[[Use], Domain | None]


def place_in_axis(use: Use) -> Domain | None:
    """Allow what is below the length of the axis that is indexed."""
    shape = use.operand(0)
    if not shape:
        return None
    if use.node.op_type in {"GatherND", "ScatterND"}:
        return Domain(0, min(shape))
    axis = use.node.attributes.get_int("axis", 0)
    return Domain(0, shape[axis]) if -len(shape) <= axis < len(shape) else None


def compared_with(use: Use) -> Domain | None:
    """Allow the numbers that a single number is compared with: a model asks for those that it knows."""
    other = use.node.inputs[1 - use.position]
    tensor = None if other is None else use.constant(other)
    if tensor is None or tensor.dtype.is_floating_point() or tensor.size > 8 or use.shape not in {(), (1,)}:
        return None
    if tensor.dtype in {ir.DataType.STRING, ir.DataType.BOOL}:
        return None
    return Domain(choices=tuple(int(number) for number in tensor.numpy().ravel()))


def divisor(use: Use) -> Domain | None:
    """Allow no zero as the divisor of whole numbers, which ends the run."""
    return Domain(low=1) if use.dtype is not None and use.dtype.is_integer() else None


def any_shape(use: Use) -> Domain:
    """Allow a shape that any tensor can be given: ones, and what is left last."""
    return Domain(fixed=(*(1,) * (use.length - 1), -1))


def first_axes(use: Use) -> Domain:
    """Allow axes in order, from the first one on."""
    return Domain(fixed=tuple(range(use.length)))


def doubled_axes(use: Use) -> Domain:
    """Double all axes but batch and channels."""
    return Domain(fixed=tuple(1.0 if axis < 2 else 2.0 for axis in range(use.length)))


def sizes_of_first(use: Use) -> Domain | None:
    """Allow the sizes of the first operand."""
    shape = use.operand(0)
    return Domain(fixed=shape[-use.length :]) if shape else None


def grid_shape(use: Use) -> Domain | None:
    """Allow images as many as there are transformations, of one channel, two pixels along each axis."""
    shape = use.operand(0)
    return Domain(fixed=(shape[0], 1, *(2,) * (use.length - 2))) if shape else None


def even_parts(use: Use) -> Domain | None:
    """Allow parts of one length, the last of which takes the rest."""
    shape, axis = use.operand(0), use.node.attributes.get_int("axis", 0)
    if not shape or not -len(shape) <= axis < len(shape):
        return None
    part = shape[axis] // use.length
    return Domain(fixed=(*(part,) * (use.length - 1), shape[axis] - part * (use.length - 1)))


def steps_along(axis: int) -> OperandRule:
    """Allow lengths of sequences that lie along `axis` of the first operand."""

    def rule(use: Use) -> Domain | None:
        shape = use.operand(0)
        return Domain(1, shape[axis] + 1) if shape and len(shape) > axis else None

    return rule


def time_steps(use: Use) -> Domain | None:
    """Allow lengths of sequences along the axis that the node names."""
    return steps_along(use.node.attributes.get_int("time_axis", 0))(use)


_COUNTING = frozenset({"Add", "Cast", "Identity", "Reshape", "Squeeze", "Sub", "Unsqueeze"})
"""Operators between the sum of a mask and the number of tokens that it keeps."""


def counted_mask(use: Use) -> Domain | None:
    """Let a mask keep all tokens where its sum is the length that an attention with a cache of keys is told."""
    todo, seen = [use.node], {use.node}
    while todo:
        for value in todo.pop().outputs:
            for node, position in value.uses():
                if (node.op_type, position) == ("GroupQueryAttention", 5):
                    return Domain(fixed=(1,))
                if node.op_type in _COUNTING and node not in seen:
                    seen.add(node)
                    todo.append(node)
    return None


_ROW_BY_ROW = frozenset(
    {
        *("Add", "BiasGelu", "Cast", "Gelu", "Identity", "LayerNormalization", "MatMul", "MatMulNBits", "Mul", "Relu"),
        *("RMSNormalization", "RotaryEmbedding", "SimplifiedLayerNormalization"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"),
    }
)
"""Operators whose result has as many rows as their first operand."""


_WALKED = 16
"""Operators between a tensor and one of known size, at most."""


def _rows_of(value: ir.Value | None, sizes: Sizes) -> int | None:
    """Return the size of the second axis of `value`, of three; also where the file says it only of an operand row by row before."""
    for _ in range(_WALKED):
        shape, maker = None if value is None else sizes(value), None if value is None else value.producer()
        if shape:
            return shape[1] if len(shape) == 3 else None
        if maker is None or maker.op_type not in _ROW_BY_ROW:
            return None
        value = maker.inputs[0]
    return None


def token_count(less: int) -> OperandRule:
    """Allow the number of tokens, past ones included, of an attention with a cache of keys, `less` this number.

    A model whose present keys have a size of their own, as those in one buffer with the past, has so many tokens.
    """

    def rule(use: Use) -> Domain | None:
        present = use.sizes(use.node.outputs[1]) if len(use.node.outputs) > 1 else None
        if present and len(present) == 4:
            return Domain(fixed=(present[2] - less,))
        queries, past = _rows_of(use.node.inputs[0], use.sizes), use.operand(3)
        if queries is None:
            return None
        return Domain(fixed=(queries + (past[2] if past and len(past) > 2 else 0) - less,))

    return rule


def always(*numbers: float) -> OperandRule:
    """Allow these numbers alone."""
    return lambda _use: Domain(fixed=numbers)


def repeated(number: float) -> OperandRule:
    """Allow one number, as often as it is asked for."""
    return lambda use: Domain(fixed=(number,) * use.length)


def between(low: float, high: float) -> OperandRule:
    """Allow numbers from `low` to below `high`."""
    return lambda _use: Domain(low, high)
