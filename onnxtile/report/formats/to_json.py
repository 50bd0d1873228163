"""The plan as JSON; its schema is docs/plan.schema.json."""

from __future__ import annotations

from onnxtile.json_text import as_json
from onnxtile.report.format import Format, PlanJson, RenderOptions


def _write(plan: PlanJson, _options: RenderOptions) -> bytes:
    return as_json(plan).encode()


FORMAT = Format("json", ".json", _write, "the whole plan (docs/plan.schema.json)")
