"""The result of a contraction in float64, or exact for integers, computed by numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from onnxtile.runtime import Array
from onnxtile.tiling.contraction import Contraction, PackedFactor, TensorOperand
from onnxtile.tiling.convolve import convolve
from onnxtile.tiling.node_run import name_of

ConstantFactors: TypeAlias = dict[tuple[str, bool], tuple[Array, Array]]
"""Constant factors in float64, and their squares, by name and whether they are transposed; one trial keeps them for the next."""


@dataclass(frozen=True)
class Reference:
    """The result of a contraction in float64, and the size of each of its elements."""

    result: Array
    size: Array
    half: float = 0.0
    """Half a step of quantization, by which a rounded result is off its exact value at most."""

    @classmethod
    def of(cls, contraction: Contraction, feeds: Mapping[str, Array], kept: ConstantFactors) -> Reference:
        """Return the result of `contraction` on these operands, by name; constants are as they were when `kept` took them up."""
        with np.errstate(all="ignore"):
            factors = (contraction.left, contraction.right)
            (a, aa), (b, bb) = (_squared(operand, feeds, kept) for operand in factors)
            c = _added(contraction, feeds, np.float64)
            alpha = float(np.float32(contraction.alpha))
            result = alpha * _contracted(contraction, a, b) + c
            size = np.sqrt(alpha**2 * _contracted(contraction, aa, bb) + c * c)
            return cls(result, np.maximum(np.abs(result), size))

    @classmethod
    def of_island(cls, contraction: Contraction, feeds: Mapping[str, Array]) -> Reference:
        """Return the result of a quantised island before it is rounded, saturated where its type ends."""
        how = contraction.requantize
        assert how is not None
        factors = (_factor(operand, feeds, np.float64) for operand in (contraction.left, contraction.right))
        a, b = factors
        total = _contracted(contraction, a, b)
        bias = _added(contraction, feeds, np.float64)
        scales = [feeds[name_of(scale.value)].astype(np.float64) for scale in how.scales]
        factor = scales[0].reshape(()) * _per_column(contraction, scales[1])
        factor = factor if len(scales) < 3 else factor / scales[2].reshape(())
        exact_value = (total + bias) * factor
        size = np.sqrt(_contracted(contraction, a * a, b * b) + bias * bias) * np.abs(factor)
        size = np.maximum(np.abs(exact_value), size)
        if how.y_zero is None:
            return cls(exact_value, size)
        bounds = np.iinfo(how.dtype.numpy())
        shifted = exact_value + float(feeds[name_of(how.y_zero.value)].flat[0])
        return cls(np.clip(shifted, bounds.min, bounds.max), size, 0.5)

    def error(self, got: Array, original: Array) -> float:
        """Return the worst error of `got` relative to the size of its element.

        Where the original is not finite, `got` must be so in the same way; an infinite error is returned where it is not.
        """
        if got.shape != original.shape:
            return float("inf")
        wide, first = got.astype(np.float64), original.astype(np.float64)
        finite = np.isfinite(first)
        if not np.array_equal(wide[~finite], first[~finite], equal_nan=True):
            return float("inf")
        off = np.maximum(np.abs(wide[finite] - self.result[finite]) - self.half, 0.0)
        size = self.size[finite]
        relative = np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
        worst = float(relative.max(initial=0.0))
        return worst if np.isfinite(worst) else float("inf")


def exact(contraction: Contraction, feeds: Mapping[str, Array]) -> Array:
    """Return the contraction of integers, which wrap around in numpy as they do in onnxruntime."""
    dtype = contraction.dtype.numpy()
    a, b = (_factor(operand, feeds, dtype) for operand in (contraction.left, contraction.right))
    total = _contracted(contraction, a, b) + _added(contraction, feeds, dtype)
    result: Array = np.asarray(total).astype(dtype)
    return result


def _contracted(contraction: Contraction, a: Array, b: Array) -> Array:
    return convolve(contraction, a, b) if contraction.windows else np.asarray(a @ b)


def _squared(operand: TensorOperand, feeds: Mapping[str, Array], kept: ConstantFactors) -> tuple[Array, Array]:
    """Return a factor in float64, and its squares."""
    key = name_of(operand.value), operand.transposed
    if key in kept:
        return kept[key]
    wide = _factor(operand, feeds, np.float64)
    pair = wide, np.asarray(wide * wide)
    if operand.constant:
        kept[key] = pair
    return pair


def _factor(operand: TensorOperand, feeds: Mapping[str, Array], dtype: Any) -> Array:
    """Return a factor as the product reads it, its zero point taken off."""
    if operand.packed is not None:
        return _unpacked(operand, operand.packed, feeds)
    array = feeds[name_of(operand.value)].astype(dtype)
    array = np.asarray(array.T if operand.transposed else array)
    if operand.zero is None:
        return array
    zero = feeds[name_of(operand.zero.value)].astype(dtype)
    return np.asarray(array - (zero.flat[0] if operand.zero.axes == (None, None) else zero))


def _unpacked(operand: TensorOperand, how: PackedFactor, feeds: Mapping[str, Array]) -> Array:
    """Return in float64 the K × N elements that MatMulNBits reads."""
    columns, blocks, _ = how.dims
    elements = _elements(feeds[name_of(operand.value)].reshape(columns, blocks, -1), how.bits)
    zeros: Any = float(2 ** (how.bits - 1))
    if how.zeros is not None:
        zeros = feeds[name_of(how.zeros.value)].reshape(columns, -1)
        zeros = (_elements(zeros, how.bits) if how.packs_zeros else zeros.astype(np.float64))[:, :blocks, None]
    scales = feeds[name_of(how.scales.value)].astype(np.float64).reshape(columns, blocks, 1)
    return np.asarray(((elements - zeros) * scales).reshape(columns, -1)[:, : operand.size(0)].T)


def _elements(packed: Array, bits: int) -> Array:
    """Return the elements of so many bits that each byte holds, the lowest first, in float64."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1).astype(np.float64)


def _added(contraction: Contraction, feeds: Mapping[str, Array], dtype: Any) -> Array:
    """Return the bias, times beta; zero where none is read."""
    if contraction.tile_bias is not None:
        bias = feeds[name_of(contraction.tile_bias.value)].astype(dtype)
        return np.asarray(bias.reshape(-1, *(1 for _ in contraction.sliding)))
    if contraction.bias is None or not contraction.adds_bias:
        return np.zeros((), dtype)
    beta = np.asarray(np.float32(contraction.bias.beta)).astype(dtype)
    bias = feeds[name_of(contraction.bias.value)].astype(dtype)
    return np.asarray(beta * (_per_column(contraction, bias) if contraction.windows else bias))


def _per_column(contraction: Contraction, array: Array) -> Array:
    """Return numbers, one for each column or one for all, so that they broadcast to the result."""
    if array.size == 1:
        return array.reshape(())
    return array.reshape(-1, *(1 for _ in contraction.sliding)) if contraction.windows else array
