"""Plug-ins and data files are found by their existence: no list elsewhere is edited when one is added."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TypeVar

from onnxtile.errors import OnnxtileError

T = TypeVar("T")


def discover(package: str, kind: type[T]) -> dict[str, T]:
    """Return every instance of `kind` that a module of `package` defines at its top level, keyed by its `name`, sorted.

    `package` is a dotted name such as "onnxtile.planning.planners". Raises OnnxtileError where two plug-ins share a name.
    """
    found: dict[str, T] = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for value in vars(module).values():
            if not isinstance(value, kind):
                continue
            name: str = value.name  # type: ignore[attr-defined]
            if found.setdefault(name, value) is not value:
                raise OnnxtileError(f"two plug-ins in {package} are named {name!r}")
    return dict(sorted(found.items()))


def data_folder(name: str) -> Path:
    """Return the folder `name` ("patterns", "models") that ships with the package.

    In a wheel it lies inside the package, in a checkout (also an editable install) beside it.
    """
    package = Path(__file__).parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise OnnxtileError(f"the folder {name!r} that ships with onnxtile is missing", hint="install onnxtile again")
