"""The part of a graph that becomes one meta-op: its nodes, what goes in, what comes out, and the constants that stay inside."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.fusion.pattern import EVERY_NODE
from onnxtile.graph import dependencies, node_id
from onnxtile.model.constants import Constants, constant_array
from onnxtile.model.quantising import dequantises
from onnxtile.model.walk import has_body
from onnxtile.query.match import Match

SMALL_BYTES = 16
"""A constant of this size or less (an epsilon, a scale, two axes) is part of what a meta-op is; a larger one is an input."""

_MEASURES = {"Shape", "Size"}
_NOT_IN_FUNCTIONS = {("com.microsoft", "QLinearConcat", "")}
"""Operators whose result onnxruntime gives a wrong element type to in a function; it then refuses the model."""
_MOST_MEASURING = 256
"""Largest number of examined nodes that compute with the shapes of a region's values."""


@dataclass(frozen=True)
class FusedRegion:
    """`nodes` in an order that depends on the graph alone, `inputs` in the order of the query's first use, `outputs` likewise.

    Nodes that are `copied` may stay in the graph, too, for others that read them.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: tuple[ir.Value, ...]
    copied: frozenset[ir.Node] = frozenset()

    def may_be_copied(self, node: ir.Node) -> bool:
        """Return whether `node` dequantises for this region, and may do so for others: of the last reader it is no copy any more."""
        return node in self.copied or (dequantises(node) and node.outputs[0] not in self.outputs)

    @property
    def own(self) -> tuple[ir.Node, ...]:
        """The nodes that leave the graph: all but those that others read."""
        gone = set(self.nodes)
        # Of a chain of copied nodes, what is read by one that stays has to stay.
        for node in reversed(self.nodes):
            if node in self.copied and any(_is_read_outside(value, gone) for value in node.outputs):
                gone.discard(node)
        return tuple(node for node in self.nodes if node in gone)


@dataclass(frozen=True)
class Refusal:
    """Why a match does not become a meta-op."""

    reason: str


def region(matched: Sequence[ir.Node], constants: Constants) -> FusedRegion | Refusal:
    """Return the region of the `matched` nodes, which stand in the order of the query.

    Constant nodes among them are left out: a constant belongs to a region as its value, small ones inside, others as inputs. What
    only measures the region for itself (the Shape of scores, by which a mask is cut for them) belongs to it, too.
    """
    nodes = [node for node in matched if not _is_constant(node, constants)]
    if not nodes:
        return Refusal("it has nothing but constants")
    graph = nodes[0].graph
    if graph is None:
        return Refusal("it is part of another match")
    nodes += _measuring(nodes)
    refusal = next((reason for node in nodes if (reason := _why_not(node, graph)) is not None), None)
    if refusal is not None:
        return Refusal(refusal)
    members = set(nodes)
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value not in made)
    inside = tuple(value for value in read if value.graph is graph and _is_small(value, constants))
    outputs = tuple(value for node in nodes for value in node.outputs if _is_read_outside(value, members))
    if not outputs:
        return Refusal("nothing reads what it computes")
    inputs = tuple(value for value in read if value not in inside)
    copied = _copied(nodes, outputs)
    outputs = tuple(value for value in outputs if value.producer() not in copied)
    return FusedRegion(tuple(_sorted(outputs, nodes)), inputs, outputs, inside, copied)


def _why_not(node: ir.Node, graph: ir.Graph | ir.Function) -> str | None:
    """Return why `node` cannot be a part of a function that is called in `graph`; None where it can."""
    if node.graph is not graph:
        return "its nodes lie in different graphs"
    if node.device_configurations:
        return f"{node.op_type} is placed on devices, which a function does not say"
    for attribute in node.attributes.values():
        if attribute.is_ref():
            return f"{node.op_type} takes the attribute {attribute.name!r} from the function around it"
    if has_body(node):
        return f"{node.op_type} has a body"
    if node.op_identifier() in _NOT_IN_FUNCTIONS:
        return f"onnxruntime takes no {node.op_type} in a function"
    return None


def _copied(nodes: Sequence[ir.Node], outputs: Iterable[ir.Value]) -> frozenset[ir.Node]:
    """Return the nodes that dequantise for others, too: each reader may have its own, as a kernel dequantises what it reads."""
    shared = frozenset(maker for value in outputs if (maker := value.producer()) is not None and dequantises(maker))
    return (
        shared if len(shared) < len(nodes) and any(value.producer() not in shared for value in outputs) else frozenset()
    )


def overwritable(part: FusedRegion, match: Match, anchors: Collection[str]) -> tuple[int, ...]:
    """Return the places of the inputs of `part` that only nodes with one of `anchors` read; "*" stands for all nodes."""
    allowed = set(part.nodes) if EVERY_NODE in anchors else set(match.named(anchors))
    readers = [{node for node in part.nodes if value in node.inputs} for value in part.inputs]
    return tuple(place for place, reading in enumerate(readers) if reading <= allowed)


def _measuring(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the nodes that read shapes of inner values of `nodes`, and later nodes whose results only `nodes` and these read."""
    members = set(nodes)
    found = dict.fromkeys(reader for node in nodes for value in node.outputs for reader in _measures(value, members))
    waiting = list(found)
    while waiting and len(found) < _MOST_MEASURING:
        readers = [reader for value in waiting.pop().outputs for reader in value.consumers()]
        if len(readers) > _MOST_MEASURING:
            continue
        new = [reader for reader in dict.fromkeys(readers) if reader not in members and reader not in found]
        found |= dict.fromkeys(new)
        waiting += new
    # Whatever is read elsewhere as well, or by nothing, stays outside, and so does all that leads to it.
    kept = set(found)
    while lost := {node for node in kept if not _is_read_within(node, members | kept)}:
        kept -= lost
    return [node for node in found if node in kept]


