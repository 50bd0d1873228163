"""Meta-ops as model-local functions: one function for all sites with equal bodies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.float_view import scales_of
from onnxtile.fusion.pattern import EVERY_NODE, Pattern
from onnxtile.model import keys
from onnxtile.model.constants import Constants, constant_array, constant_attribute
from onnxtile.model.node_kinds import dequantises, quantises, quantises_at_run
from onnxtile.model.topology import dependencies, has_body, is_read_outside, node_id
from onnxtile.query.graph import is_constant
from onnxtile.query.match import Match
from onnxtile.system.dataclass import dataclass

# The part of a graph that becomes one meta-op: its nodes, what goes in, what comes out, and the constants that stay inside.

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
    def leaving(self) -> tuple[ir.Node, ...]:
        """The nodes that leave the graph: all but those that others read."""
        gone = set(self.nodes)
        # Of a chain of copied nodes, what is read by one that stays has to stay.
        for node in reversed(self.nodes):
            if node in self.copied and any(is_read_outside(value, gone) for value in node.outputs):
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
    nodes = [node for node in matched if not is_constant(node, constants)]
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
    results = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None and value not in results)
    inside = tuple(value for value in read if value.graph is graph and _is_small(value, constants))
    outputs = tuple(value for node in nodes for value in node.outputs if is_read_outside(value, members))
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
    return tuple(index for index, reading in enumerate(readers) if reading <= allowed)


def _measuring(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the nodes that read shapes of inner values of `nodes`, and later nodes whose results only `nodes` and these read."""
    members = set(nodes)
    measuring = dict.fromkeys(
        reader for node in nodes for value in node.outputs for reader in _measures(value, members)
    )
    waiting = list(measuring)
    while waiting and len(measuring) < _MOST_MEASURING:
        readers = [reader for value in waiting.pop().outputs for reader in value.consumers()]
        if len(readers) > _MOST_MEASURING:
            continue
        new = [reader for reader in dict.fromkeys(readers) if reader not in members and reader not in measuring]
        measuring |= dict.fromkeys(new)
        waiting += new
    # Whatever is read elsewhere as well, or by nothing, stays outside, and so does all that leads to it.
    kept = set(measuring)
    while lost := {node for node in kept if not _is_read_within(node, members | kept)}:
        kept -= lost
    return [node for node in measuring if node in kept]


def _measures(value: ir.Value, members: set[ir.Node]) -> list[ir.Node]:
    """Return the nodes outside that read the shape of `value`; none where more than its shape is read outside, or nothing inside."""
    readers = {reader for reader in value.consumers() if reader not in members}
    inner = len(readers) < len({*value.consumers()}) and not value.is_graph_output()
    return sorted(readers, key=node_id) if inner and all(reader.op_type in _MEASURES for reader in readers) else []


def _is_read_within(node: ir.Node, members: set[ir.Node]) -> bool:
    readers = [reader for value in node.outputs for reader in value.consumers()]
    return bool(readers) and not any(is_read_outside(value, members) for value in node.outputs)


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


OPSET_VERSION = 1


class Unified(NamedTuple):
    """The function that one became, and which of its constants, counted from 0, are inputs now."""

    function: ir.Function
    differing: tuple[int, ...]


