"""Shapes and element types of a model that is edited between two questions."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.shapes import Dims, Shapes, resolve


class LateShapes:
    """The shapes of a model's values, inferred when the first test asks; values made later have those of the values they replace."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._table: Shapes | None = None
        self._origins: dict[ir.Value, ir.Value] = {}

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Note that `new` has taken the place of `old`."""
        if self._table is not None:
            self._origins[new] = self._origins.get(old, old)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type; None where it is unknown. Raises ModelError where the shapes contradict each other."""
        return self._inferred().dtype(self._origins.get(value, value))

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions as `Shapes.dims` does. Raises ModelError where the shapes contradict each other."""
        return self._inferred().dims(self._origins.get(value, value))

    def _inferred(self) -> Shapes:
        if self._table is None:
            self._table = resolve(self._model)
        return self._table
