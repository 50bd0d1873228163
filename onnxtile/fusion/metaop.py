"""Meta-ops as model-local functions: one function for all sites with equal bodies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.pattern import Pattern
from onnxtile.fusion.region import FusedRegion
from onnxtile.model.constants import constant_attribute

OPSET_VERSION = 1


class Functions:
    """The functions that fuse has made in one model, found again by what is in them."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._by_body: dict[tuple[str, Hashable], ir.Function] = {}
        self._digests: dict[ir.OperatorIdentifier, str] = {}
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
        return self._by_body[key]

    def digest(self, function: ir.Function) -> str:
        """Return the digest of one of these functions."""
        identifier = function.identifier()
        if identifier not in self._digests:
            self._digests[identifier] = digest(function)
        return self._digests[identifier]

    def _make(self, region: FusedRegion, name: str, doc: str, opsets: Mapping[str, int]) -> ir.Function:
        unique, count = name, 1
        while (keys.DOMAIN, unique, "") in self._model.functions:
            count += 1
            unique = f"{name}.{count}"
        body, inputs, outputs = _body(region)
        imports = {domain: opsets[domain] for domain in dict.fromkeys(node.domain for node in body)}
        graph = ir.Graph(inputs, outputs, nodes=body, name=unique, opset_imports=imports)
        function = ir.Function(keys.DOMAIN, unique, graph=graph, attributes=())
        function.doc_string = doc
        function.metadata_props[keys.META_OP] = name
        return function


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
    """Return what identifies the body of `function`: the same for the same operators, attributes, constants and wiring."""
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


def _function_key(function: ir.Function) -> Hashable:
    """Return the key of the region that `function` was made from: `_body` puts the constants first."""
    nodes = list(function)
    constants = [node for node in nodes if node.op_type == "Constant" and (node.name or "").startswith("Constant_")]
    numbers: dict[ir.Value, int] = {}
    for value in (*function.inputs, *(node.outputs[0] for node in constants)):
        numbers[value] = len(numbers)
    attributes = tuple(_attribute_key(next(iter(node.attributes.values()))) for node in constants)
    rest = [node for node in nodes if node not in constants]
    opsets = {domain: function.opset_imports.get(domain, 0) for domain in {node.domain for node in rest}}
    nodes_key = _nodes_key(rest, numbers)
    outputs = tuple(numbers.get(v, -1) for v in function.outputs)
    return (len(function.inputs), attributes, _opsets_key(opsets), *nodes_key, outputs)


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
