"""Write a model, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxtile.model import save as files
from onnxtile.model.load import Source
from onnxtile.model.stream import Draft


def save(model: ir.Model | Draft, path: str | Path, *, source: Source | None = None, force: bool = False) -> None:
    """Write `model`, whole or not at all. Raises UsageError where `path` is the `source` file and `force` is off."""
    origin = Path(source) if isinstance(source, str | Path) else None
    files.save(model, Path(path), source=origin, force=force)
