"""Modules of plain functions compiled by numba, where that is installed: the same functions, the same plans, many times faster."""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


@cache
def is_available() -> bool:
    """Return whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


@cache
def function(module: ModuleType, name: str, *, allocates: bool = True) -> Any:
    """Return the function `name` of `module`, compiled with all of its functions when it is first called, which takes seconds.

    numba keeps the result beside the source. Where nothing in it `allocates`, numba need not count references, which would double the
    time of functions that take very many arrays.
    """
    numba: Any = importlib.import_module("numba")
    _drop_stale(module)
    # Compiled functions call one another: they find each other's names in a module's worth of globals of their own.
    space: dict[str, Any] = dict(vars(module))
    for key, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            plain = FunctionType(value.__code__, space, key)
            space[key] = numba.njit(_nrt=allocates, cache=_can_keep(module))(plain)
    return space[name]


def _drop_stale(module: ModuleType) -> None:
    """Delete compiled code that is older than a source file beside it.

    numba compares only the file of the function itself, and fails to load code whose argument types have been renamed since.
    """
    folder = Path(module.__file__ or "").parent
    newest = max((source.stat().st_mtime for source in folder.glob("*.py")), default=0.0)
    for kept in (folder / "__pycache__").glob("*.nb[ci]"):
        with suppress(OSError):  # another process deletes the same file, or the folder is read-only
            if kept.stat().st_mtime < newest:
                kept.unlink()


def _can_keep(module: ModuleType) -> bool:
    """Return whether numba finds a folder for compiled code: the one of the module, unless it says otherwise."""
    return bool(os.environ.get("NUMBA_CACHE_DIR")) or os.access(Path(module.__file__ or "").parent, os.W_OK)
