"""Checks the files of a command before any work: inputs exist, and no file is overwritten or written twice."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxtile.errors import ModelError, UsageError
from onnxtile.paths import real, require_readable

_WRITTEN = {
    **{"as_json": "--json", "curve": "--curve", "emit": "--emit"},
    **{"junit": "--junit", "markdown": "--markdown", "output": "-o"},
}
"""The parameters that name files to write, and what a user calls them. -o over IN is judged with --force elsewhere."""


_READ = ("model", "other", "pipeline", "baseline")
_TEXT_FILE = ".toml"
"""A text that is read and ends so names a file; any other is a name or a query, which no file system need take."""
_MODELS = ("model", "other", "models")


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
    """Raise UsageError where two of the options in `given` write one file, or one writes a file that is read: weights of models, too."""
    read = {path for name, value in given.items() if name not in _WRITTEN for path in _paths(value, _TEXT_FILE)}
    source = {path for name in ("model", "models") for path in _paths(given.get(name))}
    written: dict[Path, str] = {}
    for name, option in _WRITTEN.items():
        for path in _paths(given.get(name)):
            if path in (read - source if name == "output" else read):
                raise UsageError(f"{option} {path} would be written over what is read", hint="name another file")
            if path in written:
                raise UsageError(f"{written[path]} and {option} both name {path}", hint="name two files")
            written[path] = option
    _require_no_weights(given, {path: option for path, option in written.items() if path.is_file()})


def require_beside(target: Path, model: Path, others: Mapping[str, Any]) -> None:
    """Raise UsageError where one of the files in `others` is the model `target`, made from `model`, or where its weights may go."""
    from onnxtile.model.weights import weights_beside

    for name, option in _WRITTEN.items():
        for path in _paths(others.get(name)):
            if path == target.resolve():
                raise UsageError(
                    f"{option} {path} is where the model is written to",
                    hint="name another file, or another model with -o",
                )
            if path in map(real, weights_beside(target, model)) or _is_data_of(path, target):
                raise UsageError(f"{option} {path} is where weights of {target} may go", hint="name another file")


def _require_no_weights(given: Mapping[str, Any], written: Mapping[Path, str]) -> None:
    from onnxtile.model.weights import named_weights

    models = [path for name in _MODELS for path in _paths(given.get(name))] if written else []
    for weights in (file.resolve() for model in models for file in named_weights(model)):
        if weights in written:
            raise UsageError(
                f"{written[weights]} {weights} would be written over weights that are read", hint="name another file"
            )


def _is_data_of(path: Path, target: Path) -> bool:
    return path.parent == target.parent.resolve() and path.name.startswith(f"{target.name}.data")


def _paths(value: Any, ending: str = "") -> Iterator[Path]:
    """Yield the files that a value names: paths, and texts with this `ending`. A device, a pipe and stdout may be named twice."""
    for one in value if isinstance(value, list | tuple) else [value]:
        is_file = isinstance(one, Path) or (isinstance(one, str) and one != "-" and one.endswith(ending))
        path = Path(one).absolute() if is_file else None
        if path is not None and (path.is_file() or not path.exists()):
            yield real(path)
