"""onnxtile gets ONNX models ready for hardware with limits: fuse, tile, plan, and proof by running.

The verbs are imported when they are first used, so that `import onnxtile` costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtile.api import check_plan, fuse, inspect, match, plan, save, tile, unfuse, verify
    from onnxtile.run_limits import RunLimits
    from onnxtile.tiling.limits import Limits

__all__ = ["Limits", "RunLimits", "check_plan", "fuse", "inspect", "match", "plan", "save", "tile", "unfuse", "verify"]

_PLACES = {"Limits": "onnxtile.tiling.limits", "RunLimits": "onnxtile.run_limits"}


def __getattr__(name: str) -> Any:
    if name not in __all__ and (name.startswith("_") or importlib.util.find_spec(f"onnxtile.verbs.{name}") is None):
        raise AttributeError(f"module 'onnxtile' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "onnxtile.api")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
