"""Edge inputs: zeros, ones, large, small and negative numbers, NaN, infinity, and sequences and optional values without content."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from onnxtile.model.dims import free_inputs
from onnxtile.model.domain import Domain, Ranges
from onnxtile.model.given import Feeds, given_shapes
from onnxtile.model.operands import domains
from onnxtile.runtime import Array
from onnxtile.verification.sizes import Assignment

Fill = Callable[[Array, Domain], Array]
"""Makes an edge input from a random input and the range that its consumers allow."""


def _constant(number: float) -> Fill:
    return lambda array, domain: domain.clipped(np.full(array.shape, number), array.dtype)


def _scaled(floats: float, integers: str) -> Fill:
    """Scale floats; integers become the lowest or the highest that is allowed."""

    def fill(array: Array, domain: Domain) -> Array:
        if not _is_float(array):
            low, high = domain.bounds(array.dtype)
            return np.full(array.shape, low if integers == "low" else high).astype(array.dtype)
        return domain.clipped(array.astype(np.float64) * floats, array.dtype)

    return fill


def _negative(array: Array, domain: Domain) -> Array:
    return domain.clipped(-np.abs(array.astype(np.float64)) - 1, array.dtype)


def _with(number: float) -> Fill:
    """Put a number that is not finite at the first place of floats."""

    def fill(array: Array, domain: Domain) -> Array:
        if not _is_float(array) or not array.size or domain.is_bounded:
            return array
        filled = array.copy()
        filled.flat[0] = number
        return filled

    return fill


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or (array.dtype.kind == "V" and "float" in array.dtype.name)


EDGES: dict[str, Fill] = {
    "zeros": _constant(0),
    "ones": _constant(1),
    "large": _scaled(1e4, "high"),
    "small": _scaled(1e-6, "low"),
    "negative": _negative,
    "NaN": _with(np.nan),
    "infinity": _with(np.inf),
}
"""The edges, in the order in which they are run. Large floats are 10,000 times random ones, still far from overflow in float32."""


def edge_feeds(model: ir.Model, near: Feeds, *, ranges: Ranges | None = None) -> Iterator[tuple[str, Feeds]]:
    """Yield sets of inputs at each edge that differ from `near`, of its shapes, and what the edge is called.

    An input that must have certain values (a shape, a mask, an index) stays inside them; texts and sequences stay as they are,
    but at the edge "empty", where sequences have no elements and optional values no content. A set that
    came before under another name is left out.
    """
    shapes = given_shapes(near)
    known = Assignment({}, {value: shapes.get(value.name or "") for value in free_inputs(model)})
    allowed = domains(model, known.sizes, ranges)
    seen = [_bits(near)]
    for name, fill in EDGES.items():
        feeds = {key: _filled(fill, value, allowed[key]) for key, value in near.items()}
        if _bits(feeds) not in seen:
            seen.append(_bits(feeds))
            yield name, feeds
    empty: dict[str, list[Array] | None] = {
        value.name or "": None if isinstance(value.type, ir.OptionalType) else []
        for value in free_inputs(model)
        if isinstance(value.type, ir.OptionalType | ir.SequenceType)
    }
    if empty:
        yield "empty", {**near, **empty}


def _filled(fill: Fill, value: Array | list[Array] | None, domain: Domain) -> Array | list[Array] | None:
    if value is None or isinstance(value, list) or value.dtype.kind in "OSUc" or domain.fixed is not None:
        return value
    return fill(value, domain)


def _bits(feeds: Feeds) -> list[bytes]:
    return [value.tobytes() for value in feeds.values() if isinstance(value, np.ndarray) and value.dtype.kind != "O"]
