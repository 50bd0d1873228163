"""Counts the operators, parameters, work and traffic of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.inspection.summary import Inspection, summarise
from onnxtile.model.load import load
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.kernels import require_sizes_from_1
from onnxtile.verbs.flows.range_planning import bind_ranges

if TYPE_CHECKING:
    from onnxtile.verbs.options.inspect import InspectOptions


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
    from onnxtile.fusion.library import in_order, select
    from onnxtile.inspection.training import ONE_OPERATOR

    trained = graph.clone()
    fuse(trained, in_order(select(sorted(ONE_OPERATOR))), progress)
    return trained
