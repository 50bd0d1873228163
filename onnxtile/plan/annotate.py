"""A plan written into its model, as metadata that other tools read or pass on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import UsageError
from onnxtile.plan.order.schedule import named
from onnxtile.plan.result import VERSION, PlannedBody, PlanResult

_OF_A_VALUE = (keys.ARENA, keys.OFFSET, keys.SIZE, keys.ALIAS_OF)


def annotate(model: ir.Model, result: PlanResult) -> None:
    """Mark each value and node of `model` and of its bodies, and its graph, with what `result` says of it, in place of what was there.

    The marks are written only by IR version 10 and later. Raises UsageError where `result` is the plan of another model.
    """
    graphs = list(_graphs(model.graph, result))
    clear(model)
    for graph, plan in graphs:
        _mark(graph, plan)
    model.graph.metadata_props[keys.PLAN] = _summary(result)


def _graphs(graph: ir.Graph, plan: PlanResult | PlannedBody) -> Iterator[tuple[ir.Graph, PlanResult | PlannedBody]]:
    """Yield `graph` and the bodies in it, at any depth, each with its plan. Raises UsageError where one is the plan of another."""
    names = {value.name for value in _values(graph)}
    if not {buffer.name for buffer in plan.tensors} <= names:
        raise UsageError("the plan is not one of this model")
    yield graph, plan
    nodes = dict(zip(plan.schedule, named(graph, plan.schedule, plan.steps).nodes, strict=True))
    for body in plan.bodies:
        # A function has one graph for all its calls: their plans stand in the JSON only.
        if body.attribute is not None:
            yield from _graphs(nodes[body.node].attributes[body.attribute].as_graph(), body)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from (value for node in graph for value in node.outputs)


def _mark(graph: ir.Graph, plan: PlanResult | PlannedBody) -> None:
    for node, step in named(graph, plan.schedule, plan.steps).steps.items():
        node.metadata_props[keys.STEP] = str(step)
    values = {value.name: value for value in _values(graph)}
    for buffer in plan.tensors:
        marks = values[buffer.name].metadata_props
        marks[keys.ARENA] = buffer.arena
        marks[keys.OFFSET] = str(buffer.offset)
        marks[keys.SIZE] = str(buffer.size)
        if buffer.alias is not None:
            marks[keys.ALIAS_OF] = buffer.alias


def clear(model: ir.Model) -> None:
    """Take the marks of a plan off `model` (in place)."""
    model.graph.metadata_props.pop(keys.PLAN, None)
    for value in (value for graph in model.graphs() for value in graph.inputs):
        _unmark(value)
    for node in model.graph.all_nodes():
        node.metadata_props.pop(keys.STEP, None)
        for value in node.outputs:
            _unmark(value)


def _unmark(value: ir.Value) -> None:
    for key in _OF_A_VALUE:
        value.metadata_props.pop(key, None)


def _summary(result: PlanResult) -> str:
    arenas = [dict(vars(arena)) for arena in result.arenas]
    summary = {"version": VERSION, "alignment": result.alignment, "arenas": arenas, "peak": result.peak}
    return json.dumps(summary, ensure_ascii=False, separators=(",", ":"))
