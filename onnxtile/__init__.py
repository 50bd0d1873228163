"""onnxtile gets ONNX models ready for hardware with limits: fuse, tile, plan, and proof by running.

The verbs are imported when they are first used, so that `import onnxtile` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtile.api import check_plan, fuse, inspect, match, plan, save, tile, unfuse, verify
    from onnxtile.run_limits import RunLimits
    from onnxtile.tile.limits import Limits

__all__ = ["Limits", "RunLimits", "check_plan", "fuse", "inspect", "match", "plan", "save", "tile", "unfuse", "verify"]

_PLACES = {"Limits": "onnxtile.tile.limits", "RunLimits": "onnxtile.run_limits"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'onnxtile' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "onnxtile.api")), name)


class _Face(ModuleType):
    """This package: once the room of a verb (`onnxtile.fuse`) is imported, its name means the room, so that is called like the verb."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


class _Room(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        verb = getattr(importlib.import_module("onnxtile.api"), self.__name__.rpartition(".")[2])
        return verb(*arguments, **options)


sys.modules[__name__].__class__ = _Face
