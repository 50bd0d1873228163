"""onnxtile gets ONNX models ready for hardware with limits: fuse, tile, plan, and proof by running.

The verbs are imported when they are first used, so that `import onnxtile` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtile.api import fuse, match, plan, save, tile, unfuse, verify
    from onnxtile.tile.limits import Limits

__all__ = ["Limits", "fuse", "match", "plan", "save", "tile", "unfuse", "verify"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'onnxtile' has no attribute {name!r}")
    import importlib

    place = "onnxtile.tile.limits" if name == "Limits" else "onnxtile.api"
    return getattr(importlib.import_module(place), name)
