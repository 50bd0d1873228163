"""What a model is made of and what it costs."""

from __future__ import annotations

from onnxtile.inspect.summary import Inspection, summarise
from onnxtile.model.dims import bind
from onnxtile.model.load import Source, load
from onnxtile.verbs.stage import Dims, InputShapes, Progress, silent


def inspect(
    model: Source,
    *,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    training: bool = False,
    progress: Progress = silent,
) -> Inspection:
    """Return operators, parameters, work and traffic of `model`, layer by layer, without running it, at any size.

    With `training`, also the bytes of activations that a backward pass would keep. Raises ModelError, UsageError.
    """
    progress("reading the model")
    graph = load(model)
    bind(graph, dims or {}, shapes or {})
    progress("resolving shapes")
    return summarise(graph, training=training)
