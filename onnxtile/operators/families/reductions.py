"""Operators that reduce windows, images or axes to fewer elements, or accumulate along an axis."""

from __future__ import annotations

import math
from dataclasses import replace

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, links_of, sliding
from onnxtile.operators.row import (
    COMPUTED,
    NO_PRODUCTS,
    NOT_STANDARD,
    SELECTING,
    Family,
    Folding,
    Operations,
    Operator,
    each,
)


def pooled(view: NodeView, axis: int) -> AxisLinks:
    """Pooling: rows and columns read windows."""
    if view.has_several_results:
        raise NotApplicable("it also gives the places of its results")
    if axis < 2:
        return (AxisLink(axis),)
    slide = sliding(view, axis, view.ints("kernel_shape", ()))
    counted = view.node.op_type.endswith("AveragePool") and view.integer("count_include_pad", 0)
    if counted and view.integer("ceil_mode", 0):
        raise NotApplicable("it counts its padding, and its last window reaches over it")
    last = slide.window(slice(view.result[axis] - 1, view.result[axis]))
    if max(slide.before, last.after) >= slide.reach:
        raise NotApplicable("a window reads padding only")
    return (AxisLink(axis, slide),)


def whole_images(_view: NodeView, axis: int) -> AxisLinks:
    """Global pooling: batches and channels are apart."""
    if axis > 1:
        raise NotApplicable("it reads the whole of this axis")
    return (AxisLink(axis),)


def reduced_axes(view: NodeView) -> frozenset[int]:
    """Return the axes that a reduction goes over; none where it leaves its operand as it is."""
    rank = len(view.operand(0))
    axes = view.numbers(1) if len(view.inputs) > 1 else view.ints("axes", ())
    if not axes and view.integer("noop_with_empty_axes", 0):
        return frozenset()
    return frozenset(int(number) % rank for number in axes) if axes else frozenset(range(rank))


def reduced(view: NodeView, axis: int) -> AxisLinks:
    """The axes that are not reduced stay in their order; without keepdims the result has no others."""
    rank, reduced = len(view.operand(0)), reduced_axes(view)
    left = range(rank) if view.integer("keepdims", 1) else [number for number in range(rank) if number not in reduced]
    if left[axis] in reduced:
        raise NotApplicable("it reduces this axis")
    return links_of(view, AxisLink(left[axis]))


def along_reduced(view: NodeView, place: int, axis: int) -> AxisLinks:
    """A part of a reduced axis makes a part of the sum, the product or the extreme."""
    if place or axis not in reduced_axes(view):
        raise NotApplicable("it does not reduce this axis")
    return links_of(view, AxisLink(axis))


def along_images(_view: NodeView, _place: int, axis: int) -> AxisLinks:
    """A part of the rows or columns of an image makes a part of what global pooling sums up or compares."""
    if axis < 2:
        raise NotApplicable("it does not reduce this axis")
    return (AxisLink(axis),)


def chosen_places(view: NodeView, axis: int) -> AxisLinks:
    """ArgMax and its kin: one axis is reduced to the place of an element."""
    rank = len(view.operand(0))
    chosen = view.integer("axis", 0) % rank
    left = [other for other in range(rank) if view.integer("keepdims", 1) or other != chosen]
    if left[axis] == chosen:
        raise NotApplicable("it reduces this axis")
    return (AxisLink(left[axis]),)


def accumulated(view: NodeView, axis: int) -> AxisLinks:
    """CumSum and its kin: each element is made of those before it along one axis."""
    axes = view.numbers(1)
    if axes is None or axis == int(axes[0]) % len(view.result):
        raise NotApplicable("it accumulates along this axis")
    return links_of(view, AxisLink(axis))


