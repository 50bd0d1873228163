"""Quantised models: tensors inside of islands, which run as one kernel, take no bytes and are never handed over."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.islands import islands
from onnxtile.fusion.library import select
from onnxtile.model.constants import Constants
from onnxtile.model.quantising import dequantises, is_quantised
from onnxtile.tiling.names import Names


def separate(model: ir.Model) -> None:
    """Give each reader of a DequantizeLinear node a copy of its own (in place), as an island has."""
    names, constants = Names(model), Constants(model)
    for node in list(model.graph):
        if not dequantises(node) or node.outputs[0] in constants or node.outputs[0].is_graph_output():
            continue
        for use in list(node.outputs[0].uses())[1:]:
            if use.node.graph is not model.graph:
                continue
            made = node.outputs[0]
            value = ir.Value(name=names.fresh(f"{made.name}/copy"), shape=made.shape, type=made.type)
            copy = ir.Node(
                node.domain,
                node.op_type,
                list(node.inputs),
                list(node.attributes.values()),
                outputs=[value],
                name=names.fresh(f"{node.name}/copy"),
            )
            model.graph.insert_after(node, [copy])
            use.node.replace_input_with(use.idx, value)


def inside_islands(model: ir.Model, constants: Constants) -> frozenset[ir.Value]:
    """Return the values that are made and read inside of one quantised island."""
    if not is_quantised(model):
        return frozenset()
    rule = next((pattern.island for pattern in select(["quantised"]) if pattern.island is not None), None)
    if rule is None:
        return frozenset()
    found: set[ir.Value] = set()
    for island in islands(model, model.graph, rule, constants):
        members = set(island.nodes)
        made = (value for node in island.nodes for value in node.outputs if value not in constants)
        found.update(value for value in made if value.uses() and all(use.node in members for use in value.uses()))
    return frozenset(value for value in found if not value.is_graph_output())
