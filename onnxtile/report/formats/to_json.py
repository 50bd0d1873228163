"""The plan as JSON; its schema is docs/plan.schema.json."""

from __future__ import annotations

from onnxtile.json_text import as_json
from onnxtile.report.format import Format, Options, Plan


def _write(plan: Plan, _options: Options) -> bytes:
    return as_json(plan).encode()


FORMAT = Format("json", ".json", _write, "the whole plan, as docs/plan.schema.json describes it")
