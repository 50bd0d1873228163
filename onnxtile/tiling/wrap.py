"""A tiled layer in a local function of its own, so that no converter merges its tiles.

The function has the inputs of the tiles: operands, blocks of constants, bias. The sizes for Split, Pad and Slice are Constants inside it,
since hardware compilers need them inline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_ir as ir

from onnxtile import keys
from onnxtile.tiling.writer import Writer

OPSET_VERSION = 1


def wrap(model: ir.Model, writer: Writer, result: ir.Value) -> tuple[ir.Node, list[ir.Value]]:
    """Move the nodes of `writer` into a function of `model`; return its call, and the constants that stay outside."""
    sizes = {value: _constant(value) for value in writer.sizes}
    outer = _read(writer.nodes, sizes)
    inner = {value: _inside(value) for value in outer}
    inner |= {value: node.outputs[0] for value, node in sizes.items()}
    for node in writer.nodes:
        for index, value in enumerate(node.inputs):
            if value in inner:
                node.replace_input_with(index, inner[value])
    body = [*sizes.values(), *writer.nodes]
    name = _name(model, writer)
    opsets = {"": writer.opset, **{node.domain: OPSET_VERSION for node in writer.nodes if node.domain}}
    graph = ir.Graph([inner[value] for value in outer], [result], nodes=body, name=name, opset_imports=opsets)
    function = ir.Function(keys.DOMAIN, name, "", graph=graph, attributes=())
    function.metadata_props[keys.TILE] = mark = writer.mark("layer", {})
    model.functions[function.identifier()] = function
    model.opset_imports.setdefault(keys.DOMAIN, OPSET_VERSION)
    made = ir.Value(name=result.name, type=result.type, shape=result.shape)
    call = ir.Node(
        keys.DOMAIN, name, outer, outputs=[made], name=writer.fresh("layer"), metadata_props={keys.TILE: mark}
    )
    return call, [value for value in writer.constants if value not in sizes]


def _read(nodes: Sequence[ir.Node], sizes: dict[ir.Value, ir.Node]) -> list[ir.Value]:
    """Return the values that `nodes` read from outside, in the order of first use."""
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    return [value for value in read if value not in made and value not in sizes]


def _inside(value: ir.Value) -> ir.Value:
    """Return the input of the function for `value`. It keeps the elements of a constant, since the function is called once."""
    return ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)


def _constant(value: ir.Value) -> ir.Node:
    assert value.const_value is not None
    held = ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)
    attribute = ir.AttrTensor("value", value.const_value)
    return ir.Node("", "Constant", [], [attribute], outputs=[held], name=value.name)


def _name(model: ir.Model, writer: Writer) -> str:
    """Return a name for the function: the operator and the node, as an identifier."""
    stem = re.sub(r"\W+", "_", f"Tiled_{writer.op}_{writer.site}").strip("_")
    name, number = stem, 1
    while (keys.DOMAIN, name, "") in model.functions:
        number += 1
        name = f"{stem}_{number}"
    return name
