"""Writes a plan into its model, as metadata that other tools read or keep, and its constants into one block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.declare.plan_document import SHARED, UNIQUE, VERSION, Constant, PlannedBody, PlannedBuffer
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.topology import all_values, clear_plan
from onnxtile.planning.orders import named
from onnxtile.planning.result import PlanResult
from onnxtile.system.errors import UsageError


def annotate(model: ir.Model, result: PlanResult) -> None:
    """Write `result` into the metadata of each value and node of `model` and its bodies, and of its graph; older marks are removed.

    Only files of IR version 10 and later keep the metadata. Raises UsageError where `result` is the plan of another model.
    """
    graphs = list(_graphs(model.graph, result))
    clear_plan(model)
    for graph, plan in graphs:
        _mark(graph, plan)
    model.graph.metadata_props[keys.PLAN] = _summary(result)


def _graphs(graph: ir.Graph, plan: PlanResult | PlannedBody) -> Iterator[tuple[ir.Graph, PlanResult | PlannedBody]]:
    """Yield `graph` and its bodies, at any depth, each with its plan. Raises UsageError for the plan of another model."""
    names = {value.name for value in _values(graph)}
    if not {buffer.name for buffer in plan.tensors} <= names:
        raise UsageError("the plan belongs to another model")
    yield graph, plan
    nodes = dict(zip(plan.schedule, named(graph, plan.schedule), strict=True))
    for body in plan.bodies:
        # A function has one graph for all its calls, so only the JSON has their plans.
        if body.attribute is not None:
            yield from _graphs(nodes[body.node].attributes[body.attribute].as_graph(), body)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from (value for node in graph for value in node.outputs)


def _mark(graph: ir.Graph, plan: PlanResult | PlannedBody) -> None:
    workspaces: dict[str | None, list[PlannedBuffer]] = {}
    for row in plan.buffers:
        if row.kind == "workspace" and row.name != SHARED:
            workspaces.setdefault(row.node, []).append(row)
    nodes = named(graph, plan.schedule)
    for node, step, name in zip(nodes, plan.steps, plan.schedule, strict=True):
        node.metadata_props[keys.STEP] = str(step)
        for row in workspaces.get(name, ()):
            key = keys.UNIQUE_WORKSPACE_AT if row.name.endswith(UNIQUE) else keys.WORKSPACE_AT
            node.metadata_props[key] = _json({"arena": row.arena, "offset": row.offset, "size": row.size})
    values = {value.name: value for value in _values(graph)}
    for buffer in plan.tensors:
        marks = values[buffer.name].metadata_props
        marks[keys.ARENA] = buffer.arena
        marks[keys.OFFSET] = str(buffer.offset)
        marks[keys.SIZE] = str(buffer.size)
        if buffer.alias is not None:
            marks[keys.ALIAS_OF] = buffer.alias
        if buffer.parts:
            marks[keys.PARTS] = _json([dict(vars(part)) for part in buffer.parts])


def _summary(result: PlanResult) -> str:
    arenas = [dict(vars(arena)) for arena in result.arenas]
    summary = {"version": VERSION, "alignment": result.alignment, "arenas": arenas, "peak": result.peak}
    summary |= {"io": result.io, "overwrite_inputs": result.overwrite_inputs, "order": result.order}
    summary |= result.rules
    if result.kernels is not None:
        summary["kernels"] = result.kernels.to_dict()
    if result.states:
        state_fields = ("input", "output", "arena", "offset", "size", "copied", "strides")
        summary["states"] = [{key: getattr(state, key) for key in state_fields} for state in result.states]
    if result.movement is not None:
        summary["movement"] = {"fast": result.movement.fast, "slow": result.movement.slow}
    shared = [workspace for workspace in result.buffers if workspace.kind == "workspace" and workspace.name == SHARED]
    if shared:
        fields = ("arena", "offset", "size", "first", "last")
        summary["workspaces"] = [{key: getattr(workspace, key) for key in fields} for workspace in shared]
    return _json(summary)


def _json(content: dict[str, Any] | list[dict[str, Any]]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


# The block of constants of a plan: the bytes that a runtime keeps in flash, each constant at its offset.


def constant_block(model: ir.Model, plan: PlanResult) -> bytes:
    """Return the bytes of all constants of `plan`, a plan of `model`, at their offsets; gaps are zero.

    Elements are little-endian, those of less than a byte packed as ONNX packs them. Raises UsageError where constants of several graphs
    have one name and different bytes, ModelError where onnxruntime cannot compute one.
    """
    placed = [row for row in plan.constants if row.size is not None and row.offset is not None]
    constants = Constants(model)
    named: dict[str, list[ir.Value]] = {row.name: [] for row in placed}
    for value in dict.fromkeys(all_values(model)):
        if value in constants and value.name in named:
            named[value.name].append(value)
    constants.prepare(value for values in named.values() for value in values)
    block = bytearray(max((row.offset + row.size for row in placed), default=0))  # type: ignore[operator]
    for row in placed:
        contents = set(_contents(row, named[row.name], constants))
        if len(contents) != 1:
            raise UsageError(
                f"{len(contents) or 'no'} constants of the model are named {row.name!r} and have {row.size} bytes",
                hint="give the constants of bodies and functions names of their own",
            )
        start = row.offset or 0
        block[start : start + (row.size or 0)] = contents.pop()
    return bytes(block)


def _contents(row: Constant, values: list[ir.Value], constants: Constants) -> Iterator[bytes]:
    """Yield the bytes of the constants `values` that are as long as `row` says."""
    for value in values:
        if value.const_value is not None:
            data = value.const_value.tobytes()
        else:
            dtype = None if row.dtype is None else ir.DataType[row.dtype]
            data = ir.Tensor(np.ascontiguousarray(constants.array(value)), dtype=dtype).tobytes()
        if len(data) == row.size:
            yield data
