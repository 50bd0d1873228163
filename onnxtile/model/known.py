"""Element type and dimensions of a value, as far as one source knows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import onnx_ir as ir

from onnxtile.model.topology import stored_sizes
from onnxtile.operators.node_view import Dims
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """Element type and dimensions of a value, as far as one source knows them."""

    dtype: ir.DataType | None
    dims: Dims | None


NOTHING = Known(None, None)


def numeric(dims: Dims | None) -> tuple[int, ...] | None:
    """Return `dims` where all are known numbers, else None."""
    if dims is None:
        return None
    for dim in dims:  # asked more often than anything else, and `any` takes thrice as long
        if type(dim) is not int:
            return None
    return cast("tuple[int, ...]", dims)


def declared(value: ir.Value) -> Known:
    """Return type and dimensions of `value` as the file declares them, or those of its constant."""
    return Known(_dtype(value), _dims(value))


@contextmanager
def types_kept(values: Iterable[ir.Value]) -> Iterator[None]:
    """Give `values` at the end of the block the types and shapes back that they have now."""
    declared_before = [(value, value.shape, value.type) for value in values]
    try:
        yield
    finally:
        for value, shape, type_ in declared_before:
            value.shape, value.type = shape, type_


def _dtype(value: ir.Value) -> ir.DataType | None:
    tensor = value.const_value
    if tensor is not None:
        return tensor.dtype
    type_ = value.type
    if type_ is None or not isinstance(type_, ir.TensorType) or type_.dtype == ir.DataType.UNDEFINED:
        return None
    return type_.dtype


def _dims(value: ir.Value) -> Dims | None:
    tensor = value.const_value
    if tensor is not None:
        return stored_sizes(tensor)
    if value.shape is None or not isinstance(value.type, ir.TensorType | None):
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
