"""Meta-ops as model-local functions: one function for all sites with equal bodies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.pattern import Pattern
from onnxtile.fusion.region import FusedRegion
from onnxtile.model.constants import constant_attribute

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

    def of(
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
        made = [copies[value] for value in node.outputs]
        name = f"{node.op_type}_{i}"
        copy = ir.Node(
            node.domain,
            node.op_type,
            operands,
            node.attributes.values(),
            overload=node.overload,
            outputs=made,
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
    tensor = attribute.as_tensor()
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
