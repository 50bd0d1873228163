"""All rewrites that are made before a model is cut, in their order."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.fitting.unblocking.early import run_early
from onnxtile.fitting.unblocking.editing import ModelEdit
from onnxtile.fitting.unblocking.late import run_late
from onnxtile.fitting.unblocking.pooled import pool_early
from onnxtile.model.infer import values
from onnxtile.model.quantising import is_quantised
from onnxtile.model.shapes import Shapes
from onnxtile.model.walk import all_values
from onnxtile.tiling.prune import prune


@dataclass(frozen=True)
class ModelRewrite:
    """One rewrite of a model before it is cut: what was done, and the names of the nodes that it was done to."""

    kind: str
    text: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class UnblockedModel:
    """A rewritten copy of a model, the shapes of its values as far as they were known before, and the rewrites."""

    model: ir.Model
    shapes: Shapes
    rewrites: tuple[ModelRewrite, ...]


def unblock(original: ir.Model, shapes: Shapes, *, exact: bool) -> UnblockedModel | None:
    """Return a rewritten copy of a model that computes the same; None where no rewrite applies.

    With `exact`, only rewrites are made whose results are equal to the last bit.
    """
    model = original.clone()
    edit = ModelEdit(model, shapes.of_copies(dict(zip(values(original), values(model), strict=True))))
    found: list[ModelRewrite] = []
    if not is_quantised(model):
        if not exact:
            _note(found, "rewrite", "the mean is taken before the pointwise convolution", pool_early(edit))
            prune({value for value in all_values(model)}, edit.constants)
            edit = ModelEdit(model, edit.shapes)
        _note(found, "order", "runs as late as it can", run_late(edit))
        _note(found, "order", "runs as early as it can", run_early(edit))
    return UnblockedModel(model, edit.shapes, tuple(found)) if found else None


def _note(found: list[ModelRewrite], kind: str, text: str, nodes: list[ir.Node]) -> None:
    if nodes:
        found.append(ModelRewrite(kind, text, tuple(node.name or node.op_type for node in nodes)))
