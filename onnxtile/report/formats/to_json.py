"""The plan as JSON; its schema is docs/plan.schema.json.

It has what the check of plans derives from the model, and nothing else. How the plan was found, and what a search or a run proved, are in
the report of the command and in certificates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.system.text import as_json

_SEARCHED = frozenset({"planner", "ended", "optimal_over", "any_order_bound", "insides", "verdict", "not_run"})
_SEARCHED_MOVEMENT = frozenset({"bound", "lower_bound", "parts_bound", "any_order_bound"})
_SHOWN_ORDERS = frozenset({"any", "model"})
"""Orders that the rows of a plan show: offsets hold in every order of the nodes, or nodes run as in the file."""


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


FORMAT = Format("json", ".json", _write, "the whole plan (docs/plan.schema.json)")
