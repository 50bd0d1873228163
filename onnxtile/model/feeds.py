"""Sample inputs for a model, drawn at random inside what their consumers allow."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.model.binding import free_inputs, missing_sizes
from onnxtile.model.constants import constant_tensor
from onnxtile.model.npz_inputs import Feeds
from onnxtile.model.walk import RESHAPING
from onnxtile.system.errors import ModelError, UsageError
from onnxtile.system.limits import too_much_memory
from onnxtile.system.runtime import Array

# The range of numbers that an input may hold, and random draws from it.

Ranges: TypeAlias = Mapping[str, tuple[float, float]]
"""The lowest number of an input and the first above the highest, by the input's name; the same twice: that number alone."""


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
        top = float(_finfo(dtype).max)
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


_NO_NUMBERS = {ir.DataType.STRING, ir.DataType.UNDEFINED}


def holds(dtype: ir.DataType, low: float, high: float) -> bool:
    """Return whether numbers from `low` to below `high` can be drawn as elements of `dtype`."""
    if dtype in _NO_NUMBERS:
        return True
    numbers = np.dtype(dtype.numpy())
    if numbers.kind in "fV" and dtype.is_floating_point():
        top = float(_finfo(numbers).max)
        return -top <= low and high <= top
    if dtype.is_integer():
        bits, signed = dtype.bitwidth, dtype.is_signed()
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2 ** min(bits, 63))
        return least <= low and high <= most
    return True


def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.kind != "V" and dtype.itemsize >= 2:
        return np.finfo(dtype)
    import ml_dtypes

    finfo: Callable[[Any], Any] = ml_dtypes.finfo
    return finfo(dtype)


# Requirements of operators on the numbers in their operands: indices below an axis size, valid shapes, lengths, axes, counts.

Sizes: TypeAlias = Callable[[ir.Value], tuple[int, ...] | None]
"""Gives the shape of a value."""


@dataclass(frozen=True)
class _Use:
    """An operand: the node, the position, the shape of the value asked about, and how the shapes of other operands are found."""

    node: ir.Node
    position: int
    shape: tuple[int, ...]
    sizes: Sizes

    @property
    def length(self) -> int:
        return self.shape[-1] if self.shape else 1

    def operand(self, position: int) -> tuple[int, ...] | None:
        value = self.node.inputs[position] if position < len(self.node.inputs) else None
        return None if value is None else self.sizes(value)


_OperandRule: TypeAlias = Callable[[_Use], Domain | None]


def domains(model: ir.Model, sizes: Sizes, ranges: Ranges | None = None) -> dict[str, Domain]:
    """Return the domain of each input of `model` that must be fed; `sizes` gives the shape of a value.

    What the user says in `ranges` counts alone. Raises UsageError where that names no input, or no number is in it.
    """
    inputs = {value.name or "": value for value in free_inputs(model)}
    told = {name: _told(name, ends, inputs) for name, ends in (ranges or {}).items()}
    return {name: told.get(name) or allowed(value, model, sizes) for name, value in inputs.items()}


