"""Sizes for open dimensions: a few are tried until the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.model.dims import bind, free_inputs
from onnxtile.model.given import Feeds, given_shapes
from onnxtile.verification.cache_sizes import cache_sizes

# Different ones first, so that exchanged axes are noticed.
_SIZES: tuple[tuple[int, ...], ...] = ((2, 8, 3, 5, 7), (8,), (16,), (32,), (64,), (128,), (224,), (1,), (256,), (512,))


@dataclass(frozen=True)
class Assignment:
    """Sizes of symbols, by name, and what shape each input has with them (None where even its rank is unknown)."""

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[ir.Value, tuple[int, ...] | None] = field(default_factory=dict)

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape that an input was given, or what the file says of another value."""
        if value in self.shapes:
            return self.shapes[value]
        if value.const_value is not None:
            return tuple(value.const_value.shape.numpy())
        return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None


def open_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs of `model` whose sizes are not all fixed."""
    return [value for value in free_inputs(model) if value.shape is None or not value.shape.is_static()]


def assignments(model: ir.Model) -> Iterator[Assignment]:
    """Yield sizes for the symbols of `model` that may work; a static model has one way only."""
    inputs = free_inputs(model)
    if not open_inputs(model):
        yield Assignment({}, {v: None if v.shape is None else v.shape.numpy() for v in inputs})
        return
    asked = cache_sizes(model)
    for sizes in _SIZES:
        dims: dict[str, int] = {}
        named: dict[ir.Value, list[int | str] | None] = {}
        for value in inputs:
            named[value] = _named(value)
            for dim in named[value] or ():
                if isinstance(dim, str):
                    dims.setdefault(dim, sizes[min(len(dims), len(sizes) - 1)])
        dims = asked.apply(dims)
        shapes = {
            value: None if one is None else tuple(dim if isinstance(dim, int) else dims[dim] for dim in one)
            for value, one in named.items()
        }
        yield Assignment(dims, shapes)


def _named(value: ir.Value) -> list[int | str] | None:
    if value.shape is None:
        return None
    return [dim if isinstance(dim, int) else _symbol(value, axis, dim) for axis, dim in enumerate(value.shape)]


def sizes_given(model: ir.Model, given: Feeds) -> dict[str, int]:
    """Return the size of each free dimension in `given`."""
    shapes = given_shapes(given)
    return {
        _symbol(value, axis, dim): shapes[value.name or ""][axis]
        for value in free_inputs(model)
        if value.name in shapes
        for axis, dim in enumerate(value.shape or ())
        if not isinstance(dim, int)
    }


def bound_form(model: ir.Model, dims: Mapping[str, int]) -> ir.Model:
    """Return `model`, or a copy of it whose inputs have the sizes that a trial ran with where some are open. It is only to be read."""
    return bound_copy(model, dims) if open_inputs(model) else model


def bound_copy(model: ir.Model, dims: Mapping[str, int]) -> ir.Model:
    """Return a copy of `model` whose inputs have the sizes that a trial ran with."""
    copy = model.clone()
    shapes = {}
    for value in free_inputs(copy):
        if value.shape is not None and not value.shape.is_static():
            named = [
                dim if isinstance(dim, int) else dims[_symbol(value, axis, dim)] for axis, dim in enumerate(value.shape)
            ]
            shapes[value.name or ""] = tuple(named)
    bind(copy, {}, shapes)
    return copy


def _symbol(value: ir.Value, axis: int, dim: ir.SymbolicDim) -> str:
    """Return the symbol's name; one without a name, or named "?", is its own."""
    return dim.value if dim.value and dim.value.isidentifier() else f"{value.name}[{axis}]"
