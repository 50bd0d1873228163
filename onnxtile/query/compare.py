"""When two values of a test are the same, or about the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxtile.runtime import Array


def is_open(left: Any, right: Any) -> bool:
    """Tell whether it is open if two dimensions, or lists of them, are the same: one is a symbol or unknown, the other a number."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = list(zip(left, right, strict=True))
        sure = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
        return not sure and any(is_open(a, b) for a, b in pairs)
    if left is None or right is None:
        return True
    return (
        isinstance(left, str | int) and isinstance(right, str | int) and isinstance(left, str) != isinstance(right, str)
    )


def listed(side: Any) -> str:
    """Return a value as a message shows it."""
    return str(["?" if item is None else item for item in side]) if isinstance(side, list) else str(side)


def equal(left: Any, right: Any) -> bool:
    """Tell whether two values are the same; a single number equals an array all of whose elements are that number."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        pair = _arrays(left, right)
        return pair is not None and bool(np.all(pair[0] == pair[1]))
    return bool(left == right)


def close(left: Any, right: Any) -> bool:
    """Tell whether all elements agree within the precision of the coarser element type (4 units in the last place)."""
    pair = _arrays(left, right)
    if pair is None or any(array.dtype.kind not in "fiuV" for array in pair):
        return False
    precision = max(map(_precision, pair))
    x, y = (array.astype(np.float64) for array in pair)
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= 4 * precision * np.maximum(np.abs(x), np.abs(y))
    return bool(np.all(np.where(np.isfinite(x) & np.isfinite(y), near, x == y)))


def _arrays(left: Any, right: Any) -> tuple[Array, Array] | None:
    """Return both as flat arrays; None where they have different numbers of elements and neither is a single one."""
    try:
        a, b = np.ravel(left), np.ravel(right)
    except ValueError:  # a list of lists of different lengths
        return None
    if a.size != b.size and (1 not in {a.size, b.size} or 0 in {a.size, b.size}):
        return None
    return a, b


def _precision(array: Array) -> float:
    if array.dtype.kind in "iu":
        return 0.0
    if array.dtype.kind == "V":
        import ml_dtypes

        try:
            return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]
        except ValueError:  # int4 and the like
            return 0.0
    return float(np.spacing(np.ones(1, array.dtype))[0])
