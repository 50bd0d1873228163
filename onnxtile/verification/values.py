"""The difference of two values, and the tolerance for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onnxtile.declare.verb import JsonFields
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

RELATIVE = 1e-4
"""Relative tolerance of a float32.

Coarser element types may be off by more, in proportion to the square root of their precision (0.9 % for float16, 2.6 % for
bfloat16), and by one unit in the last place at least: in proportion to the precision itself anything would pass.
"""

ABSOLUTE = 1e-5
"""Absolute tolerance as a share of the largest value of the output: small values come from cancelling large ones.

For coarser element types four units in the last place of the largest value, at most half of what is relative. Where no value is a
normal number, the share is that of the smallest one: below it, all numbers of a type are equally far apart.
"""

_EXACT = "exact equality is required: the values are not floats"
_SAME_FORM = "the same element type, shape and number of tensors are required"


@dataclass(frozen=True)
class ElementError(JsonFields):
    """An element that differs: its index (in a sequence, the tensor's number first), the expected and the computed value.

    `index` counts from 0; `expected` and `got` are texts.
    """

    index: tuple[int, ...]
    expected: str
    got: str


@dataclass(frozen=True)
class OutputError:
    """The worst difference on one output over all runs: absolute, relative to the expected element, and where it was.

    `tolerance` is the relative one; 0 where equality is asked for (integers, booleans, strings). `floor` is what every element may be off
    besides, and `why` says where both come from. `inputs` names the run ("zeros", "random 1"), where there were several. `reason` says what
    no number does: another shape, or NaNs, which are equal where both models have them. `name` is that of the output. `max_abs` and
    `max_rel` are the two differences, `equal` says whether they are allowed, `where` has the element.
    """

    name: str
    max_abs: float
    max_rel: float
    tolerance: float
    equal: bool
    reason: str = ""
    floor: float = 0.0
    why: str = _EXACT
    where: ElementError | None = None
    inputs: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one output; an error without bounds is null, as JSON has no infinity."""
        errors = {"max_abs": self.max_abs, "max_rel": self.max_rel, "tolerance": self.tolerance, "floor": self.floor}
        return {
            "name": self.name,
            **{key: value if np.isfinite(value) else None for key, value in errors.items()},
            "why": self.why,
            "equal": self.equal,
            "where": self.where and self.where.to_dict(),
            **({"inputs": self.inputs} if self.inputs else {}),
            **({"reason": self.reason} if self.reason else {}),
        }


def largest_error(outputs: Iterable[Mapping[str, Any]]) -> str:
    """Return the text of the largest error of `outputs`, given as JSON: relative where the relative tolerance allows it, else absolute.

    Near zero, an element may be off by a share of the largest element, and a quantised one by a step: as a share of itself, that is no
    measure of the result.
    """
    none: Mapping[str, Any] = {"max_rel": 0.0, "tolerance": 0.0}
    output = max(outputs, key=lambda output: math.inf if output["max_rel"] is None else output["max_rel"], default=none)
    worst = math.inf if output["max_rel"] is None else output["max_rel"]
    if worst <= output["tolerance"]:
        return f"worst relative error {worst:.2g}"
    return f"largest error {error_size(output['max_abs'], 2)}: {output['name']} {error_place(output['where'])}".rstrip()


def error_size(size: float | None, digits: int = 3) -> str:
    """Return the text of a difference; JSON has null for one without bounds."""
    return "∞" if size is None else f"{size:.{digits}g}"


def error_place(where: Mapping[str, Any] | None) -> str:
    """Return the text of the element that differs."""
    return "" if where is None else f"at {list(where['index'])}: {where['expected']} became {where['got']}"


def compare_values(name: str, expected: Any, got: Any, *, coarsest: float = 0.0) -> OutputError:
    """Compare one output: floats within the tolerance of their precision, everything else for equality.

    `coarsest` is the precision of the coarsest floats that a tensor was computed from, where that is known.
    """
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return _compare_others(name, expected, got)
    if expected.dtype != got.dtype or expected.shape != got.shape:
        reason = f"{expected.dtype} {list(expected.shape)} became {got.dtype} {list(got.shape)}"
        return _of_another_form(name, reason)
    if is_inexact(expected):
        return _compare_floats(name, expected, got, max(precision_of(expected.dtype), coarsest))
    differing = np.asarray(expected != got)
    if not differing.any():
        return OutputError(name, 0.0, 0.0, 0.0, equal=True)
    if expected.dtype.kind not in "iu" and "int" not in expected.dtype.name:
        return OutputError(name, np.inf, np.inf, 0.0, equal=False, where=_place(differing, expected, got))
    size = np.abs(expected.astype(np.float64))
    # Of 64 bits the last are lost in float64: what differs is off by one at least.
    off = np.where(differing, np.maximum(np.abs(expected.astype(np.float64) - got.astype(np.float64)), 1), 0)
    relative = float(_relative(off, size).max())
    return OutputError(name, float(off.max()), relative, 0.0, equal=False, where=_place(off, expected, got))


def compare_quantised(name: str, expected: Any, got: Any) -> OutputError:
    """Compare one output as `compare_values` does, but let integers of 8 bits, which are quantised numbers, be one step off."""
    error = compare_values(name, expected, got)
    if not isinstance(expected, np.ndarray) or expected.dtype not in (np.int8, np.uint8):
        return error
    return replace(error, equal=error.max_abs <= 1, floor=1.0, why=f"{expected.dtype}: one step of quantisation")


def missing(name: str) -> OutputError:
    """Return the error of an output that only one of two models has."""
    return _of_another_form(name, "only one of the models has it")


def _of_another_form(name: str, reason: str) -> OutputError:
    return OutputError(name, np.inf, np.inf, 0.0, equal=False, reason=reason, why=_SAME_FORM)


def badness(error: OutputError) -> tuple[bool, float, float]:
    """Return the sort key of errors: equal outputs first, then by absolute and relative difference."""
    return (not error.equal, error.max_abs, error.max_rel)


def is_inexact(array: Array) -> bool:
    """Tell whether `array` has floats or complex numbers; bfloat16, float8 and int4 are all of numpy's kind "V"."""
    return array.dtype.kind in "fc" or (array.dtype.kind == "V" and "float" in array.dtype.name)


def _compare_floats(name: str, expected: Array, got: Array, precision: float) -> OutputError:
    tolerance = max(RELATIVE, RELATIVE * float(np.sqrt(precision / np.finfo(np.float32).eps)), precision)
    share = max(ABSOLUTE, min(4 * precision, tolerance / 2))
    why = f"{expected.dtype}: {tolerance:.3g} of each element and {share:.3g} of the largest"
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), got.astype(wide)
    finite = np.isfinite(a)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not same[~finite].all() or not np.isfinite(b[finite]).all():
        wrong = np.where(finite, ~np.isfinite(b), ~same)
        reason = "an element is finite in one of the models only"
        where = _place(wrong, expected, got)
        return OutputError(name, np.inf, np.inf, tolerance, equal=False, reason=reason, why=why, where=where)
    size = np.abs(np.where(finite, a, 0))
    off = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0))
    largest = float(size.max(initial=0.0))
    least_normal = float(_limits_of(expected.dtype).smallest_normal)
    if largest < least_normal:
        why = f"{expected.dtype}: {tolerance:.3g} of each element and {share:.3g} of the smallest normal number"
    floor = share * max(largest, least_normal)
    relative = _relative(off, size)
    max_rel = float(relative[size > largest * 1e-3].max(initial=0.0)) if largest else float(relative.max(initial=0.0))
    max_abs = float(off.max(initial=0.0))
    beyond = off - tolerance * size - floor
    # Where the output is wrong, the place is that of the element which is furthest beyond what it may be off.
    position = _place(off if bool((beyond <= 0).all()) else beyond, expected, got) if max_abs else None
    equal = bool((beyond <= 0).all())
    nans = int(np.isnan(a).sum())
    reason = f"{nans:,} of {a.size:,} elements are NaN in both" if nans else ""
    return OutputError(name, max_abs, max_rel, tolerance, equal, reason, floor, why, position)


