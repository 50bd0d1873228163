"""A published plan read back: from its JSON, or from the metadata of a planned model."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import onnx_ir as ir
import pydantic

from onnxtile import keys
from onnxtile.errors import UsageError
from onnxtile.planning.proof.published.claims import NO_SHAPE, BodyClaim, ClaimedPart, ClaimedRow, Claims
from onnxtile.planning.proof.published.evidence import entered_bodies, names_of
from onnxtile.planning.proof.published.placing import SHARED, UNIQUE, WORKSPACE

_HINT = "onnxtile plan MODEL --emit plan.json writes a plan; docs/plan.schema.json describes it"

_LARGEST = 2**53
"""The largest number that every reader of JSON keeps exact."""


def from_json(data: bytes, where: str) -> Claims:
    """Return the plan in the JSON text `data` of the file `where`. Raises UsageError with the first invalid field."""
    try:
        found = json.loads(data, parse_int=_number)
        version = found.get("version") if isinstance(found, dict) else None
        if version != 1 or isinstance(version, bool):  # in Python true equals 1
            raise UsageError(f"{where} is not a plan: version is not 1", hint=_HINT)
        surplus = _without_surplus(found, data)
        plan = _adapter().validate_json(json.dumps(found) if surplus else data, strict=True)
        return replace(plan, surplus=surplus)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where} is not a plan: {field + ': ' if field else ''}{first['msg']}", hint=_HINT) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}", hint=_HINT) from None


def _without_surplus(found: Any, data: bytes) -> tuple[str, ...]:
    """Remove from the plan `found`, the JSON in `data`, the fields that are no claims; return their names."""
    try:
        _adapter().validate_json(data, strict=True)
    except pydantic.ValidationError as error:
        faults = [fault["loc"] for fault in error.errors() if fault["type"] == "unexpected_keyword_argument"]
    else:
        return ()
    for place in faults:
        inner = found
        for key in place[:-1]:
            inner = inner[key]
        del inner[place[-1]]
    return tuple(".".join(map(str, place)) for place in faults)


@cache
def _adapter() -> pydantic.TypeAdapter[Claims]:
    return pydantic.TypeAdapter(Claims)


def _number(text: str) -> int:
    number = int(text) if len(text) < 20 else _LARGEST + 1
    if abs(number) > _LARGEST:
        raise ValueError(f"a number is larger than {_LARGEST}")
    return number


def from_marks(model: ir.Model, where: str) -> Claims:
    """Return the plan in the metadata of `model`, of the file `where`.

    It has addresses, aliases, steps and arenas; other claims are missing. Raises UsageError for a model without a plan.
    """
    text = model.graph.metadata_props.get(keys.PLAN)
    if text is None:
        raise UsageError(f"{where} is not a planned model: its graph has no {keys.PLAN!r}", hint=_HINT)
    try:
        summary = dict(json.loads(text, parse_int=_number))
        main = _marked(model, model.graph, "", None)
        rows = (*main.buffers, *(_workspace_row(SHARED, workspace) for workspace in summary.get("workspaces", ())))
        whole = {
            **{name: summary[name] for name in ("alignment", "arenas", "io", "overwrite_inputs")},
            "order": summary["order"] if summary["order"] in {"any", "model"} else "schedule",
            **{"schedule": main.schedule, "steps": main.steps, "buffers": rows, "bodies": main.bodies},
            "peak": summary["peak"],
            **{name: summary[name] for name in ("pins", "places", "keeps", "movement") if name in summary},
            "states": summary.get("states", ()),
            "kernels": summary.get("kernels"),
        }
        return _adapter().validate_python(whole)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not a planned model: its metadata is not a plan ({_short(error)})") from None


def _short(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


def _marked(model: ir.Model, graph: ir.Graph, name: str, attribute: str | None) -> BodyClaim:
    """Return the claims in the metadata of `graph` and of its bodies."""
    rows = [row for value in graph.inputs if (row := _row(value)) is not None]
    rows += [row for node in graph for value in node.outputs if (row := _row(value)) is not None]
    order = sorted(graph, key=lambda node: int(node.metadata_props[keys.STEP]))
    bodies, names = [], names_of(graph)
    for node in order:
        if keys.WORKSPACE_AT in node.metadata_props:
            workspace = json.loads(node.metadata_props[keys.WORKSPACE_AT], parse_int=_number)
            rows.append(_workspace_row(f"{names[node]} {SHARED}", workspace))
        if keys.UNIQUE_WORKSPACE_AT in node.metadata_props:
            workspace = json.loads(node.metadata_props[keys.UNIQUE_WORKSPACE_AT], parse_int=_number)
            rows.append(_workspace_row(f"{names[node]} {UNIQUE}", workspace))
        bodies += [
            _marked(model, body, names[node], at) for at, body in entered_bodies(node, model).items() if at is not None
        ]
    steps = tuple(int(node.metadata_props[keys.STEP]) for node in order)
    return BodyClaim(name, attribute, tuple(names[node] for node in order), steps, tuple(rows), tuple(bodies))


def _row(value: ir.Value) -> ClaimedRow | None:
    marks = value.metadata_props
    if keys.ARENA not in marks:
        return None
    place = (marks[keys.ARENA], int(marks[keys.OFFSET]), int(marks[keys.SIZE]))
    parts = tuple(ClaimedPart(**part) for part in json.loads(marks.get(keys.PARTS, "[]"), parse_int=_number))
    return ClaimedRow(value.name or "", *place, alias=marks.get(keys.ALIAS_OF), parts=parts, strides=NO_SHAPE)


def _workspace_row(name: str, workspace: dict[str, Any]) -> ClaimedRow:
    live_range = {key: workspace[key] for key in ("first", "last") if key in workspace}
    return ClaimedRow(name, workspace["arena"], workspace["offset"], workspace["size"], kind=WORKSPACE, **live_range)
