"""Reasons why a contraction cannot be cut as the limits ask."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import numpy as np

from onnxtile.tiling.contraction import Contraction, TensorOperand
from onnxtile.tiling.element_types import FLOATS
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.tensors import WITHIN, NotTiled
from onnxtile.tiling.tileable import TilingFacts

_MOST_PRODUCTS = 2**60
"""Of one matrix product: years of work for any machine."""


def require_cuttable(contraction: Contraction, limits: Limits, facts: TilingFacts, operator: str) -> None:
    """Raise NotTiled, with the reason, where `contraction`, of an `operator`, cannot be cut within `limits`, whatever the tile."""
    if contraction.windows:
        _require_asked(contraction, limits, operator)
    _require_countable(contraction)
    _require_dtypes((contraction.left, contraction.right), limits)
    if contraction.windows:
        _require_window_limits(limits, operator)
    if limits.asks_for_choice:
        _require_batch(contraction, facts)
    _require_known(contraction, limits, facts)


def _require_countable(contraction: Contraction) -> None:
    """Raise NotTiled where the products are too many to be computed at all: numbers of tiles are counted in 64 bits."""
    sizes = [size for size in (contraction.m, contraction.k, contraction.n) if isinstance(size, int)]
    if prod(sizes) > _MOST_PRODUCTS:
        raise NotTiled(f"its sizes {' x '.join(map(str, sizes))} are more than any machine multiplies")


def _require_asked(contraction: Contraction, limits: Limits, operator: str) -> None:
    """Raise NotTiled for a convolution where the limits do not request that convolutions are cut."""
    if limits.window is not None:
        return
    sizes = (contraction.m, contraction.k, contraction.n)
    within = all(
        bound is None or (isinstance(size, int) and size <= bound)
        for size, bound in zip(sizes, limits.bounds, strict=True)
    )
    if within and not limits.asks_for_choice:
        raise NotTiled(WITHIN)
    raise NotTiled(f"convolutions are cut only on request: --conv, or [operator.{operator}] in the limits file")


def _require_window_limits(limits: Limits, operator: str) -> None:
    """Raise NotTiled where the limits need tiles that a convolution cannot be cut into."""
    if limits.pad:
        raise NotTiled(
            "a convolution is not filled up to tiles of one size (pad = true): "
            f"[operator.{operator}] with pad = false in the limits file has it cut"
        )
    if limits.multiples[0] > 1:
        raise NotTiled("the rows and columns of a convolution are not cut into multiples")


def _require_dtypes(factors: Iterable[TensorOperand], limits: Limits) -> None:
    """Raise NotTiled where the limits do not have the element type of a factor."""
    for operand in factors:
        name = np.dtype(operand.dtype.numpy()).name
        if limits.dtypes is not None and name not in limits.dtypes:
            raise NotTiled(
                f"the limits are for {', '.join(sorted(limits.dtypes))}, and {operand.value.name!r} is {name}"
            )


def _require_batch(contraction: Contraction, facts: TilingFacts) -> None:
    """Raise NotTiled, with the dimension to bind, where the size of a batch, and so its memory, is not known."""
    for operand, batch in zip((contraction.left, contraction.right), contraction.batches, strict=False):
        for axis, size in enumerate(batch):
            if not isinstance(size, int):
                raise NotTiled(facts.unknown(operand.value, axis))


def _require_known(contraction: Contraction, limits: Limits, facts: TilingFacts) -> None:
    """Raise NotTiled, with the dimension to bind, where a limit holds for an axis of unknown size."""
    left, right = contraction.left, contraction.right
    bounds = contraction.bounds(limits)
    cut = [bound is not None or limits.needs_size(0) for bound in bounds.sliding]
    for axis, sliding, is_cut in zip(contraction.left_axes, contraction.sliding, cut, strict=True):
        # Where one axis is cut, the window of a tile says where it lies along the other, too.
        if any(cut) and axis is not None and not sliding.is_known:
            raise NotTiled(facts.unknown(left.value, axis))
        if is_cut and limits.asks_for_choice:
            sliding.require_reachable()
    if limits.needs_size(1) and not isinstance(contraction.channels, int):
        places = [(left.value, left.stored_axis(1)), (right.value, right.stored_axis(0))]
        raise NotTiled(facts.unknown(*next((place for place in places if facts.can_bind(*place)), places[0])))
    if limits.needs_size(2) and not isinstance(contraction.filters, int):
        raise NotTiled(facts.unknown(right.value, right.stored_axis(1)))


def require_fillable(contraction: Contraction, filled: tuple[bool, bool, bool], facts: TilingFacts) -> None:
    """Raise NotTiled where a tile cannot be filled up with zeros; `filled` says along which of M, K and N it would be."""
    m, k, n = filled
    a, b = contraction.left, contraction.right
    axes = [(a, 0, m), (a, 1, k), (b, 0, k), (b, 1, n)]
    if b.zero is not None and b.zero.axes[1] is not None:
        axes.append((b.zero, 1, n))
    for operand, side, fills in axes:
        if fills and operand.axes[side] is None:
            raise NotTiled(f"the vector {operand.value.name!r} cannot be filled up to a matrix")
        if fills and not operand.constant and operand.dtype not in FLOATS and facts.opset < 11:
            raise NotTiled(
                f"opset {facts.opset} cannot fill up {operand.value.name!r}, which is not a float: raise the model to 11"
            )
    if not k or a.zero is None:
        return
    # Where both factors are filled up, one of them must be so with its zero point for the product to stay as it is.
    if a.constant and not a.zero.constant:
        raise NotTiled(
            f"{a.value.name!r} cannot be filled up with the zero point {a.zero.value.name!r}, which is not a constant"
        )
