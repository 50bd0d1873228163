"""The range of numbers that an input may hold, and random draws from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.runtime import Array

Ranges: TypeAlias = Mapping[str, tuple[float, float]]
"""The lowest number of an input and the first above the highest, by the input's name; the same twice: that number alone."""


@dataclass(frozen=True)
class Domain:
    """Numbers from `low` to below `high` (None: open on that side), or one of `choices`, or exactly `fixed` (by the last axis)."""

    low: float | None = None
    high: float | None = None
    choices: tuple[int, ...] = ()
    fixed: tuple[float, ...] | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether anything limits the numbers."""
        return self != Domain()

    def bounds(self, dtype: np.dtype[Any]) -> tuple[int, int]:
        """Return the lowest and the highest whole number of `dtype` that is allowed.

        Eight-bit integers are quantised data, of which every value is meant; wider ones are more often counts, indices and masks: where
        nothing is known of these, they are 0 or 1.
        """
        if self.choices:
            return min(self.choices), max(self.choices)
        low = 0 if self.low is None else int(self.low)
        if self.high is not None:
            return low, max(low, int(np.ceil(self.high)) - 1)
        eight_bits = dtype.kind in "iu" and dtype.itemsize == 1
        return low, low + (99 if eight_bits else 1)

    def clipped(self, numbers: Array, dtype: np.dtype[Any]) -> Array:
        """Return `numbers` brought inside the domain, as `dtype`."""
        if dtype.kind in "iub" or "int" in dtype.name:
            whole = np.clip(np.rint(numbers), *self.bounds(dtype))
            nearest = (
                np.asarray(self.choices)[np.abs(whole[..., None] - self.choices).argmin(-1)] if self.choices else whole
            )
            return np.asarray(nearest).astype(dtype)
        top = float(_finfo(dtype).max)
        return np.clip(numbers, self._above(-top), top if self.high is None else self.high).astype(dtype)

    def draw(self, generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return random numbers of the domain: floats standard normal where nothing limits them, else uniform."""
        if self.fixed is not None:
            # One number stands for all, also where there is no axis.
            numbers = self.fixed[0] if len(self.fixed) == 1 else self.fixed
            return np.broadcast_to(np.asarray(numbers), shape).astype(dtype)
        if dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name):
            return self._floats(generator, shape).astype(dtype)
        if self.choices:
            return generator.choice(np.asarray(self.choices), shape).astype(dtype)
        low, high = self.bounds(dtype)
        return generator.integers(low, high + 1, shape).astype(dtype)

    def _floats(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        if self.low is None and self.high is None:
            return np.asarray(generator.standard_normal(shape))
        low = self._above(min(0.0, self.high or 0.0) - 1)
        return np.asarray(generator.uniform(low, low + 1 if self.high is None else self.high, shape))

    def _above(self, otherwise: float) -> float:
        return otherwise if self.low is None else self.low


_NO_NUMBERS = {ir.DataType.STRING, ir.DataType.UNDEFINED}


def holds(dtype: ir.DataType, low: float, high: float) -> bool:
    """Return whether numbers from `low` to below `high` can be drawn as elements of `dtype`."""
    if dtype in _NO_NUMBERS:
        return True
    numbers = np.dtype(dtype.numpy())
    if numbers.kind in "fV" and dtype.is_floating_point():
        top = float(_finfo(numbers).max)
        return -top <= low and high <= top
    if dtype.is_integer():
        bits, signed = dtype.bitwidth, dtype.is_signed()
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2 ** min(bits, 63))
        return least <= low and high <= most
    return True


def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.kind != "V" and dtype.itemsize >= 2:
        return np.finfo(dtype)
    import ml_dtypes

    finfo: Callable[[Any], Any] = ml_dtypes.finfo
    return finfo(dtype)
