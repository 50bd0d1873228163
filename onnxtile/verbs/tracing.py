"""Real activations of chosen nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from onnxtile.errors import UsageError
from onnxtile.inspection.trace import Trace, choose_anywhere
from onnxtile.inspection.trace import trace as trace_nodes
from onnxtile.model.dims import bind
from onnxtile.model.feeds import Ranges
from onnxtile.model.given import read_inputs
from onnxtile.model.load import Source, load
from onnxtile.verbs.stage import Dims, InputShapes, Progress, silent


def trace(
    model: Source,
    nodes: Sequence[str],
    *,
    inputs: str | os.PathLike[str] | None = None,
    ranges: Ranges | None = None,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Trace:
    """Run `model` and return the outputs of `nodes`: names of nodes, operators, or queries.

    `inputs` is an .npz file; without one they are random, inside `ranges` where these name an input.
    Raises ModelError, UsageError, QueryError.
    """
    if inputs is not None and ranges:
        raise UsageError("ranges have no effect on inputs that are given", hint="leave out one of the two")
    progress("reading the model")
    graph = load(model)
    bind(graph, dims or {}, shapes or {})
    graph, chosen = choose_anywhere(graph, nodes)
    given = None if inputs is None else read_inputs(os.fspath(inputs), graph)
    progress("running")
    return trace_nodes(graph, chosen, given=given, ranges=ranges, seed=seed)
