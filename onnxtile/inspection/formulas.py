"""The work and the traffic of a model as formulas of its open dimensions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import onnx_ir as ir

from onnxtile.inspection.layers import LayerCost, layers
from onnxtile.inspection.symbolic_size import SymbolicSize, formula_of
from onnxtile.model.constants import Constants
from onnxtile.model.dims import formula_names, free_inputs, rename_symbols, symbols
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.size_formula import SizeFormula, SizeRanges
from onnxtile.sizes import LARGEST_COUNT


@dataclass(frozen=True)
class FormulaSum:
    """The sum over nodes as a formula, also by operator, and the names of the nodes of which it is not known."""

    total: SizeFormula
    by_operator: Mapping[str, SizeFormula]
    unknown: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the formulas as expressions of Python."""
        by_operator = {operator: str(formula) for operator, formula in self.by_operator.items()}
        return {"total": str(self.total), "by_operator": by_operator, "unknown": list(self.unknown)}


@dataclass(frozen=True)
class WorkFormulas:
    """The MACs and FLOPs of the main graph as formulas of the dimensions in `ranges`, and the bytes that its nodes move.

    `traffic` are the bytes of activations that all nodes read and write, `weights` those of constants that they read. `activations` are
    the bytes of all activations, each once.
    """

    ranges: SizeRanges
    macs: FormulaSum
    flops: FormulaSum
    traffic: FormulaSum
    weights: FormulaSum
    activations: FormulaSum

    def to_dict(self) -> dict[str, Any]:
        """Return the formulas as expressions of Python; a range without a largest size ends in None."""
        ranges = {name: [low, None if high == LARGEST_COUNT else high] for name, (low, high) in self.ranges.items()}
        sums = ("macs", "flops", "traffic", "weights", "activations")
        return {"ranges": ranges, **{key: getattr(self, key).to_dict() for key in sums}}


class _SymbolicShapes(Shapes):
    """Shapes whose sizes are formulas where they depend on dimensions with a range."""

    ranges: SizeRanges

    @classmethod
    def of(cls, model: ir.Model, ranges: SizeRanges) -> _SymbolicShapes:
        """Return the shapes of `model` over `ranges`."""
        found = cls(**vars(resolve(model, ranges=ranges)))
        object.__setattr__(found, "ranges", ranges)
        return found

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the sizes of `value`, open ones as formulas with which the rules compute; None where one is not known."""
        formulas = self.formulas(value)
        if formulas is None:
            return None if self.is_bound(value) else super().sizes(value)
        sizes = (one.constant if one.constant is not None else SymbolicSize(one, self.ranges) for one in formulas)
        return cast("tuple[int, ...]", tuple(sizes))


def work_formulas(model: ir.Model, constants: Constants, ranges: SizeRanges) -> WorkFormulas | None:
    """Return the work of `model` as formulas of its open dimensions, each at least 1 or in its range; None where no dimension is open."""
    words = formula_names(model)
    if words:
        model = model.clone()
        rename_symbols(model, words)
        constants = Constants(model)
    ranges = {words.get(name, name): ends for name, ends in ranges.items()}
    names = [name for name in symbols(free_inputs(model)) if re.fullmatch(r"[A-Za-z_]\w*", name)]
    if not names:
        return None
    spans = {name: ranges.get(name, (1, LARGEST_COUNT)) for name in names}
    shapes = _SymbolicShapes.of(model, spans)
    found = layers(model, shapes, constants, lambda copy: _SymbolicShapes.of(copy, spans))
    main = [layer for layer in found if not layer.body]
    return WorkFormulas(
        spans,
        _sum((layer, layer.work.macs if not layer.work.unknown else None) for layer in main),
        _sum((layer, layer.work.flops if not layer.work.why_uncounted else None) for layer in main),
        _sum((layer, _own(layer, layer.traffic)) for layer in main),
        _sum((layer, _own(layer, layer.weights)) for layer in main),
        _sum((layer, _own(layer, _written(layer))) for layer in main),
    )


def _own(layer: LayerCost, count: int | None) -> dict[str, int] | None:
    return None if count is None else {layer.op: count}


def _written(layer: LayerCost) -> int | None:
    sizes = [one.bytes for one in layer.outputs]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _sum(found: Iterable[tuple[LayerCost, Mapping[str, int] | None]]) -> FormulaSum:
    """Return the sum of the counts by operator of each layer; None is a count that is not known."""
    total, unknown = SizeFormula.number(0), []
    sums: dict[str, SizeFormula] = {}
    for layer, counts in found:
        if counts is None:
            unknown.append(layer.node)
            continue
        for operator, count in counts.items():
            formula = formula_of(count)
            total += formula
            sums[operator] = sums.get(operator, SizeFormula.number(0)) + formula
    return FormulaSum(total, {operator: formula for operator, formula in sums.items() if formula.terms}, tuple(unknown))