def _measures(value: ir.Value, members: set[ir.Node]) -> list[ir.Node]:
    """Return the nodes outside that read the shape of `value`; none where more than its shape is read outside, or nothing inside."""
    readers = {reader for reader in value.consumers() if reader not in members}
    inner = len(readers) < len({*value.consumers()}) and not value.is_graph_output()
    return sorted(readers, key=node_id) if inner and all(reader.op_type in _MEASURES for reader in readers) else []


def _is_read_within(node: ir.Node, members: set[ir.Node]) -> bool:
    readers = [reader for value in node.outputs for reader in value.consumers()]
    return bool(readers) and not any(_is_read_outside(value, members) for value in node.outputs)


def _is_constant(node: ir.Node, constants: Constants) -> bool:
    return bool(node.outputs) and all(value in constants for value in node.outputs)


def _is_small(value: ir.Value, constants: Constants) -> bool:
    """Tell whether `value` may move into the function: a small initializer or Constant node, known without computing."""
    if value not in constants or value.is_graph_output():
        return False
    if value.const_value is not None:
        return value.const_value.dtype != ir.DataType.STRING and value.const_value.nbytes <= SMALL_BYTES
    node = value.producer()
    if node is None or node.op_type != "Constant":
        return False
    if not node.attributes.keys() & {"value", "value_float", "value_int", "value_floats", "value_ints"}:
        return False
    tensor = node.attributes.get("value")
    if tensor is not None and (tensor.is_ref() or tensor.value.dtype == ir.DataType.STRING):
        return False
    return constant_array(node).nbytes <= SMALL_BYTES


def _is_read_outside(value: ir.Value, members: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(reader not in members for reader in value.consumers())


def _sorted(outputs: Iterable[ir.Value], nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return `nodes` producers first, in the order in which a walk up from the outputs meets them: the same for any file order."""
    members = set(nodes)
    done: dict[ir.Node, None] = {}
    # What leads to no output (a result without readers) comes last, in the order of the match as far as it can.
    starts = [*(producer for value in outputs if (producer := value.producer()) is not None), *nodes]
    stack = [(node, False) for node in reversed(starts)]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if ready:
            done[node] = None
            continue
        stack.append((node, True))
        above = [value.producer() for value in dependencies(node)]
        stack.extend((p, False) for p in reversed(above) if p is not None and p in members and p not in done)
    return list(done)
