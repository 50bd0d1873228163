"""The work of every node of a model. The work of a call is the work of the function's body at the shapes of the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.errors import first_cause
from onnxtile.inspection.repetition import repetitions
from onnxtile.inspection.symbolic_size import largest
from onnxtile.inspection.work import NotKnown, Operator, operator_name, work_of
from onnxtile.model.constants import Constants
from onnxtile.model.inlining import inline_calls
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.walk import bodies_of

_CALL = "onnxtile.call"
"""On a node of the copy in which calls are written out: the place of its call. It is never saved."""


@dataclass(frozen=True)
class NodeWork:
    """Multiply-accumulates of a node, additions of biases and FLOPs, by operator, and why its work is not known where it is not.

    `uncounted` is why FLOPs are not known of which the MACs may be.
    """

    macs: Mapping[Operator, int] = field(default_factory=dict)
    additions: Mapping[Operator, int] = field(default_factory=dict)
    unknown: str = ""
    flops: Mapping[Operator, int] = field(default_factory=dict)
    uncounted: str = ""

    @property
    def total(self) -> int | None:
        """All MACs of the node; None where they are not known."""
        return None if self.unknown else sum(self.macs.values())

    @property
    def operations(self) -> int | None:
        """All FLOPs of the node; None where they are not known."""
        return None if self.why_uncounted else sum(self.flops.values())

    @property
    def why_uncounted(self) -> str:
        """Why the FLOPs are not known; empty where they are."""
        return self.unknown or self.uncounted

    def times(self, count: int) -> NodeWork:
        """Return the work of `count` such nodes."""
        macs, additions, flops = (
            {op: count * n for op, n in counts.items()} for counts in (self.macs, self.additions, self.flops)
        )
        return NodeWork(macs, additions, self.unknown, flops, self.uncounted)


def works(
    model: ir.Model, shapes: Shapes, constants: Constants, infer: Callable[[ir.Model], Shapes] = resolve
) -> dict[ir.Node, NodeWork]:
    """Return the work of each node of all graphs of `model`, which stays as it is; what only makes constants has none.

    Nodes of bodies (If, Loop, Scan) have the work of one pass; the node that has the bodies has that of all passes, where the graph tells
    how many there are. `infer` returns the shapes of a copy in which calls are written out.
    """
    return _works(model, shapes, constants, _calls(model, infer))


def _works(
    model: ir.Model, shapes: Shapes, constants: Constants, calls: Mapping[ir.Node, NodeWork]
) -> dict[ir.Node, NodeWork]:
    found: dict[ir.Node, NodeWork] = {}
    # A body stands before the node that has it once the order is turned round.
    for node in reversed(list(model.graph.all_nodes())):
        if node in calls:
            found[node] = calls[node]
        elif bodies_of(node):
            found[node] = _of_bodies(node, found, repetitions(node, shapes, constants))
        else:
            found[node] = _of_node(node, shapes, constants)
    return found


def _of_node(node: ir.Node, shapes: Shapes, constants: Constants) -> NodeWork:
    if node.outputs and all(value in constants for value in node.outputs):
        return NodeWork()
    try:
        count = work_of(node, shapes)
    except NotKnown as error:
        return NodeWork(unknown=str(error))
    op = operator_name(node)
    why = count.why or f"no rule counts the FLOPs of {op} as it is used here"
    return NodeWork(
        {op: count.macs} if count.macs else {},
        {op: count.additions} if count.additions else {},
        flops={op: count.flops} if count.flops else {},
        uncounted=why if count.flops is None else "",
    )


def _of_bodies(node: ir.Node, found: Mapping[ir.Node, NodeWork], times: Mapping[str, int] | None) -> NodeWork:
    """Return the work of all passes of the bodies of `node`, which run as often as `times` says, by the attribute's name."""
    inner = {body.key: _sum([found[one] for one in body.graph]) for body in bodies_of(node)}
    if times is None:
        reason = "the number of runs of its bodies is known only in a run"
        no_products, no_flops = (
            all(count is not None and not count for count in counts)
            for counts in zip(*((work.total, work.operations) for work in inner.values()), strict=True)
        )
        return NodeWork(unknown="" if no_products else reason, uncounted="" if no_flops else reason)
    return _sum([work.times(times[name]) for name, work in inner.items() if times[name]])


def _calls(model: ir.Model, infer: Callable[[ir.Model], Shapes]) -> dict[ir.Node, NodeWork]:
    """Return the work of each call of a local function, found by writing the bodies in the calls' places in a copy."""
    originals = list(model.graph.all_nodes())
    places = [place for place, node in enumerate(originals) if node.op_identifier() in model.functions]
    if not places:
        return {}
    copy = model.clone()
    nodes = list(copy.graph.all_nodes())
    for place in places:
        nodes[place].metadata_props[_CALL] = str(place)
    refusal = write_out_calls(copy)
    if refusal:
        return {originals[place]: NodeWork(unknown=f"its function cannot be inlined: {refusal}") for place in places}
    found = _works(copy, infer(copy), Constants(copy), {})
    parts: dict[int, list[NodeWork]] = {place: [] for place in places}
    for node in _outermost(copy.graph):
        parts[int(node.metadata_props[_CALL])].append(found[node])
    return {originals[place]: _sum(works) for place, works in parts.items()}


def _outermost(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes that came from calls; what is in their bodies is theirs."""
    for node in graph:
        if _CALL in node.metadata_props:
            yield node
            continue
        for body in bodies_of(node):
            yield from _outermost(body.graph)


def write_out_calls(model: ir.Model, wanted: Callable[[ir.Function], bool] | None = None) -> str:
    """Put the bodies of the `wanted` local functions in the places of their calls. Return why that cannot be; then `model` is used up."""
    try:
        inline_calls(model, wanted)
    except (ValueError, ir.passes.PassError) as error:
        return first_cause(error)
    return ""


def _sum(parts: list[NodeWork]) -> NodeWork:
    unknown, uncounted = (
        next(filter(None, reasons), "")
        for reasons in ((part.unknown for part in parts), (part.uncounted for part in parts))
    )
    macs, additions, flops = (
        add_up(counts)
        for counts in (
            (part.macs for part in parts),
            (part.additions for part in parts),
            (part.flops for part in parts),
        )
    )
    return NodeWork(macs, additions, unknown, flops, uncounted)


def add_up(counts: Iterable[Mapping[Operator, int]]) -> dict[Operator, int]:
    """Return the sum of `counts` by operator, the largest first."""
    total: Counter[Operator] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items(), key=lambda item: -largest(item[1])))
