"""inspect: the operators, parameters, work and traffic of a model; or the activations of chosen nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import onnx_ir as ir

import onnxtile
from onnxtile.declare.verb import Outcome, declared, narrowed
from onnxtile.inspection.layers import Ranking
from onnxtile.inspection.summary import Inspection, summarise
from onnxtile.model.binding import bind
from onnxtile.model.feeds import read_inputs, write_arrays
from onnxtile.model.load import load
from onnxtile.system.long_work import Progress
from onnxtile.verbs.flows.kernels import bind_ranges, require_sizes_from_1
from onnxtile.verbs.flows.results import not_both
from onnxtile.verbs.inspect import InspectCommand, InspectOptions, InspectStep, TraceOptions


@declared(InspectOptions)
def inspect(options: InspectOptions) -> Inspection:
    """Return operators, parameters, work and traffic of `model`, layer by layer, without running it, at any size.

    With `training`, also the bytes of activations that a backward pass would keep; with `tree`, sums over the modules that the exporter
    wrote; with `top` or `by`, the nodes that cost most, the largest cost first. Raises ModelError, UsageError.
    """
    progress = options.progress
    options.require_no_bounds()
    progress("reading the model")
    graph = load(options.model)
    _, ranges = bind_ranges(graph, options)
    require_sizes_from_1(ranges)
    trained = _as_trained(graph, progress) if options.training else None
    progress("resolving shapes")
    summary = summarise(graph, training=trained, tree=options.tree, ranges=ranges)
    if options.top is None and options.by is None:
        return summary
    return replace(summary, top=Ranking.from_layers(summary.layers, options.by or "bytes", options.top))


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


@declared(TraceOptions)
def trace(options: TraceOptions) -> onnxtile.Trace:  # by a name that is imported when it is first used
    """Run `model` and return the outputs of `nodes`: names of nodes, operators, or queries. Raises ModelError, UsageError, QueryError."""
    from onnxtile.inspection.trace import choose_anywhere  # queries take long to load, and few commands run a model
    from onnxtile.inspection.trace import trace as trace_nodes

    inputs, ranges, progress = options.input_file, options.input_ranges, options.progress
    if inputs is not None and ranges:
        raise not_both()
    progress("reading the model")
    graph = load(options.model)
    bind(graph, options.single_dims, options.whole_shapes)
    graph, chosen = choose_anywhere(graph, options.nodes)
    given = None if inputs is None else read_inputs(inputs, graph)
    progress("running")
    return trace_nodes(graph, chosen, given=given, ranges=ranges, seed=options.seed)


def run(options: InspectStep) -> Outcome:
    """Do what the command and the step `inspect` ask for."""
    if isinstance(options, InspectCommand) and options.trace:
        traced = trace.from_options(narrowed(TraceOptions, options, nodes=options.trace))
        return Outcome(traced, "trace", save=partial(write_arrays, arrays=traced.arrays))
    return Outcome(inspect.from_options(options), "inspect")
