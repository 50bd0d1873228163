"""Files in which a plan can be written; the ending of the file's name says which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxtile.errors import UsageError
from onnxtile.registry import discover


@dataclass(frozen=True)
class Format:
    """One format: its name, the ending that asks for it, and how a plan (the dictionary of its JSON) is written in it."""

    name: str
    suffix: str
    render: Callable[[Mapping[str, Any]], bytes]


def format_of(path: Path) -> Format:
    """Return the format that the name of `path` asks for: the longest ending that fits. Raises UsageError."""
    formats = discover("onnxtile.report.formats", Format).values()
    fitting = [form for form in formats if path.name.endswith(form.suffix)]
    if fitting:
        return max(fitting, key=lambda form: len(form.suffix))
    endings = ", ".join(sorted(form.suffix for form in formats))
    raise UsageError(f"{path}: no format has this ending", hint=f"the endings are {endings}")
