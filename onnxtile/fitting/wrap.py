"""Regions in local functions: the nodes of each region that was cut become the body of a function, which is called once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir
from onnx_ir import convenience

from onnxtile import keys
from onnxtile.model.walk import dependencies, nodes_inside

_OPSET_VERSION = 1
_SIZES = frozenset({"Slice", "Reshape", "Resize", "Upsample", "Split", "Pad"})
"""Operators whose further operands say sizes: compilers need these inline."""


def wrap(model: ir.Model, regions: Iterable[Sequence[ir.Node]]) -> None:
    """Put the nodes of each region of `model` into a function `Region0`, `Region1` ... (in place).

    The inputs of a function are the values that its nodes and their bodies read from outside, weights too. Sizes are Constants inside it.
    """
    for nodes in regions:
        _wrap(model, nodes)


def _wrap(model: ir.Model, nodes: Sequence[ir.Node]) -> None:
    graph = model.graph
    here = {*nodes, *(inner for node in nodes for inner in nodes_inside(node))}
    outputs = [value for node in nodes for value in node.outputs if _is_read_outside(value, here)]
    sizes = {value: _constant(value) for value in _sizes(nodes)}
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in dependencies(node))
    operands = [value for value in read if value not in made and value not in sizes]
    inside = {value: ir.Value(name=value.name, type=value.type, shape=value.shape) for value in operands}
    inside |= {value: node.outputs[0] for value, node in sizes.items()}
    name = _name(model)
    results = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in outputs]
    call = ir.Node(keys.DOMAIN, name, operands, outputs=results, name=name)
    graph.insert_after(nodes[-1], call)
    for value, result in zip(outputs, results, strict=True):
        uses = [use for use in value.uses() if use.node in here]
        convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
        for use in uses:
            use.node.replace_input_with(use.idx, value)
    graph.remove(nodes)
    for node in here:
        for place, operand in enumerate(node.inputs):
            if operand in inside:
                node.replace_input_with(place, inside[operand])
    domains = {node.domain for node in nodes}
    imports = {domain: version for domain, version in graph.opset_imports.items() if domain in domains or domain == ""}
    inputs = [inside[value] for value in operands]
    body = ir.Graph(inputs, outputs, nodes=[*sizes.values(), *nodes], name=name, opset_imports=imports)
    function = ir.Function(keys.DOMAIN, name, "", graph=body, attributes=())
    model.functions[function.identifier()] = function
    model.opset_imports.setdefault(keys.DOMAIN, _OPSET_VERSION)


def _is_read_outside(value: ir.Value, here: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in here for use in value.uses())


def _sizes(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """Return the constants that say sizes, in the order of first use."""
    found = (value for node in nodes if node.op_type in _SIZES and node.domain == "" for value in node.inputs[1:])
    return list(dict.fromkeys(value for value in found if value is not None and value.const_value is not None))


def _constant(value: ir.Value) -> ir.Node:
    assert value.const_value is not None
    held = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
    attribute = ir.AttrTensor("value", value.const_value)
    return ir.Node("", "Constant", [], [attribute], outputs=[held], name=value.name)


def _name(model: ir.Model) -> str:
    """Return a name that no function of `model` has."""
    number = 0
    while (keys.DOMAIN, f"Region{number}", "") in model.functions:
        number += 1
    return f"Region{number}"