def _told(name: str, ends: tuple[float, float], inputs: Mapping[str, ir.Value]) -> Domain:
    if name not in inputs:
        near = difflib.get_close_matches(name, inputs, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"its inputs are {', '.join(inputs) or 'none'}"
        raise UsageError(f"the model has no input {name!r}", hint=hint)
    low, high = ends
    if high < low:
        raise UsageError(f"the range {low:g}:{high:g} of {name!r} is empty")
    dtype = inputs[name].dtype
    if not math.isfinite(high - low) or (dtype is not None and not holds(dtype, low, high)):
        raise UsageError(f"the range {low:g}:{high:g} of {name!r} is wider than its element type")
    return Domain(fixed=(low,)) if low == high else Domain(low, high)


def allowed(value: ir.Value, model: ir.Model, sizes: Sizes) -> Domain:
    """Return the narrowest range that operators which read `value`, or a rearrangement of it, allow."""
    shape = sizes(value) or ()
    found = [one for use in _uses(value, model, sizes, shape) if (one := _of_use(use)) is not None]
    fixed = next((one.fixed for one in found if one.fixed is not None), None)
    choices = next((one.choices for one in found if one.choices), ())
    low = max((one.low for one in found if one.low is not None), default=None)
    high = min((one.high for one in found if one.high is not None), default=None)
    return Domain(low, high, choices, fixed)


def _of_use(use: _Use) -> Domain | None:
    op, position = use.node.op_type, use.position
    if op.startswith("Reduce") and position == 1:
        return _axes(use)
    rule = _RULES.get((op, position))
    return None if rule is None else rule(use)


# What keeps the numbers of its first input, if not their places.
_KEEPS = RESHAPING | {"Cast", "Concat", "Expand", "Slice", "Tile", "Transpose"}


def _uses(value: ir.Value, model: ir.Model, sizes: Sizes, shape: tuple[int, ...]) -> Iterator[_Use]:
    """Yield the operands that `value` comes to be, also in bodies and in local functions."""
    outer: dict[ir.Value, ir.Value] = {}

    def sizes_of(asked: ir.Value) -> tuple[int, ...] | None:
        return sizes_of(outer[asked]) if asked in outer else sizes(asked)

    todo, seen = [value], {value}
    while todo:
        current = todo.pop()
        for node, position in current.uses():
            reached = list(_inside(node, model, outer)[position : position + 1])
            if not reached:
                yield _Use(node, position, shape, sizes_of)
            if (position == 0 or node.op_type == "Concat") and node.op_type in _KEEPS:
                reached = list(node.outputs)
            todo.extend(one for one in reached if one not in seen)
            seen.update(reached)


def _inside(node: ir.Node, model: ir.Model, outer: dict[ir.Value, ir.Value]) -> list[ir.Value]:
    """Return the inputs of the function that `node` calls; note in `outer` which values of the caller they stand for."""
    function = model.functions.get(node.op_identifier())
    if function is None:
        return []
    outer.update(
        {inner: given for inner, given in zip(function.inputs, node.inputs, strict=False) if given is not None}
    )
    return list(function.inputs)


def _index(use: _Use) -> Domain | None:
    """Allow what is below the length of the axis that is indexed."""
    shape = use.operand(0)
    if not shape:
        return None
    if use.node.op_type in {"GatherND", "ScatterND"}:
        return Domain(0, min(shape))
    axis = use.node.attributes.get_int("axis", 0)
    return Domain(0, shape[axis]) if -len(shape) <= axis < len(shape) else None


def _compared(use: _Use) -> Domain | None:
    """Allow the numbers that a single number is compared with: a model asks for those that it knows."""
    other = use.node.inputs[1 - use.position]
    tensor = None if other is None else _constant(other)
    if tensor is None or tensor.dtype.is_floating_point() or tensor.size > 8 or use.shape not in {(), (1,)}:
        return None
    if tensor.dtype in {ir.DataType.STRING, ir.DataType.BOOL}:
        return None
    return Domain(choices=tuple(int(number) for number in tensor.numpy().ravel()))


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    node = value.producer()
    return constant_tensor(node) if node is not None and node.op_type == "Constant" else value.const_value


def _one_rest(use: _Use) -> Domain:
    """Allow a shape that any tensor can be given: ones, and what is left last."""
    return Domain(fixed=(*(1,) * (use.length - 1), -1))


def _axes(use: _Use) -> Domain:
    return Domain(fixed=tuple(range(use.length)))


def _scales(use: _Use) -> Domain:
    """Double all axes but batch and channels."""
    return Domain(fixed=tuple(1.0 if axis < 2 else 2.0 for axis in range(use.length)))


def _sizes_of_first(use: _Use) -> Domain | None:
    shape = use.operand(0)
    return Domain(fixed=shape[-use.length :]) if shape else None


def _grid(use: _Use) -> Domain | None:
    """Allow images as many as there are transformations, of one channel, two pixels along each axis."""
    shape = use.operand(0)
    return Domain(fixed=(shape[0], 1, *(2,) * (use.length - 2))) if shape else None


def _even_parts(use: _Use) -> Domain | None:
    shape, axis = use.operand(0), use.node.attributes.get_int("axis", 0)
    if not shape or not -len(shape) <= axis < len(shape):
        return None
    part = shape[axis] // use.length
    return Domain(fixed=(*(part,) * (use.length - 1), shape[axis] - part * (use.length - 1)))


def _steps(axis: int) -> _OperandRule:
    """Allow lengths of sequences that lie along `axis` of the first operand."""

    def rule(use: _Use) -> Domain | None:
        shape = use.operand(0)
        return Domain(1, shape[axis] + 1) if shape and len(shape) > axis else None

    return rule


def _time(use: _Use) -> Domain | None:
    return _steps(use.node.attributes.get_int("time_axis", 0))(use)


_COUNTING = frozenset({"Add", "Cast", "Identity", "Reshape", "Squeeze", "Sub", "Unsqueeze"})
"""Operators between the sum of a mask and the number of tokens that it keeps."""


def _counted(use: _Use) -> Domain | None:
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


def _tokens(less: int) -> _OperandRule:
    """Allow the number of tokens, past ones included, of an attention with a cache of keys, `less` this number.

    A model whose present keys have a size of their own, as those in one buffer with the past, has so many tokens.
    """

    def rule(use: _Use) -> Domain | None:
        present = use.sizes(use.node.outputs[1]) if len(use.node.outputs) > 1 else None
        if present and len(present) == 4:
            return Domain(fixed=(present[2] - less,))
        queries, past = _rows_of(use.node.inputs[0], use.sizes), use.operand(3)
        if queries is None:
            return None
        return Domain(fixed=(queries + (past[2] if past and len(past) > 2 else 0) - less,))

    return rule


def _always(*numbers: float) -> _OperandRule:
    return lambda _use: Domain(fixed=numbers)


def _repeated(number: float) -> _OperandRule:
    return lambda use: Domain(fixed=(number,) * use.length)


def _between(low: float, high: float) -> _OperandRule:
    return lambda _use: Domain(low, high)


_RULES: Mapping[tuple[str, int], _OperandRule] = {
    **{(op, 1): _index for op in ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND")},
    **{("Equal", position): _compared for position in (0, 1)},
    ("Reshape", 1): _one_rest,
    ("Expand", 1): _repeated(1),
    ("Tile", 1): _repeated(1),
    ("ConstantOfShape", 0): _repeated(2),
    ("Pad", 1): _between(0, 2),
    ("Slice", 1): _repeated(0),
    ("Slice", 2): _repeated(2),
    ("Slice", 3): _axes,
    ("Slice", 4): _repeated(1),
    ("Squeeze", 1): _axes,
    ("Unsqueeze", 1): _axes,
    ("CumSum", 1): _always(0),
    ("CumProd", 1): _always(0),
    ("AffineGrid", 1): _grid,
    ("ReduceSum", 0): _counted,
    ("GroupQueryAttention", 5): _tokens(1),
    ("GroupQueryAttention", 6): _tokens(0),
    # Others onnxruntime does not take, or does not survive.
    **{("STFT", position): _always(2) for position in (1, 3)},
    ("ConvInteger", 3): _always(0),
    ("Col2Im", 2): _repeated(1),
    **{("MelWeightMatrix", at): _always(number) for at, number in enumerate((4, 16, 8000, 0, 4000))},
    ("Resize", 2): _scales,
    ("Resize", 3): _sizes_of_first,
    ("Upsample", 1): _scales,
    **{(op, 1): _even_parts for op in ("Split", "SplitToSequence")},
    ("TopK", 1): _always(1),
    ("OneHot", 1): _always(4),
    ("Range", 0): _always(0),
    ("Range", 1): _always(5),
    ("Range", 2): _always(1),
    ("Loop", 0): _always(2),
    ("Loop", 1): _always(1),
    ("ReverseSequence", 1): _time,
    **{(op, 4): _steps(0) for op in ("RNN", "GRU", "LSTM")},
    ("Dropout", 1): _always(0),
    ("Dropout", 2): _always(0),
    ("NonMaxSuppression", 2): _always(3),
    ("NonMaxSuppression", 3): _between(0, 1),
    ("NonMaxSuppression", 4): _between(0, 1),
    ("Bernoulli", 0): _between(0, 1),
    ("BatchNormalization", 4): _between(0.1, 2),
    ("QuantizeLinear", 1): _between(0.01, 1),
    ("DequantizeLinear", 1): _between(0.01, 1),
}


_ELEMENTS = 2
"""Number of tensors in a random sequence."""
MOST_DIMENSIONS = 64
"""Of an array of numpy (NPY_MAXDIMS)."""
_MOST_ELEMENTS = 2**58
"""Of a tensor whose bytes a number of 64 bits counts."""


def sample_feeds(model: ir.Model, sizes: Sizes, *, seed: int = 0, ranges: Ranges | None = None) -> dict[str, Any]:
    """Return an array (a list of arrays for a sequence) for each input of `model` that must be fed, the same for the same seed.

    An optional input is given what it may hold. `sizes` gives the shape of a value. Numbers lie in `ranges` where these name the input,
    else inside what the operators that read the input allow (`onnxtile.model.feeds`). Where nothing limits them, floats are standard
    normal, and integers 0 or 1. Raises ModelError for inputs without a known shape, and for maps and sparse tensors, and UsageError for a
    bad range.
    """
    generator = np.random.default_rng(seed)
    open_ = [value for value in free_inputs(model) if _has_shape(value) and fed_sizes(value, sizes) is None]
    if open_:
        raise missing_sizes(open_)
    known = domains(model, sizes, ranges)
    return {
        value.name or "": _fed(generator, value, fed_sizes(value, sizes), known[value.name or ""])
        for value in free_inputs(model)
    }


def fed_sizes(value: ir.Value, sizes: Sizes) -> tuple[int, ...] | None:
    """Return the shape of an input, or of the tensors that it holds: for these, `sizes` knows none, and the file's counts."""
    found = sizes(value)
    if found is not None or isinstance(value.type, ir.TensorType | None):
        return found
    return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None


def _has_shape(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType | ir.SequenceType | ir.OptionalType | None)


def _fed(generator: np.random.Generator, value: ir.Value, shape: tuple[int, ...] | None, domain: Domain) -> Any:
    """Return random content of the type of `value`: of an optional one its element, of a sequence some elements."""
    if isinstance(value.type, ir.OptionalType):
        return _fed(generator, _element(value, value.type), shape, domain)
    if isinstance(value.type, ir.SequenceType):
        element = _element(value, value.type)
        return [_fed(generator, element, shape, domain) for _ in range(_ELEMENTS)]
    return _drawn(generator, value, shape, domain)


def _element(value: ir.Value, type_: ir.SequenceType | ir.OptionalType) -> ir.Value:
    return ir.Value(name=value.name, type=type_.elem_type, shape=value.shape)


def draw(generator: np.random.Generator, value: ir.Value, sizes: Sizes) -> Array:
    """Return a random array of the type and shape of `value`; integers are 0 or 1."""
    return _drawn(generator, value, sizes(value), Domain())


def _drawn(generator: np.random.Generator, value: ir.Value, shape: tuple[int, ...] | None, domain: Domain) -> Array:
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise ModelError(
            f"the input {value.name!r} is a {_kind(value.type)}, and sample inputs are tensors, sequences or optional values"
        )
    dtype = value.dtype
    if dtype is None:
        raise ModelError(f"the element type of the input {value.name!r} is not known")
    if shape is None:
        raise missing_sizes([value])
    require_array(value.name, shape)
    if math.prod(shape) > _MOST_ELEMENTS:
        raise too_much_memory()
    if dtype == ir.DataType.STRING:
        return np.full(shape, "a", dtype=object)
    if dtype == ir.DataType.BOOL and domain.fixed is None:
        return _mask(np.asarray(generator.random(shape) < 0.5))
    if dtype in {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}:
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype.numpy())
    array = domain.draw(generator, shape, np.dtype(dtype.numpy()))
    return array if dtype.is_floating_point() or domain.is_bounded or dtype.bitwidth == 8 else _mask(array)


def require_array(name: str | None, shape: Sequence[int]) -> None:
    """Raise ModelError unless an array may have as many dimensions as `shape`, which is that of the tensor `name`."""
    if len(shape) > MOST_DIMENSIONS:
        raise ModelError(
            f"the tensor {name!r} has {len(shape)} dimensions, and arrays of numpy, in which it would be computed, have at most "
            f"{MOST_DIMENSIONS}",
            hint="reshape it to fewer dimensions, or use --no-verify",
        )


def _mask(array: Array) -> Array:
    """Let something and, of booleans, not everything be chosen along the last axis: a mask that hides all is none that is meant."""
    if array.ndim > 1 and array.shape[-1] > 1:
        array[..., 0] = 1
        if array.dtype.kind == "b":
            array[..., -1] = False
    return array


def _kind(type_: ir.TypeProtocol) -> str:
    return type(type_).__name__.removesuffix("Type").lower()


# Inputs for runs of a model: given arrays, or random ones inside ranges that the user may set.


@dataclass(frozen=True)
class Wanted:
    """The inputs `given` for every run; where there are none, random ones with numbers in `ranges` (see model.feeds)."""

    given: Feeds | None = None
    ranges: Ranges | None = None

    def feeds(self, model: ir.Model, sizes: Sizes, runs: int, *, seed: int = 0) -> list[Mapping[str, Any]]:
        """Return the inputs of each of `runs` runs. Raises ModelError, UsageError as `sample_feeds` does."""
        if self.given is not None:
            return [self.given] * runs
        return [sample_feeds(model, sizes, seed=seed + run, ranges=self.ranges) for run in range(runs)]


ANYTHING = Wanted()
