"""Patterns of float operators in a quantised model: found as if nothing were quantised between two operators.

Queries run on a copy of the model without the QuantizeLinear nodes whose results are only dequantised again, and without what does that. A
match there is contracted here together with the nodes that were left out between its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from onnxtile.fusion.region import FusedRegion, Refusal, region
from onnxtile.model.constants import Constants
from onnxtile.model.quantising import dequantises, quantises


def without_quantisation(model: ir.Model) -> tuple[ir.Model, dict[ir.Node, ir.Node]]:
    """Return a copy of `model` without pairs of nodes that quantise and dequantise, and the node of `model` for each node of it."""
    copy = model.clone()
    pairs = zip(copy.graphs(), model.graphs(), strict=True)
    originals = {one: other for ours, theirs in pairs for one, other in zip(ours, theirs, strict=True)}
    for graph in copy.graphs():
        for node in [node for node in graph if quantises(node)]:
            _leave_out(node, graph)
    return copy, originals


def _leave_out(quantiser: ir.Node, graph: ir.Graph) -> None:
    source, stored = quantiser.inputs[0], quantiser.outputs[0]
    readers = list(dict.fromkeys(stored.consumers()))
    undoing = all(dequantises(one) and one.inputs[0] is stored and one.graph is graph for one in readers)
    seen = (stored, *(value for one in readers for value in one.outputs))
    if source is None or not readers or not undoing or any(value.is_graph_output() for value in seen):
        return
    for one in readers:
        one.outputs[0].replace_all_uses_with(source)
    graph.remove([*readers, quantiser], safe=True)


def region_through(members: Sequence[ir.Node], constants: Constants) -> FusedRegion | Refusal:
    """Return the region of `members` and of what quantises and dequantises between them.

    Scales and zero points are inputs of it, whatever their size. A node that dequantises for others, too, is copied.
    """
    between = _between(members)
    part = region([*members, *between], constants)
    if isinstance(part, Refusal) or not between:
        return part
    copied = frozenset(node for node in between if dequantises(node))
    shared = {value for node in copied for value in node.outputs}
    scales = dict.fromkeys(value for node in between for value in node.inputs[1:] if value is not None)
    inputs = (*(value for value in part.inputs if value not in scales), *scales)
    inside = tuple(value for value in part.constants if value not in scales)
    outputs = tuple(value for value in part.outputs if value not in shared)
    return FusedRegion(part.nodes, inputs, outputs, inside, copied)


def _between(members: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes that quantise a result of `members`, and those that dequantise it for them."""
    own = set(members)
    found: dict[ir.Node, None] = {}
    for node in members:
        for value in node.inputs:
            dequantiser = None if value is None else value.producer()
            quantiser = _pair_of(dequantiser, own)
            if dequantiser is not None and quantiser is not None:
                found |= {quantiser: None, dequantiser: None}
    return list(found)


def _pair_of(dequantiser: ir.Node | None, own: Collection[ir.Node]) -> ir.Node | None:
    """Return the node that quantises for `dequantiser` what one of `own` makes."""
    if dequantiser is None or not dequantises(dequantiser) or dequantiser.inputs[0] is None:
        return None
    quantiser = dequantiser.inputs[0].producer()
    if quantiser is None or not quantises(quantiser) or quantiser.inputs[0] is None:
        return None
    return quantiser if quantiser.inputs[0].producer() in own else None