def _relative(off: Array, size: Array) -> Array:
    """Return differences as shares of the size of what was expected; infinite where this is zero."""
    return np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)


def _place(badness: Array, expected: Array, got: Array) -> ElementError:
    """Return the first place where `badness` is largest."""
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(badness)), expected.shape))
    return ElementError(index, str(expected[index]), str(got[index]))


def _compare_others(name: str, expected: Any, got: Any) -> OutputError:
    """Compare sequences element by element, and optional or map values for equality."""
    if isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            reason = f"a sequence of {len(expected)} became one of {len(got)}"
            return _of_another_form(name, reason)
        errors = [_element(name, index, *pair) for index, pair in enumerate(zip(expected, got, strict=True))]
        return max(errors, key=badness, default=OutputError(name, 0.0, 0.0, 0.0, equal=True))
    same = type(expected) is type(got) and bool(expected == got)
    return OutputError(name, 0.0 if same else np.inf, 0.0 if same else np.inf, 0.0, equal=same)


def _element(name: str, index: int, expected: Any, got: Any) -> OutputError:
    error = compare_values(name, expected, got)
    if error.where is None:
        return error
    return replace(error, where=replace(error.where, index=(index, *error.where.index)))


def precision_of(dtype: Any) -> float:
    """Return the distance of 1 from the next larger number of a float of numpy or ml_dtypes."""
    return float(_limits_of(dtype).eps)


def _limits_of(dtype: Any) -> Any:
    """Return the `finfo` of a float of numpy or ml_dtypes."""
    if dtype.kind == "V" or dtype.itemsize < 2:
        import ml_dtypes

        return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return np.finfo(dtype)
