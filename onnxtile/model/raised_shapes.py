"""The shapes of a model that was raised to a newer opset, from those of the original."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.infer import values
from onnxtile.model.shapes import Shapes


def shapes_of_raised(original: ir.Model, shapes: Shapes, source: ir.Model) -> Shapes | None:
    """Return the shapes of `original` as those of `source`, which is raised from it: values that are in both have one name.

    None where `source` computes values that `original` does not have.
    """
    known: dict[str, ir.Value | None] = {}
    for value in values(original):
        known[value.name or ""] = None if value.name in known else value
    there = [value for value in values(source) if value.name]
    counterparts = {old: value for value in there if (old := known.get(value.name or "")) is not None}
    constants = Constants(source)
    whole = all(value in constants or known.get(value.name or "") is not None for value in there)
    return shapes.of_copies(counterparts) if whole else None
