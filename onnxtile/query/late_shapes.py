"""Shapes and element types of a model that is edited between two questions."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtile.model.shapes import Dims, Shapes, resolve


class LateShapes:
    """The shapes of a model's values, known when the first test asks; values made later have those of the values they replace.

    `known` gives the shapes of `model` as it was at first; without it they are inferred, of the model as it is when the first test asks.
    """

    def __init__(self, model: ir.Model, known: Callable[[], Shapes] | None = None) -> None:
        self._model = model
        self._known = known
        self._table: Shapes | None = None
        self._origins: dict[ir.Value, ir.Value] = {}

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Note that `new` has taken the place of `old`."""
        if self._known is not None or self._table is not None:
            self._origins[new] = self._origins.get(old, old)

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type; None where it is unknown. Raises ModelError where the shapes contradict each other."""
        return self._inferred().dtype(self._origins.get(value, value))

    def dims(self, value: ir.Value) -> Dims | None:
        """Return the dimensions as `Shapes.dims` does. Raises ModelError where the shapes contradict each other."""
        return self._inferred().dims(self._origins.get(value, value))

    def _inferred(self) -> Shapes:
        if self._table is None:
            self._table = resolve(self._model) if self._known is None else self._known()
        return self._table
