"""Sample inputs for a model, drawn at random inside what their consumers allow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.dims import free_inputs
from onnxtile.runtime import Array

Sizes = Callable[[ir.Value], tuple[int, ...] | None]

_KEEPS_VALUES = {
    "Cast",
    "Reshape",
    "Unsqueeze",
    "Squeeze",
    "Flatten",
    "Identity",
    "Transpose",
    "Expand",
    "Slice",
    "Concat",
    "Tile",
}
_INDEX_INPUT = {"Gather": 1, "GatherElements": 1, "GatherND": 1, "ScatterElements": 1, "ScatterND": 1}


def sample_feeds(model: ir.Model, sizes: Sizes, *, seed: int = 0) -> dict[str, Array]:
    """Return an array for each input of `model` that must be fed, the same for the same seed.

    `sizes` gives the shape of a value. Floating-point inputs are standard normal; integers are 0 or 1, or, where they
    reach a Gather as indices, anything below the length of the axis they index. Raises ModelError for inputs without a known shape or
    that are no tensors.
    """
    generator = np.random.default_rng(seed)
    return {
        value.name or "": draw(generator, value, sizes, limit=_index_limit(value, sizes))
        for value in free_inputs(model)
    }


def draw(generator: np.random.Generator, value: ir.Value, sizes: Sizes, *, limit: int | None = None) -> Array:
    """Return a random array of the type and shape of `value`; integers lie in [0, `limit`), by default 0 or 1."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise ModelError(f"the input {value.name!r} is a {_kind(value.type)}, and sample inputs are tensors only")
    shape, dtype = sizes(value), value.dtype
    if shape is None or dtype is None:
        raise ModelError(
            f"the input {value.name!r} has no known shape", hint=f"bind it: --shape {value.name}=1x3x224x224, or --dim"
        )
    if dtype == ir.DataType.STRING:
        return np.full(shape, "a", dtype=object)
    if dtype == ir.DataType.BOOL:
        return np.asarray(generator.random(shape) < 0.5)
    if dtype.is_floating_point():
        return generator.standard_normal(shape).astype(dtype.numpy())
    if dtype in {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}:
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype.numpy())
    # Eight-bit integers are quantised data, of which every value is meant; wider ones are more often counts, indices and masks.
    high = limit or (100 if dtype.bitwidth == 8 else 2)
    return generator.integers(0, high, shape).astype(dtype.numpy())


def _kind(type_: ir.TypeProtocol) -> str:
    return type(type_).__name__.removesuffix("Type").lower()


def _index_limit(value: ir.Value, sizes: Sizes) -> int | None:
    """Return the length of the shortest axis that `value`, or a rearrangement of it, indexes; None where it indexes none."""
    limits = []
    todo, seen = [value], {value}
    while todo:
        current = todo.pop()
        for node, index in current.uses():
            if _INDEX_INPUT.get(node.op_type) == index:
                limits.extend(_indexed_lengths(node, sizes))
            elif index == 0 and node.op_type in _KEEPS_VALUES:
                todo.extend(output for output in node.outputs if output not in seen)
                seen.update(node.outputs)
    return min(limits, default=None)


def _indexed_lengths(node: ir.Node, sizes: Sizes) -> list[int]:
    data = node.inputs[0]
    shape = sizes(data) if data is not None else None
    if not shape:
        return []
    if node.op_type in {"GatherND", "ScatterND"}:
        return list(shape)
    axis = node.attributes.get_int("axis", 0)
    return [shape[axis]] if -len(shape) <= axis < len(shape) else []