def pooling_operations(view: NodeView) -> int:
    """Count the elements of the kernel for each element of the result, also where it reaches into padding."""
    kernel = view.node.attributes.get_ints("kernel_shape", None)
    if kernel is None:
        raise NotApplicable(f"{view.node.op_type} does not give 'kernel_shape'")
    # The powers of LpPool, and the root of their sum.
    each = 2 * math.prod(kernel) + 1 if view.operator == "LpPool" else math.prod(kernel)
    return view.elements() * each


def reduction(each_read: int, each_made: int) -> Operations:
    """Return the rule of so many operations for each element of the operand, and for each of the result.

    A mean has its division in the place of the addition that a sum of n has not.
    """

    def count(view: NodeView) -> int:
        if view.integer("noop_with_empty_axes", 0) and not view.has(1):
            raise NotApplicable(f"no rule counts a {view.operator} without axes that leaves its input as it is")
        return each_read * view.read() + each_made * view.elements()

    return Operations(count)


_REDUCING = Operator(
    over=reasons.SMALLER,
    reads=reduced,
    work=reduction(1, 0),
    saves=saves.nothing,
    shaped_by=(1,),
    takes={1: takes.first_axes},
)
_EXTREME = replace(_REDUCING, saves=saves.first_and_result, numbers=SELECTING)
_SUM = Folding("Add", along_reduced)
_POOLING = Operator(
    slides=True, over=reasons.WINDOW, reads=pooled, work=Operations(pooling_operations), saves=saves.nothing
)
_OVER_IMAGES = Operator(over=reasons.SMALLER, reads=whole_images, work=reduction(1, 0), saves=saves.nothing)
_ACCUMULATING = Operator(
    over=reasons.READ_AGAIN, reads=accumulated, work=each(1), saves=saves.nothing, takes={1: takes.always(0)}
)

FAMILY = Family(
    "reductions",
    (
        *_OVER_IMAGES.rows("ArgMax ArgMin", over=reasons.OTHER_SIZE, reads=chosen_places, saves=saves.stops),
        *_POOLING.rows("AveragePool"),
        *_ACCUMULATING.rows("CumProd", set_by=(1,), saves=saves.first_and_result),
        *_ACCUMULATING.rows("CumSum", set_by=(1,), numbers=COMPUTED),
        *_OVER_IMAGES.rows("GlobalAveragePool"),
        *_OVER_IMAGES.rows("GlobalLpPool", work=reduction(2, 1), saves=saves.everything),
        *_OVER_IMAGES.rows("GlobalMaxPool", saves=saves.first, folds=Folding("Max", along_images)),
        *_POOLING.rows("LpPool", saves=saves.everything),
        *_POOLING.rows("MaxPool", saves=saves.first),
        *_REDUCING.rows("ReduceL1 ReduceSumSquare", work=reduction(2, 0), saves=saves.first, folds=_SUM),
        *_REDUCING.rows("ReduceL2", work=reduction(2, 1), saves=saves.first_and_result),
        *_REDUCING.rows("ReduceLogSum", work=reduction(1, 1), saves=saves.first_and_result),
        *_REDUCING.rows("ReduceLogSumExp", work=reduction(4, 2), saves=saves.first_and_result),
        *_EXTREME.rows("ReduceMax", folds=Folding("Max", along_reduced)),
        *_REDUCING.rows("ReduceMean"),
        *_EXTREME.rows("ReduceMin", folds=Folding("Min", along_reduced)),
        *_EXTREME.rows("ReduceProd", folds=Folding("Mul", along_reduced)),
        *_REDUCING.rows("ReduceSum", numbers=SELECTING, folds=_SUM, takes={0: takes.counted_mask, 1: takes.first_axes}),
        *_POOLING.rows(
            "MaxpoolWithMask", domain=MICROSOFT, reads=reasons.OPTIMISED, work=NO_PRODUCTS, saves=NOT_STANDARD
        ),
        *_POOLING.rows("NhwcMaxPool", domain=MICROSOFT, reads=reasons.OPTIMISED, saves=NOT_STANDARD),
    ),
)
