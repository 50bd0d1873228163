"""Quantised models: tensors inside of islands, which run as one kernel, take no bytes and are never handed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile.fusion.island import island_region, overwritten
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


@dataclass(frozen=True)
class IslandTensors:
    """The values `inside` of quantised islands, and what their results share bytes with.

    `overwritten` has, for each result of an island, the stored operands that it may be written over, or that it joins without a
    computation. `joined` has the Concat of each result that is such a join.
    """

    inside: frozenset[ir.Value] = frozenset()
    overwritten: Mapping[ir.Value, frozenset[ir.Value]] = field(default_factory=dict)
    joined: Mapping[ir.Value, ir.Node] = field(default_factory=dict)


def island_tensors(model: ir.Model, constants: Constants) -> IslandTensors:
    """Return the values that are made and read inside of one quantised island, and those that its results are written over."""
    if not is_quantised(model):
        return IslandTensors()
    rule = next((pattern.island for pattern in select(["quantised"]) if pattern.island is not None), None)
    if rule is None:
        return IslandTensors()
    found: set[ir.Value] = set()
    over: dict[ir.Value, frozenset[ir.Value]] = {}
    joined: dict[ir.Value, ir.Node] = {}
    for island in islands(model, model.graph, rule, constants):
        members = set(island.nodes)
        made = (value for node in island.nodes for value in node.outputs if value not in constants)
        found.update(value for value in made if value.uses() and all(use.node in members for use in value.uses()))
        part = island_region(island)
        if len(part.outputs) == 1:
            join = next((node for node in island.operators if island.is_view and node.op_type == "Concat"), None)
            places = range(len(part.inputs)) if join is not None else overwritten(island, part, rule)
            stored = (part.inputs[place] for place in places)
            over[part.outputs[0]] = frozenset(value for value in stored if value not in constants)
            joined.update({} if join is None else {part.outputs[0]: join})
    inside = frozenset(value for value in found if not value.is_graph_output())
    return IslandTensors(inside, over, joined)
