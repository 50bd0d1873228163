"""Sample inputs for a model, drawn at random inside what their consumers allow."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.model.binding import free_inputs, missing_sizes
from onnxtile.model.constants import constant_tensor
from onnxtile.model.npz_inputs import Feeds
from onnxtile.operators.table import movement_of, operator_of
from onnxtile.operators.takes import Domain, Sizes, Use, float_info
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError
from onnxtile.system.limits import too_much_memory
from onnxtile.system.runtime import Array

# The range of numbers that an input may hold, and random draws from it.

Ranges: TypeAlias = Mapping[str, tuple[float, float]]
"""The lowest number of an input and the first above the highest, by the input's name; the same twice: that number alone."""


_NO_NUMBERS = {ir.DataType.STRING, ir.DataType.UNDEFINED}


def holds(dtype: ir.DataType, low: float, high: float) -> bool:
    """Return whether numbers from `low` to below `high` can be drawn as elements of `dtype`."""
    if dtype in _NO_NUMBERS:
        return True
    numbers = np.dtype(dtype.numpy())
    if numbers.kind in "fV" and dtype.is_floating_point():
        top = float(float_info(numbers).max)
        return -top <= low and high <= top
    if dtype.is_integer():
        bits, signed = dtype.bitwidth, dtype.is_signed()
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2 ** min(bits, 63))
        return least <= low and high <= most
    return True


# Requirements of operators on the numbers in their operands: indices below an axis size, valid shapes, lengths, axes, counts.


def domains(model: ir.Model, sizes: Sizes, ranges: Ranges | None = None) -> dict[str, Domain]:
    """Return the domain of each input of `model` that must be fed; `sizes` gives the shape of a value.

    What the user says in `ranges` counts alone. Raises UsageError where that names no input, or no number is in it.
    """
    inputs = {value.name or "": value for value in free_inputs(model)}
    stated = {name: _stated_domain(name, ends, inputs) for name, ends in (ranges or {}).items()}
    return {name: stated.get(name) or allowed(value, model, sizes) for name, value in inputs.items()}


def _stated_domain(name: str, ends: tuple[float, float], inputs: Mapping[str, ir.Value]) -> Domain:
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
    limits = [domain for use in _uses(value, model, sizes, shape) if (domain := _of_use(use)) is not None]
    fixed = next((domain.fixed for domain in limits if domain.fixed is not None), None)
    choices = next((domain.choices for domain in limits if domain.choices), ())
    low = max((domain.low for domain in limits if domain.low is not None), default=None)
    high = min((domain.high for domain in limits if domain.high is not None), default=None)
    return Domain(low, high, choices, fixed)


def _of_use(use: Use) -> Domain | None:
    row = operator_of(use.node)
    rule = None if row is None else row.takes.get(use.position)
    return None if rule is None else rule(use)


def _uses(value: ir.Value, model: ir.Model, sizes: Sizes, shape: tuple[int, ...]) -> Iterator[Use]:
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
                yield Use(node, position, shape, sizes_of, _constant)
            movement = movement_of(node)
            if movement == "joins" or (position == 0 and movement not in {"", "pads"}):
                reached = list(node.outputs)
            todo.extend(operand for operand in reached if operand not in seen)
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


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    node = value.producer()
    return constant_tensor(node) if node is not None and node.op_type == "Constant" else value.const_value


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
    known = sizes(value)
    if known is not None or isinstance(value.type, ir.TensorType | None):
        return known
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
            hint="reshape it to fewer dimensions; --no-verify does not run it",
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
