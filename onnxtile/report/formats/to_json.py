"""The plan as JSON; its schema is docs/plan.schema.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnxtile.report.format import Format


def _render(plan: Mapping[str, Any]) -> bytes:
    return (json.dumps(plan, indent=1, ensure_ascii=False) + "\n").encode()


FORMAT = Format("json", ".json", _render)
