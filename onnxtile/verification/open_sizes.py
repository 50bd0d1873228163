"""Sizes for open dimensions: a few are tried until the model runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import onnx_ir as ir

from onnxtile.model.binding import bind, free_inputs
from onnxtile.model.feeds import Feeds, given_shapes
from onnxtile.model.topology import cloned
from onnxtile.system.dataclass import dataclass

# Sizes that attention with a cache of keys asks of open dimensions: the batch, the head size, the window, and the number of all tokens.

_ATTENTION = ("com.microsoft", "GroupQueryAttention")
_PAST, _LENGTHS = 3, 5
"""The places of the past keys (batch, heads, tokens, head size) and of the lengths of the keys."""


@dataclass
class CacheSizes:
    """Sizes by symbol: `fixed` ones, and `sums` of others. `window` is the capacity of the largest cache that slides."""

    fixed: dict[str, int] = field(default_factory=dict)
    sums: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    window: int = 0

    def apply(self, dims: Mapping[str, int]) -> dict[str, int]:
        """Return `dims` with the sizes that are known here."""
        known = {name: self.fixed.get(name, size) for name, size in dims.items()}
        totals = {name: self._sum(parts, known) for name, parts in self.sums.items() if name in known}
        return known | {name: total for name, total in totals.items() if total is not None}

    def _sum(self, parts: tuple[str | int, ...], known: Mapping[str, int]) -> int | None:
        sizes = [part if isinstance(part, int) else known.get(part) for part in parts]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def cache_sizes(model: ir.Model) -> CacheSizes:
    """Return the sizes that the nodes of `model` that attend to past keys ask for."""
    sizes = CacheSizes()
    for node in model.graph.all_nodes():
        past = node.inputs[_PAST] if len(node.inputs) > _LENGTHS else None
        if (node.domain, node.op_type) == _ATTENTION and past is not None and past.shape is not None:
            _note(node, [_named_dim(dim) for dim in past.shape], sizes)
    # A cache that slides is only written as far as there are tokens: elsewhere its bytes differ from run to run.
    for part in (part for parts in sizes.sums.values() for part in parts[1:] if sizes.window):
        sizes.fixed.setdefault(str(part), sizes.window)
    return sizes


def _note(node: ir.Node, past: list[str | int | None], sizes: CacheSizes) -> None:
    if len(past) != 4:
        return
    head, tokens = _head_size(node), past[2]
    if isinstance(past[0], str):
        sizes.fixed.setdefault(past[0], 1)  # the kernel takes several queries with a past in a batch of 1 only
    if head is not None and isinstance(past[3], str):
        sizes.fixed.setdefault(past[3], head)
    if node.attributes.get_int("sliding_window_cache", 0):
        sizes.window = max(sizes.window, node.attributes.get_int("local_window_size", 1))
        if isinstance(tokens, str):
            sizes.fixed.setdefault(tokens, sizes.window)
        return
    queries, mask = _dim(node.inputs[0], 1), _dim(_summed(node.inputs[_LENGTHS]), 1)
    if isinstance(mask, str) and queries is not None and tokens is not None:
        sizes.sums.setdefault(mask, (queries, tokens))


def _head_size(node: ir.Node) -> int | None:
    heads, shared = node.attributes.get_int("num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    is_packed = len(node.inputs) < 2 or node.inputs[1] is None
    width, count = _width(node.inputs[0]), heads + 2 * shared if is_packed else heads
    return width // count if width is not None and count > 0 else None


def _width(value: ir.Value | None) -> int | None:
    """Return the length of the last axis of `value`, also where only the weights of the product that makes it say so."""
    for _ in range(4):
        known = _dim(value, -1)
        maker = None if value is None else value.producer()
        if isinstance(known, int):
            return known
        if maker is None:
            return None
        if maker.op_type == "MatMulNBits":
            return maker.attributes.get_int("N", 0) or None
        constants = [operand for operand in maker.inputs if operand is not None and operand.const_value is not None]
        if maker.op_type in {"Add", "MatMul"} and constants:
            return int(constants[-1].const_value.shape[-1])  # type: ignore[union-attr, arg-type]
        value = maker.inputs[0]
    return None


def _summed(value: ir.Value | None) -> ir.Value | None:
    """Return the input of the model whose sum is `value`, less a number."""
    for maker in _makers(value):
        if maker.op_type == "ReduceSum":
            return maker.inputs[0]
    return None


def _makers(value: ir.Value | None) -> Iterator[ir.Node]:
    for _ in range(8):
        maker = None if value is None else value.producer()
        if maker is None:
            return
        yield maker
        value = maker.inputs[0] if maker.inputs else None


def _dim(value: ir.Value | None, axis: int) -> str | int | None:
    if value is None or value.shape is None or len(value.shape) < 2:
        return None
    return _named_dim(value.shape[axis])


def _named_dim(dim: int | ir.SymbolicDim) -> str | int | None:
    return dim if isinstance(dim, int) else dim.value


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
            value: None if wanted is None else tuple(dim if isinstance(dim, int) else dims[dim] for dim in wanted)
            for value, wanted in named.items()
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
    copy = cloned(model)
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
