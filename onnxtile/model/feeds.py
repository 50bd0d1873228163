"""Sample inputs for a model, drawn at random inside what their consumers allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.dims import free_inputs
from onnxtile.model.domain import Domain, Ranges
from onnxtile.model.operands import Sizes, domains
from onnxtile.model.unbound import missing_sizes
from onnxtile.run_limits import too_much_memory
from onnxtile.runtime import Array

__all__ = ["Ranges", "Sizes", "draw", "sample_feeds"]

_ELEMENTS = 2
"""Number of tensors in a random sequence."""
MOST_DIMENSIONS = 64
"""Of an array of numpy (NPY_MAXDIMS)."""
_MOST_ELEMENTS = 2**58
"""Of a tensor whose bytes a number of 64 bits counts."""


def sample_feeds(model: ir.Model, sizes: Sizes, *, seed: int = 0, ranges: Ranges | None = None) -> dict[str, Any]:
    """Return an array (a list of arrays for a sequence) for each input of `model` that must be fed, the same for the same seed.

    An optional input is given what it may hold. `sizes` gives the shape of a value. Numbers lie in `ranges` where these name the input,
    else inside what the operators that read the input allow (`onnxtile.model.operands`). Where nothing limits them, floats are standard
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


def draw(generator: np.random.Generator, value: ir.Value, sizes: Sizes, *, limit: int | None = None) -> Array:
    """Return a random array of the type and shape of `value`; integers lie in [0, `limit`), by default 0 or 1."""
    return _drawn(generator, value, sizes(value), Domain() if limit is None else Domain(0, limit))


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
