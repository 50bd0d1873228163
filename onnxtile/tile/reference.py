"""What a product or a convolution comes to in float64, or exactly, computed by numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxtile.runtime import Array
from onnxtile.tile.alone import name_of
from onnxtile.tile.conv.layer import Convolution
from onnxtile.tile.conv.reference import convolve
from onnxtile.tile.layers import Layer
from onnxtile.tile.product import Operand, Product


@dataclass(frozen=True)
class Reference:
    """A layer in float64, and the size of each of its elements."""

    result: Array
    size: Array

    @classmethod
    def of(cls, layer: Layer, feeds: Mapping[str, Array]) -> Reference:
        """Return what `layer` comes to on these operands, by name."""
        with np.errstate(all="ignore"):
            return (
                cls._of_convolution(layer, feeds) if isinstance(layer, Convolution) else cls._of_product(layer, feeds)
            )

    @classmethod
    def _of_product(cls, product: Product, feeds: Mapping[str, Array]) -> Reference:
        a, b, c = _factors(product, feeds, np.float64)
        alpha = float(np.float32(product.alpha))
        result = alpha * (a @ b) + c
        size = np.sqrt(alpha**2 * ((a * a) @ (b * b)) + c * c)
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
    a, b, c = _factors(product, feeds, product.dtype.numpy())
    result: Array = np.asarray(a @ b + c).astype(product.dtype.numpy())
    return result


def _factors(product: Product, feeds: Mapping[str, Array], dtype: Any) -> tuple[Array, Array, Array]:
    a, b = (_above_zero(o, feeds, dtype) for o in (product.a, product.b))
    a, b = (x.T if o.transposed else x for x, o in ((a, product.a), (b, product.b)))
    if product.bias is None or not product.adds_bias:
        return a, b, np.zeros((), dtype)
    beta = np.asarray(np.float32(product.bias.beta)).astype(dtype)
    return a, b, np.asarray(beta * feeds[name_of(product.bias.value)].astype(dtype))


def _above_zero(operand: Operand, feeds: Mapping[str, Array], dtype: Any) -> Array:
    array = feeds[name_of(operand.value)].astype(dtype)
    if operand.zero is None:
        return array
    return np.asarray(array - feeds[name_of(operand.zero.value)].astype(dtype))
