"""The block of constants of a plan: the bytes that a runtime keeps in flash, each constant at its offset."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.walk import all_values
from onnxtile.planning.result import Constant, PlanResult
from onnxtile.system.errors import UsageError


def constant_block(model: ir.Model, plan: PlanResult) -> bytes:
    """Return the bytes of all constants of `plan`, a plan of `model`, at their offsets; gaps are zero.

    Elements are little-endian, those of less than a byte packed as ONNX packs them. Raises UsageError where constants of several graphs
    have one name and different bytes, ModelError where onnxruntime cannot compute one.
    """
    placed = [row for row in plan.constants if row.size is not None and row.offset is not None]
    constants = Constants(model)
    named: dict[str, list[ir.Value]] = {row.name: [] for row in placed}
    for value in dict.fromkeys(all_values(model)):
        if value in constants and value.name in named:
            named[value.name].append(value)
    constants.prepare(value for values in named.values() for value in values)
    block = bytearray(max((row.offset + row.size for row in placed), default=0))  # type: ignore[operator]
    for row in placed:
        found = set(_contents(row, named[row.name], constants))
        if len(found) != 1:
            raise UsageError(
                f"{len(found) or 'no'} constants of the model are named {row.name!r} and have {row.size} bytes",
                hint="give the constants of bodies and functions names of their own",
            )
        start = row.offset or 0
        block[start : start + (row.size or 0)] = found.pop()
    return bytes(block)


def _contents(row: Constant, values: list[ir.Value], constants: Constants) -> Iterator[bytes]:
    """Yield the bytes of the constants `values` that are as long as `row` says."""
    for value in values:
        if value.const_value is not None:
            data = value.const_value.tobytes()
        else:
            dtype = None if row.dtype is None else ir.DataType[row.dtype]
            data = ir.Tensor(np.ascontiguousarray(constants.array(value)), dtype=dtype).tobytes()
        if len(data) == row.size:
            yield data
