"""A convolution in float64, element of the kernel by element of the kernel."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np

from onnxtile.runtime import Array
from onnxtile.tiling.contraction import Contraction
from onnxtile.tiling.sliding import SlidingAxis


def convolve(contraction: Contraction, x: Array, w: Array) -> Array:
    """Return `x` (batch, channels, spatial ...) convolved with `w`, both float64, without the bias."""
    slides = [slide.over(size) for slide, size in zip(contraction.sliding, x.shape[2:], strict=True)]
    outs = [slide.out for slide in slides if isinstance(slide.out, int)]
    batch, groups = x.shape[0], contraction.groups
    channels, filters = x.shape[1] // groups, contraction.filters
    assert isinstance(filters, int)
    grouped = x.reshape(batch, groups, channels, *x.shape[2:])
    # Weights as (groups, output channels, input channels, kernel ...).
    weights = w.reshape(groups, -1, *w.shape[1:])
    weights = weights.swapaxes(1, 2) if contraction.groups_in_k else weights
    result = np.zeros((batch, groups, weights.shape[1], *outs))
    for place in product(*(range(slide.kernel) for slide in slides)):
        pairs = [_meeting(slide, j) for slide, j in zip(slides, place, strict=True)]
        sources: tuple[Any, ...] = (..., *(source for source, _ in pairs))
        targets: tuple[Any, ...] = (..., *(target for _, target in pairs))
        element: tuple[Any, ...] = (..., *place)
        part = grouped[sources]
        sizes = part.shape[3:]
        flat = weights[element] @ part.reshape(batch, groups, channels, prod(sizes))
        result[targets] += flat.reshape(batch, groups, filters, *sizes)
    return result.reshape(batch, -1, *outs)


def _meeting(slide: SlidingAxis, j: int) -> tuple[slice, slice]:
    """Return which inputs the kernel's element `j` takes to which outputs, as ranges of the same length."""
    assert isinstance(slide.size, int) and isinstance(slide.out, int)
    shift = j * slide.dilation - slide.before
    few, many = (slide.size, slide.out) if slide.transposed else (slide.out, slide.size)
    # Element i of the few meets element i·stride + shift of the many, where that exists.
    first = max(-(shift // slide.stride), 0)
    count = max(min((many - 1 - shift) // slide.stride, few - 1) - first + 1, 0)
    start = first * slide.stride + shift
    one = slice(first, first + count)
    other = slice(start, start + (count - 1) * slide.stride + 1, slide.stride) if count else slice(0, 0)
    return (one, other) if slide.transposed else (other, one)
