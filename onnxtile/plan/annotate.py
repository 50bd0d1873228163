"""A plan written into its model, as metadata that other tools read or pass on."""

from __future__ import annotations

import json

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import UsageError
from onnxtile.plan.order.schedule import named
from onnxtile.plan.result import VERSION, PlanResult

_OF_A_VALUE = (keys.ARENA, keys.OFFSET, keys.SIZE, keys.ALIAS_OF)


def annotate(model: ir.Model, result: PlanResult) -> None:
    """Mark each value, each node and the graph of `model` (in place) with what `result` says of it, in place of what was there.

    The marks are written only by IR version 10 and later. Raises UsageError where `result` is the plan of another model.
    """
    schedule = named(model.graph, result.schedule, result.steps)
    made = (value for node in model.graph for value in node.outputs)
    values = {value.name: value for value in (*model.graph.inputs, *made) if value.name}
    if not {buffer.name for buffer in result.tensors} <= values.keys():
        raise UsageError("the plan is not one of this model")
    clear(model)
    for node, step in schedule.steps.items():
        node.metadata_props[keys.STEP] = str(step)
    for buffer in result.tensors:
        marks = values[buffer.name].metadata_props
        marks[keys.ARENA] = buffer.arena
        marks[keys.OFFSET] = str(buffer.offset)
        marks[keys.SIZE] = str(buffer.size)
        if buffer.alias is not None:
            marks[keys.ALIAS_OF] = buffer.alias
    model.graph.metadata_props[keys.PLAN] = _summary(result)


def clear(model: ir.Model) -> None:
    """Take the marks of a plan off `model` (in place)."""
    model.graph.metadata_props.pop(keys.PLAN, None)
    for value in model.graph.inputs:
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
