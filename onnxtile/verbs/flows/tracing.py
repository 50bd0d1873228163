"""Real activations of chosen nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from onnxtile.inspection.trace import Trace, choose_anywhere
from onnxtile.inspection.trace import trace as trace_nodes
from onnxtile.model.binding import bind
from onnxtile.model.load import load
from onnxtile.model.npz_inputs import read_inputs
from onnxtile.verbs.flows.stage import not_both

if TYPE_CHECKING:
    from onnxtile.verbs.options.inspect import TraceOptions


def trace(options: TraceOptions) -> Trace:
    """Trace nodes as `onnxtile.api.trace` says."""
    inputs, ranges, progress = options.inputs, options.ranges, options.progress
    if inputs is not None and ranges:
        raise not_both()
    progress("reading the model")
    graph = load(options.model)
    bind(graph, options.single_dims, options.whole_shapes)
    graph, chosen = choose_anywhere(graph, options.nodes)
    given = None if inputs is None else read_inputs(os.fspath(inputs), graph)
    progress("running")
    return trace_nodes(graph, chosen, given=given, ranges=ranges, seed=options.seed)
