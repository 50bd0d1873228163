"""The plan as JSON; its schema is docs/plan.schema.json."""

from __future__ import annotations

import json

from onnxtile.report.format import Format, Options, Plan


def _write(plan: Plan, _options: Options) -> bytes:
    return (json.dumps(plan, indent=1, ensure_ascii=False) + "\n").encode()


FORMAT = Format("json", ".json", _write)
