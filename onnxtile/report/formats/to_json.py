"""The plan as JSON; its schema is docs/plan.schema.json.

It has what the check of plans derives from the model, and nothing else. How the plan was found, and what a search or a run proved, are in
the report of the command and in certificates.

Also the offsets as node data for Model Explorer (https://github.com/google-ai-edge/model-explorer, "Custom node data"): the data of one
graph, which Model Explorer shows on the graph that is open. It is a value for each node, by the node's name and by the name of each tensor
that it makes (its adapters know nodes by one or the other), and colours from the lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.system.text import as_json

_SEARCHED = frozenset({"planner", "ended", "optimal_over", "any_order_bound", "insides", "verdict", "not_run"})
_SEARCHED_MOVEMENT = frozenset({"bound", "lower_bound", "parts_bound", "any_order_bound"})
_SHOWN_ORDERS = frozenset({"any", "model"})
"""Orders that the rows of a plan show: offsets hold in every order of the nodes, or nodes run as in the file."""

_GRADIENT = ((0, "#edf8fb", "black"), (0.5, "#8c96c6", "black"), (1, "#6e016b", "white"))
"""Stops from the lowest to the highest offset, each with the colours of the ground and of the text."""


def published(plan: PlanJson) -> dict[str, Any]:
    """Return the fields of the JSON of a result that docs/plan.schema.json describes."""
    found = _without(plan, _SEARCHED)
    if plan.get("movement") is not None:
        found["movement"] = _without(plan["movement"], _SEARCHED_MOVEMENT)
    # A state that is only found has no place in the plan.
    states = [_without(state, {"source"}) for state in plan.get("states", ()) if state["arena"] is not None]
    found.pop("states", None)
    found |= {"states": states} if states else {}
    if found.get("order") not in {None, *_SHOWN_ORDERS}:
        found["order"] = "schedule"
    return found


def _without(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _write(plan: PlanJson, _options: RenderOptions) -> bytes:
    return as_json(published(plan)).encode()


def _node_data(plan: PlanJson, _options: RenderOptions) -> bytes:
    results: dict[str, dict[str, int]] = {}
    for row in (*plan["buffers"], *_inside(plan.get("bodies") or ())):
        for key in filter(None, (row.get("node"), row["name"])):
            results.setdefault(key, {"value": row["offset"]})
    gradient = [{"stop": stop, "bgColor": color, "textColor": text} for stop, color, text in _GRADIENT]
    return as_json({"results": results, "gradient": gradient}).encode()


def _inside(bodies: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of bodies, at any depth, whose nodes and tensors Model Explorer knows by their own names."""
    for body in bodies:
        yield from body["buffers"]
        yield from _inside(body["bodies"])


FORMAT = Format("json", ".json", _write, "the whole plan (docs/plan.schema.json)")
MODEL_EXPLORER = Format("model-explorer", ".me.json", _node_data, "node data for Model Explorer")
