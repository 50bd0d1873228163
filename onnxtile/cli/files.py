"""That no file a command writes is one that it reads, or writes for something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxtile.errors import UsageError

_WRITTEN = {"as_json": "--json", "emit": "--emit", "output": "-o"}
"""The parameters that name files to write, and what a user calls them. -o over IN is judged with --force elsewhere."""


def require_apart(given: Mapping[str, Any]) -> None:
    """Raise UsageError where two of the options in `given` write one file, or --json one that is read."""
    read = [path for name, value in given.items() if name not in _WRITTEN for path in _paths(value)]
    written: dict[Path, str] = {}
    for name, option in _WRITTEN.items():
        for path in _paths(given.get(name)):
            if name != "output" and path in read:
                raise UsageError(f"{option} {path} would be written over what is read", hint="name another file")
            if path in written:
                raise UsageError(f"{written[path]} and {option} both name {path}", hint="name two files")
            written[path] = option


def _paths(value: Any) -> Iterator[Path]:
    """Yield the files that a value names; a device, a pipe and stdout are none, and take more than one."""
    for one in value if isinstance(value, list) else [value]:
        path = Path(one).absolute() if isinstance(one, Path) or (isinstance(one, str) and one != "-") else None
        if path is not None and (path.is_file() or not path.exists()):
            yield path.resolve()
