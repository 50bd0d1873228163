"""What can be said of the files of a command before any work is done: the input is there, and nothing is written over it, or twice."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxtile.errors import ModelError, UsageError
from onnxtile.paths import real, require_readable

_WRITTEN = {"as_json": "--json", "emit": "--emit", "output": "-o"}
"""The parameters that name files to write, and what a user calls them. -o over IN is judged with --force elsewhere."""


_READ = ("model", "other", "pipeline")


def require_there(given: Mapping[str, Any]) -> None:
    """Raise ModelError where an input is no file; where it is missing, with the file that may have been meant."""
    for path in (given[name] for name in _READ if isinstance(given.get(name), Path)):
        if path.exists() or path.is_symlink():
            require_readable(path, ModelError)
        else:
            names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
            near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
            hint = f"did you mean {path.with_name(near[0])}?" if near else None
            raise ModelError(f"{path}: no such file", hint=hint)


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
            yield real(path)
