"""What a model is made of and what it costs."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.inspection.summary import Inspection, summarise
from onnxtile.model.dims import bind
from onnxtile.model.load import Source, load
from onnxtile.verbs.stage import Dims, InputShapes, Progress, silent


def inspect(
    model: Source,
    *,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    training: bool = False,
    tree: bool = False,
    progress: Progress = silent,
) -> Inspection:
    """Return operators, parameters, work and traffic of `model`, layer by layer, without running it, at any size.

    With `training`, also the bytes of activations that a backward pass would keep; with `tree`, sums over the modules that the names of
    nodes say. Raises ModelError, UsageError.
    """
    progress("reading the model")
    graph = load(model)
    bind(graph, dims or {}, shapes or {})
    trained = _as_trained(graph, progress) if training else None
    progress("resolving shapes")
    return summarise(graph, training=trained, tree=tree)


def _as_trained(graph: ir.Model, progress: Progress) -> ir.Model:
    """Return `graph` with those meta-ops that frameworks have as one operator: exporters take them apart, and their parts keep more."""
    # The patterns take a second to read.
    from onnxtile.fusion.library import in_order, select
    from onnxtile.fusion.rewrite import fuse
    from onnxtile.inspection.gradients import ONE_OPERATOR

    trained = graph.clone()
    fuse(trained, in_order(select(sorted(ONE_OPERATOR))), progress)
    return trained
