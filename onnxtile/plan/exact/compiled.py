"""The search compiled by numba, where that is installed: the same functions, the same plans, many times faster."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from onnxtile.plan.exact import descent
from onnxtile.plan.exact.state import State, converted

Descend = Callable[[State, int, int, int], tuple[int, int]]


@cache
def is_available() -> bool:
    """Return whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


@cache
def descend() -> Descend:
    """Return `descent.descend`, compiled when it is first called, which takes seconds; numba keeps the result beside the source.

    Its state is `as_arrays`. Nothing in it allocates, so that numba need not count references (`_nrt`), which would double both times.
    """
    numba: Any = importlib.import_module("numba")
    # Compiled functions call one another: they find each other's names in a module's worth of globals of their own.
    space: dict[str, Any] = dict(vars(descent))
    for name, value in vars(descent).items():
        if isinstance(value, FunctionType) and value.__module__ == descent.__name__:
            space[name] = numba.njit(_nrt=False, cache=_can_keep())(FunctionType(value.__code__, space, name))
    found: Descend = space["descend"]
    return found


def _can_keep() -> bool:
    """Return whether numba finds a folder for compiled code: the one of this package, unless it says otherwise."""
    folder = Path(descent.__file__).parent
    return bool(os.environ.get("NUMBA_CACHE_DIR")) or os.access(folder, os.W_OK)


def as_arrays(state: State) -> State:
    """Return `state` in arrays of 64-bit numbers instead of lists."""
    import numpy as np

    return converted(state, lambda v: np.array(v, np.int64), lambda v: np.array(v, np.float64))
