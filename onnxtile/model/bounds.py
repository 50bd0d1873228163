"""Bounds for shapes that depend on the data: `--bound NAME=N` says how large a dimension may become."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

import onnx_ir as ir

from onnxtile.errors import UsageError
from onnxtile.model.infer import Dims, values
from onnxtile.model.shape_values import Propagation

_LISTED = 8


def bounded(
    model: ir.Model,
    dtypes: Mapping[ir.Value, ir.DataType],
    dims: Mapping[ir.Value, Dims],
    bounds: Mapping[str, int],
    smaller: Mapping[ir.Value, Collection[int]] | None = None,
) -> Propagation:
    """Return the shapes of `model` with each open dimension at its bound; `upper` holds the values whose sizes are upper bounds.

    A name is that of a dimension, or of a value or a node, all of whose open dimensions it bounds. On the axes in `smaller`, values may be
    smaller than `dims` say. Raises UsageError for a bound below 1,
    a name that none of the values of unknown size has, and two bounds for one dimension that differ.
    """
    for name, most in bounds.items():
        if most < 1:
            raise UsageError(f"invalid bound {name!r}={most}: the upper bound of a dimension is at least 1")
    named: dict[str, list[tuple[ir.Value, int]]] = {}
    for value in values(model):
        for name, axis in _names(value, dims.get(value)):
            named.setdefault(name, []).append((value, axis))
    found: dict[tuple[ir.Value, int], int] = {}
    for name, most in bounds.items():
        for place in _places(name, named, model):
            if found.setdefault(place, most) != most:
                raise UsageError(
                    f"a dimension of {place[0].name!r} is bound to {found[place]} and, as {name!r}, to {most}"
                )
    filled = dict(dims)
    for (value, axis), most in found.items():
        before = filled[value]
        filled[value] = (*before[:axis], most, *before[axis + 1 :])
    upper: dict[ir.Value, set[int]] = {value: set(axes) for value, axes in (smaller or {}).items()}
    for value, axis in found:
        upper.setdefault(value, set()).add(axis)
    propagation = Propagation(model, dtypes, filled, upper, upper)
    propagation.run()
    return propagation


def _names(value: ir.Value, dims: Dims | None) -> Iterator[tuple[str, int]]:
    """Yield the names of each open dimension of `value`, with its axis."""
    node, declared = value.producer(), value.shape
    for axis, dim in enumerate(dims or ()):
        if not isinstance(dim, int):
            written = declared[axis] if declared is not None and len(declared) == len(dims or ()) else None
            symbol = written.value if isinstance(written, ir.SymbolicDim) else None
            called = (dim, symbol, value.name, None if node is None else node.name)
            yield from ((name, axis) for name in dict.fromkeys(filter(None, called)))


def _places(name: str, named: Mapping[str, list[tuple[ir.Value, int]]], model: ir.Model) -> list[tuple[ir.Value, int]]:
    if name in named:
        return named[name]
    if any(name in {value.name, node.name} for node in model.graph.all_nodes() for value in node.outputs):
        raise UsageError(f"invalid bound {name!r}: all its dimensions are static, or its rank is not known")
    near = difflib.get_close_matches(name, named, n=1)
    listed = ", ".join(list(named)[:_LISTED])
    others = f"those that depend on the data are {listed}" if named else "every size is known, leave --bound out"
    hint = f"did you mean {near[0]!r}?" if near else others
    raise UsageError(f"invalid bound {name!r}: no open dimension, value or node has this name", hint=hint)
