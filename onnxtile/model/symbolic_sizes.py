"""Sizes over ranges of symbolic dimensions: the formula of each size, and its largest value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.model.formula_propagation import FormulaPropagation
from onnxtile.model.infer import values
from onnxtile.model.known import Dims
from onnxtile.model.shape_values import Propagation
from onnxtile.model.size_expression import read_sizes
from onnxtile.model.size_formula import SizeFormula, SizeRanges

Formulas: TypeAlias = Mapping[ir.Value, tuple[SizeFormula, ...]]
"""The sizes of values, as formulas of the symbols that have ranges."""


@dataclass(frozen=True)
class LargestSizes:
    """The largest dimensions of values over ranges, and `open`: the axes on which a value may be smaller."""

    dims: Mapping[ir.Value, Dims]
    formulas: Formulas
    open: Mapping[ir.Value, set[int]] = field(default_factory=dict)


def largest_sizes(
    model: ir.Model, dtypes: Mapping[ir.Value, ir.DataType], dims: Mapping[ir.Value, Dims], ranges: SizeRanges
) -> LargestSizes:
    """Return the largest sizes of the values of `model` over `ranges`, and the formulas of those whose symbols all have a range."""
    read = {value: found for value in values(model) if (found := read_sizes(dims.get(value), ranges)) is not None}
    propagation = FormulaPropagation(model, dtypes, read, ranges)
    propagation.run()
    filled, open_, formulas = dict(dims), {}, propagation.formulas
    for value, found in formulas.items():
        filled[value] = tuple(max(0, size.limits(ranges)[1]) for size in found)
        axes = {axis for axis, size in enumerate(found) if size.constant is None}
        if axes:
            open_[value] = axes
    return LargestSizes(filled, formulas, open_)


def propagated(model: ir.Model, dtypes: Mapping[ir.Value, ir.DataType], largest: LargestSizes) -> Propagation | None:
    """Return the upper bounds of sizes that no formula says, as far as they follow from the largest; None where no size is open."""
    open_ = (v for v in values(model) if v.name and v.const_value is None and v not in largest.formulas)
    if not any(value.type is None or isinstance(value.type, ir.TensorType) for value in open_):
        return None
    found = Propagation(model, dtypes, largest.dims, values(model), largest.open)
    found.run()
    return found
