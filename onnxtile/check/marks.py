"""The document of a plan, read back from the metadata of a planned model: addresses, aliases, steps and arenas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pydantic

from onnxtile.check.graph import Graph, GraphModel, Value
from onnxtile.declare.plan_document import (
    FIXED,
    HINT,
    NO_SHAPE,
    SHARED,
    SHOWN_ORDERS,
    UNIQUE,
    WORKSPACE,
    PlanDocument,
    PlannedBody,
    PlannedBuffer,
    PlannedPart,
    exact,
    first_fault,
    from_fields,
)
from onnxtile.model import keys
from onnxtile.model.validity import without_weights
from onnxtile.system.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir


def from_marks(model: ir.Model, where: str) -> PlanDocument:
    """Return the plan in the metadata of `model`, of the file `where`.

    It has addresses, aliases, steps and arenas; other claims are missing. Raises UsageError for a model without a plan.
    """
    read = GraphModel(without_weights(model))
    text = read.marks.get(keys.PLAN)
    if text is None:
        raise UsageError(f"{where} is not a planned model: its graph has no {keys.PLAN!r}", hint=HINT)
    try:
        summary = dict(json.loads(text, parse_int=exact))
        main = _marked(read.graph, "", None)
        rows = (*main.buffers, *(_workspace_row(SHARED, workspace) for workspace in summary.get("workspaces", ())))
        whole = {
            **{name: summary[name] for name in ("alignment", "arenas", "io", "overwrite_inputs")},
            "order": summary["order"] if summary["order"] in SHOWN_ORDERS else "schedule",
            **{"schedule": main.schedule, "steps": main.steps, "buffers": rows, "bodies": main.bodies},
            "peak": summary["peak"],
            **{name: summary[name] for name in (*FIXED, "movement") if name in summary},
            "states": summary.get("states", ()),
            "kernels": summary.get("kernels"),
        }
        return from_fields(whole)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = first_fault(error) if isinstance(error, pydantic.ValidationError) else str(error)
        raise UsageError(f"{where} is not a planned model: its metadata is not a plan ({reason})") from None


def _marked(graph: Graph, name: str, attribute: str | None) -> PlannedBody:
    """Return the claims in the metadata of `graph` and of its bodies."""
    rows = [row for value in graph.inputs if (row := _row_of_marks(value)) is not None]
    rows += [row for node in graph.nodes for value in node.outputs if (row := _row_of_marks(value)) is not None]
    order = sorted(graph.nodes, key=lambda node: int(node.marks[keys.STEP]))
    bodies, names = [], graph.names
    for node in order:
        if keys.WORKSPACE_AT in node.marks:
            workspace = json.loads(node.marks[keys.WORKSPACE_AT], parse_int=exact)
            rows.append(_workspace_row(f"{names[node]} {SHARED}", workspace))
        if keys.UNIQUE_WORKSPACE_AT in node.marks:
            workspace = json.loads(node.marks[keys.UNIQUE_WORKSPACE_AT], parse_int=exact)
            rows.append(_workspace_row(f"{names[node]} {UNIQUE}", workspace))
        bodies += [_marked(body, names[node], at) for at, body in node.entered().items() if at is not None]
    steps = tuple(int(node.marks[keys.STEP]) for node in order)
    return PlannedBody(
        node=name,
        attribute=attribute,
        schedule=tuple(names[node] for node in order),
        steps=steps,
        buffers=tuple(rows),
        bodies=tuple(bodies),
    )


def _row_of_marks(value: Value) -> PlannedBuffer | None:
    marks = value.marks
    if keys.ARENA not in marks:
        return None
    place = (marks[keys.ARENA], int(marks[keys.OFFSET]), int(marks[keys.SIZE]))
    parts = tuple(PlannedPart(**part) for part in json.loads(marks.get(keys.PARTS, "[]"), parse_int=exact))
    return PlannedBuffer(value.name, *place, alias=marks.get(keys.ALIAS_OF), parts=parts, strides=NO_SHAPE)


def _workspace_row(name: str, workspace: dict[str, Any]) -> PlannedBuffer:
    live_range = {key: workspace[key] for key in ("first", "last") if key in workspace}
    return PlannedBuffer(name, workspace["arena"], workspace["offset"], workspace["size"], kind=WORKSPACE, **live_range)
