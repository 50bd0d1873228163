"""Counts the operators, parameters, work and traffic of a model, and traces its activations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.inspection.summary import Inspection, summarise
from onnxtile.inspection.trace import Trace, choose_anywhere
from onnxtile.inspection.trace import trace as trace_nodes
from onnxtile.model.binding import bind
from onnxtile.model.load import load
from onnxtile.model.npz_inputs import read_inputs
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.kernels import require_sizes_from_1
from onnxtile.verbs.flows.range_planning import bind_ranges
from onnxtile.verbs.flows.stage import not_both

if TYPE_CHECKING:
    from onnxtile.verbs.options.inspect import InspectOptions, TraceOptions


def inspect(options: InspectOptions) -> Inspection:
    """Inspect a model as `onnxtile.inspect` says."""
    progress = options.progress
    progress("reading the model")
    graph = load(options.model)
    _, ranges = bind_ranges(graph, options)
    require_sizes_from_1(ranges)
    trained = _as_trained(graph, progress) if options.training else None
    progress("resolving shapes")
    return summarise(graph, training=trained, tree=options.tree, ranges=ranges)


def _as_trained(graph: ir.Model, progress: Progress) -> ir.Model:
    """Return `graph` with those meta-ops that frameworks have as one operator: exporters take them apart, and their parts keep more."""
    # The patterns take a second to read.
    from onnxtile.fusion.fuse import fuse
    from onnxtile.fusion.pattern import in_order, select
    from onnxtile.inspection.training import ONE_OPERATOR

    trained = graph.clone()
    fuse(trained, in_order(select(sorted(ONE_OPERATOR))), progress)
    return trained


# Real activations of chosen nodes.


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
