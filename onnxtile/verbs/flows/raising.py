"""Raises an old model to the opset in which its tiles can be joined in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.constants import Constants
from onnxtile.model.opset import opset_of, raised
from onnxtile.model.raised_shapes import shapes_of_raised
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.options import TilingPolicy
from onnxtile.tiling.rewrite import opset_to_join
from onnxtile.tiling.tileable import FreeAt


@dataclass(frozen=True)
class OpsetChange:
    """The opset of a model before and after tiling, and why it could not be raised where that was needed."""

    before: int = 0
    after: int = 0
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class ModelToTile:
    """A model with its shapes and constants, in the opset in which it is tiled."""

    model: ir.Model
    known: Shapes
    constants: Constants
    opset: OpsetChange


def raised_to_join(
    model: ir.Model, known: Shapes, limits: Limits, options: TilingPolicy, free: FreeAt, *, run: bool
) -> ModelToTile:
    """Return `model` in the opset in which its tiles can be joined in place: a copy where that is newer than its own.

    `known` are its shapes. With `run`, new values get theirs from a run, too. Where onnx's converter refuses, the model keeps its opset.
    """
    constants, before = Constants(model), opset_of(model)
    version = opset_to_join(model, limits, known, constants, options, free=free)
    if version <= before:
        return ModelToTile(model, known, constants, OpsetChange(before, before))
    try:
        copy = raised(model, version)
    except ModelError as error:
        return ModelToTile(model, known, constants, OpsetChange(before, before, str(error)))
    shapes = shapes_of_raised(model, known, copy) or resolve(copy, run=run)
    return ModelToTile(copy, shapes, Constants(copy), OpsetChange(before, version))