class Functions:
    """The functions that fuse has made in one model, found again by what is in them."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._by_body: dict[tuple[str, Hashable], ir.Function] = {}
        self._digests: dict[ir.OperatorIdentifier, str] = {}
        self._new: list[ir.Function] = []
        self.bodies: set[ir.Graph] = set()
        for function in model.functions.values():
            if keys.META_OP in function.metadata_props:
                self._by_body[keys.meta_op(function.name), _function_key(function)] = function
                self.bodies.add(function.graph)

    def function_of(
        self, region: FusedRegion, pattern: Pattern, opsets: Mapping[str, int], overwritable: Sequence[int] = ()
    ) -> ir.Function:
        """Return the function of `pattern` whose body is `region`, made now unless an equal one is there.

        `opsets` are the imports that the region's operators are read with, `overwritable` the inputs that results may be written over.
        Functions of one meta-op and different bodies have a number after its name.
        """
        opsets = {node.domain: opsets.get(node.domain, OPSET_VERSION) for node in region.nodes} | {
            "": opsets.get("", 1)
        }
        key = (pattern.name, _region_key(region, opsets))
        if key not in self._by_body:
            function = self._make(region, pattern.name, pattern.doc, opsets)
            if overwritable:
                function.metadata_props[keys.IN_PLACE] = json.dumps(list(overwritable))
            if pattern.workspace is not None:
                function.metadata_props[keys.WORKSPACE] = pattern.workspace.text
            self._model.functions[function.identifier()] = function
            self._by_body[key] = function
            self.bodies.add(function.graph)
            self._new.append(function)
        return self._by_body[key]

    def unified(self) -> dict[ir.Function, Unified]:
        """Make one function of those made since this was last asked that differ in single numbers only: an epsilon, a scale, a zero point.

        The numbers that differ become inputs, after the others. Return, for each of the functions, the one it became. Functions that stay
        are numbered anew.
        """
        groups: dict[Hashable, list[ir.Function]] = {}
        for function in self._new:
            groups.setdefault(_structure(function), []).append(function)
        self._new = []
        unified: dict[ir.Function, Unified] = {}
        for first, *others in groups.values():
            differing = _differing(first, others) if others else ()
            unified.update((function, Unified(first, differing)) for function in (first, *others))
        if any(differing for _, differing in unified.values()):
            self._replace(unified)
        return unified

    def _replace(self, unified: Mapping[ir.Function, Unified]) -> None:
        """Give the constants that differ to the functions that stay as inputs, and forget the other functions."""
        for function in unified:
            del self._model.functions[function.identifier()]
            self._by_body = {key: known for key, known in self._by_body.items() if known is not function}
        for function, differing in dict.fromkeys(unified.values()):
            _open_constants(function, differing)
            name = keys.meta_op(function.name)
            function.name = self._unique(name)
            self._model.functions[function.identifier()] = function
            self._by_body[name, _function_key(function)] = function
        self._digests.clear()

    def digest(self, function: ir.Function) -> str:
        """Return the digest of one of these functions."""
        identifier = function.identifier()
        if identifier not in self._digests:
            self._digests[identifier] = digest(function)
        return self._digests[identifier]

    def _make(self, region: FusedRegion, name: str, doc: str, opsets: Mapping[str, int]) -> ir.Function:
        unique = self._unique(name)
        body, inputs, outputs = _body(region)
        imports = {domain: opsets[domain] for domain in dict.fromkeys(node.domain for node in body)}
        graph = ir.Graph(inputs, outputs, nodes=body, name=unique, opset_imports=imports)
        function = ir.Function(keys.DOMAIN, unique, graph=graph, attributes=())
        function.doc_string = doc
        function.metadata_props[keys.META_OP] = name
        return function

    def _unique(self, name: str) -> str:
        unique, count = name, 1
        while (keys.DOMAIN, unique, "") in self._model.functions:
            count += 1
            unique = f"{name}.{count}"
        return unique


def _body(region: FusedRegion) -> tuple[list[ir.Node], list[ir.Value], list[ir.Value]]:
    """Return copies of the nodes of `region` with names of their own, small constants first."""
    copies = {value: ir.Value(name=f"x{i}") for i, value in enumerate(region.inputs)}
    outputs = {value: f"y{i}" for i, value in enumerate(region.outputs)}
    body = []
    for i, value in enumerate(region.constants):
        copies[value] = ir.Value(name=f"c{i}")
        body.append(
            ir.Node("", "Constant", [], [constant_attribute(value)], outputs=[copies[value]], name=f"Constant_{i}")
        )
    count = 0
    for i, node in enumerate(region.nodes):
        for value in node.outputs:
            copies[value] = ir.Value(name=outputs.get(value, f"v{count}") if value.name else "")
            count += value not in outputs
        operands = [None if value is None else copies[value] for value in node.inputs]
        results = [copies[value] for value in node.outputs]
        name = f"{node.op_type}_{i}"
        copy = ir.Node(
            node.domain,
            node.op_type,
            operands,
            node.attributes.values(),
            overload=node.overload,
            outputs=results,
            name=name,
        )
        body.append(copy)
    return body, [copies[value] for value in region.inputs], [copies[value] for value in region.outputs]


def digest(function: ir.Function) -> str:
    """Return the identity of the body of `function`: the same for the same operators, attributes, constants and wiring."""
    return hashlib.sha256(repr(_function_key(function)).encode()).hexdigest()[:16]


def _region_key(region: FusedRegion, opsets: Mapping[str, int]) -> Hashable:
    numbers: dict[ir.Value, int] = {}
    for value in (*region.inputs, *region.constants):
        numbers[value] = len(numbers)
    constants = tuple(_attribute_key(constant_attribute(value)) for value in region.constants)
    return (
        len(region.inputs),
        constants,
        _opsets_key({domain: opsets[domain] for domain in {node.domain for node in region.nodes}}),
        *_nodes_key(region.nodes, numbers),
        tuple(numbers[v] for v in region.outputs),
    )


def _function_key(function: ir.Function) -> tuple[Any, ...]:
    """Return the key of the region that `function` was made from: `_body` puts the constants first."""
    nodes, constants = list(function), _constants_of(function)
    numbers: dict[ir.Value, int] = {}
    for value in (*function.inputs, *(node.outputs[0] for node in constants)):
        numbers[value] = len(numbers)
    attributes = tuple(_attribute_key(next(iter(node.attributes.values()))) for node in constants)
    rest = [node for node in nodes if node not in constants]
    opsets = {domain: function.opset_imports.get(domain, 0) for domain in {node.domain for node in rest}}
    nodes_key = _nodes_key(rest, numbers)
    outputs = tuple(numbers.get(v, -1) for v in function.outputs)
    return (len(function.inputs), attributes, _opsets_key(opsets), *nodes_key, outputs)


def _constants_of(function: ir.Function) -> list[ir.Node]:
    """Return the Constant nodes that hold what was small enough to move into the function."""
    return [node for node in function if node.op_type == "Constant" and (node.name or "").startswith("Constant_")]


def _structure(function: ir.Function) -> Hashable:
    """Return the key of `function` without the values of its single numbers."""
    count, constants, *rest = _function_key(function)
    kept = tuple(
        (key[0], key[1], *_number_kind(node)) if _number_kind(node) else key
        for key, node in zip(constants, _constants_of(function), strict=True)
    )
    return (keys.meta_op(function.name), count, kept, *rest)


def _number_kind(node: ir.Node) -> tuple[object, ...]:
    """Return element type and shape of a constant that is one number to compute with: a float, or a zero point; nothing for any other.

    Wider integers are axes, shapes and indices, which belong to what a meta-op is.
    """
    attribute = next(iter(node.attributes.values()))
    if attribute.type == ir.AttributeType.FLOAT:
        return ir.DataType.FLOAT, ()
    if attribute.type != ir.AttributeType.TENSOR:
        return ()
    tensor = attribute.value
    computes = tensor.dtype.is_floating_point() or (tensor.dtype.is_integer() and tensor.dtype.bitwidth <= 16)
    return (tensor.dtype, tuple(tensor.shape.numpy())) if computes and tensor.size == 1 else ()


def _differing(first: ir.Function, others: Sequence[ir.Function]) -> tuple[int, ...]:
    """Return which constants of functions of one structure are not the same in all."""
    known = [[_attribute_key(next(iter(n.attributes.values()))) for n in _constants_of(f)] for f in (first, *others)]
    return tuple(i for i, values in enumerate(zip(*known, strict=True)) if len(set(values)) > 1)


def _open_constants(function: ir.Function, places: Collection[int]) -> None:
    """Make inputs of the constants at `places`."""
    for node in [node for i, node in enumerate(_constants_of(function)) if i in places]:
        old = node.outputs[0]
        value = ir.Value(name=None, type=old.type, shape=old.shape)
        name, old.name = old.name, None
        value.name = name
        old.replace_all_uses_with(value)
        function.graph.remove(node, safe=True)
        function.inputs.append(value)


def _opsets_key(opsets: Mapping[str, int]) -> Hashable:
    return tuple(sorted(opsets.items()))


def _nodes_key(nodes: list[ir.Node] | tuple[ir.Node, ...], numbers: dict[ir.Value, int]) -> tuple[Hashable, ...]:
    """Number what `nodes` make, in `numbers`, and return what they do in these numbers."""
    keyed = []
    for node in nodes:
        reads = tuple(None if value is None else numbers.get(value, -1) for value in node.inputs)
        for value in node.outputs:
            numbers[value] = len(numbers)
        attributes = tuple(sorted((_attribute_key(a) for a in node.attributes.values()), key=repr))
        unnamed = tuple(not value.name for value in node.outputs)
        keyed.append((node.op_identifier(), attributes, reads, unnamed))
    return tuple(keyed)


def _attribute_key(attribute: ir.Attr) -> Hashable:
    if attribute.type in {ir.AttributeType.FLOAT, ir.AttributeType.FLOATS}:  # as the file has them: in 32 bits
        return attribute.name, attribute.type.value, np.asarray(attribute.value, np.float32).tobytes()
    if attribute.type in {ir.AttributeType.INT, ir.AttributeType.STRING}:
        return attribute.name, attribute.type.value, attribute.value
    if attribute.type in {ir.AttributeType.INTS, ir.AttributeType.STRINGS}:
        return attribute.name, attribute.type.value, tuple(attribute.value)
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.value
        return attribute.name, attribute.type.value, tensor.dtype.value, tuple(tensor.shape.numpy()), tensor.tobytes()
    return attribute.name, attribute.type.value, ir.to_proto(attribute).SerializeToString(deterministic=True)


# Regions of quantised models that a float pattern describes: its nodes, and between them all that quantises and dequantises.


def region_through(members: Sequence[ir.Node], constants: Constants) -> FusedRegion | Refusal:
    """Return the region of `members` and of the nodes that quantise and dequantise between them.

    Scales and zero points are inputs of it, whatever their size. A node that dequantises for others, too, is copied.
    """
    between = _between(members)
    part = region([*members, *between], constants)
    if isinstance(part, Refusal):
        return part
    scales = dict.fromkeys(value for node in part.nodes for value in scales_of(node))
    read = {*part.inputs, *part.constants}
    inputs = (*(value for value in part.inputs if value not in scales), *(value for value in scales if value in read))
    inside = tuple(value for value in part.constants if value not in scales)
    copied = part.copied | {node for node in between if dequantises(node)}
    extended = replace(part, inputs=inputs, constants=inside, copied=copied)
    return replace(extended, outputs=_outputs(extended)) if copied else extended


def _outputs(part: FusedRegion) -> tuple[ir.Value, ...]:
    """Return the values of the nodes that leave the graph which others read: a dequantiser that stays reads a stored one."""
    leaving = set(part.leaving)
    read = dict.fromkeys(value for value in part.outputs if value.producer() in leaving)
    read |= dict.fromkeys(value for node in part.leaving for value in node.outputs if is_read_outside(value, leaving))
    return tuple(read)


def _between(members: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes that quantise results of `members` for them, that dequantise these, and that quantise for them alone."""
    inside = set(members)
    between: dict[ir.Node, None] = {}
    for node in members:
        for value in node.inputs:
            between |= dict.fromkeys(_way(None if value is None else value.producer(), inside))
    return list(between)


def _way(maker: ir.Node | None, inside: Collection[ir.Node]) -> Sequence[ir.Node]:
    """Return the nodes on the way from one of `inside` to the result of `maker`, where all of them quantise or dequantise."""
    if maker is None or maker in inside:
        return ()
    if quantises_at_run(maker):
        readers = (reader for value in maker.outputs for reader in value.consumers())
        return (maker,) if all(reader in inside for reader in readers) else ()
    way: list[ir.Node] = []
    for kind in (dequantises, quantises):
        if maker is not None and maker not in inside and kind(maker):
            way.insert(0, maker)
            maker = None if maker.inputs[0] is None else maker.inputs[0].producer()
    return way if maker in inside else ()
