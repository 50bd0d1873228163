"""The plan as JSON; its schema is docs/plan.schema.json.

It has what the check of plans derives from the model, and nothing else. How the plan was found, and what a search or a run proved, are in
the report of the command and in certificates.

Also the offsets as node data for Model Explorer (https://github.com/google-ai-edge/model-explorer, "Custom node data"): the data of one
graph, which Model Explorer shows on the graph that is open. It is a value for each node, by the node's name and by the name of each tensor
that it makes (its adapters know nodes by one or the other), and colours from the lowest to the highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onnxtile.declare.plan_document import document_of
from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.system.text import as_json

_GRADIENT = ((0, "#edf8fb", "black"), (0.5, "#8c96c6", "black"), (1, "#6e016b", "white"))
"""Stops from the lowest to the highest offset, each with the colours of the ground and of the text."""


def _write(plan: PlanJson, _options: RenderOptions) -> bytes:
    return as_json(document_of(plan)).encode()


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
