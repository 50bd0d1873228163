"""What a product or a convolution comes to in float64, or exactly, computed by numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from onnxtile.runtime import Array
from onnxtile.tiling.conv.layer import Convolution
from onnxtile.tiling.conv.reference import convolve
from onnxtile.tiling.layers import Layer
from onnxtile.tiling.node_run import name_of
from onnxtile.tiling.product import Operand, Product

Kept: TypeAlias = dict[tuple[str, bool], tuple[Array, Array]]
"""Constant factors in float64, and their squares, by name and whether they are transposed: what one trial leaves for the next."""


@dataclass(frozen=True)
class Reference:
    """A layer in float64, and the size of each of its elements."""

    result: Array
    size: Array

    @classmethod
    def of(cls, layer: Layer, feeds: Mapping[str, Array], kept: Kept) -> Reference:
        """Return what `layer` comes to on these operands, by name; constants are as they were when `kept` took them up."""
        with np.errstate(all="ignore"):
            if isinstance(layer, Convolution):
                return cls._of_convolution(layer, feeds)
            return cls._of_product(layer, feeds, kept)

    @classmethod
    def _of_product(cls, product: Product, feeds: Mapping[str, Array], kept: Kept) -> Reference:
        (a, aa), (b, bb) = (_squared(operand, feeds, kept) for operand in (product.a, product.b))
        c = _added(product, feeds, np.float64)
        alpha = float(np.float32(product.alpha))
        result = alpha * (a @ b) + c
        size = np.sqrt(alpha**2 * (aa @ bb) + c * c)
        return cls(result, np.maximum(np.abs(result), size))

    @classmethod
    def _of_convolution(cls, layer: Convolution, feeds: Mapping[str, Array]) -> Reference:
        x, w, *bias = (feeds[name_of(operand.value)].astype(np.float64) for operand in layer.operands)
        c = bias[0].reshape(-1, *(1 for _ in layer.slides)) if bias else np.zeros(())
        result = convolve(layer, x, w) + c
        size = np.sqrt(convolve(layer, x * x, w * w) + c * c)
        return cls(result, np.maximum(np.abs(result), size))

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
        off, size = np.abs(wide[finite] - self.result[finite]), self.size[finite]
        relative = np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
        worst = float(relative.max(initial=0.0))
        return worst if np.isfinite(worst) else float("inf")


def exact(product: Product, feeds: Mapping[str, Array]) -> Array:
    """Return the product of integers, which wrap around in numpy as they do in onnxruntime."""
    dtype = product.dtype.numpy()
    a, b = (_factor(operand, feeds, dtype) for operand in (product.a, product.b))
    result: Array = np.asarray(a @ b + _added(product, feeds, dtype)).astype(dtype)
    return result


def _squared(operand: Operand, feeds: Mapping[str, Array], kept: Kept) -> tuple[Array, Array]:
    """Return a factor in float64, and its squares."""
    key = name_of(operand.value), operand.transposed
    if key in kept:
        return kept[key]
    wide = _factor(operand, feeds, np.float64)
    pair = wide, np.asarray(wide * wide)
    if operand.constant:
        kept[key] = pair
    return pair


def _factor(operand: Operand, feeds: Mapping[str, Array], dtype: Any) -> Array:
    """Return a factor as the product reads it, its zero point taken off."""
    array = feeds[name_of(operand.value)].astype(dtype)
    if operand.zero is not None:
        array = array - feeds[name_of(operand.zero.value)].astype(dtype)
    return np.asarray(array.T if operand.transposed else array)


def _added(product: Product, feeds: Mapping[str, Array], dtype: Any) -> Array:
    """Return the bias, times beta; zero where none is read."""
    if product.bias is None or not product.adds_bias:
        return np.zeros((), dtype)
    beta = np.asarray(np.float32(product.bias.beta)).astype(dtype)
    return np.asarray(beta * feeds[name_of(product.bias.value)].astype(dtype))
