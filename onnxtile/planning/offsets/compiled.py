"""Modules of plain functions, compiled by numba if it is installed: the same plans, many times faster."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

_LOADED: set[tuple[ModuleType, str]] = set()
"""The functions that this process has compiled or loaded."""


@cache
def is_available() -> bool:
    """Return whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def is_loaded(module: ModuleType, name: str) -> bool:
    """Return whether this process has compiled the function `name` of `module`, or loaded it."""
    return (module, name) in _LOADED


def is_kept(module: ModuleType, name: str) -> bool:
    """Return whether a process with this version of Python has compiled the function `name` of `module`, and kept it beside the source."""
    _drop_stale(module)
    source, version = Path(module.__file__ or ""), "".join(map(str, sys.version_info[:2]))
    return any((source.parent / "__pycache__").glob(f"{source.stem}.{name}-*.py{version}.nbi"))


@cache
def function(module: ModuleType, name: str, *, allocates: bool = True) -> Any:
    """Return the function `name` of `module`, compiled with all functions of the module at its first call, which takes seconds.

    numba keeps the result beside the source. For functions that `allocates` nothing, numba need not count references; that would double the
    time of functions with very many arrays.
    """
    numba: Any = importlib.import_module("numba")
    _drop_stale(module)
    # Compiled functions call one another, so they share a copy of the module's globals.
    space: dict[str, Any] = dict(vars(module))
    for key, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            plain = FunctionType(value.__code__, space, key)
            space[key] = numba.njit(_nrt=allocates, cache=_can_keep(module))(plain)
    _LOADED.add((module, name))
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
    """Return whether numba can keep compiled code: in NUMBA_CACHE_DIR, or beside the module."""
    return bool(os.environ.get("NUMBA_CACHE_DIR")) or os.access(Path(module.__file__ or "").parent, os.W_OK)
