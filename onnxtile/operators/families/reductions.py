"""Operators that reduce windows, images or axes, accumulate along an axis, or normalise."""

from __future__ import annotations

import math
from dataclasses import replace

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, broadcast, links_of, sliding
from onnxtile.operators.table import (
    COMPUTED,
    FIRST,
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


def along_reduced(view: NodeView, position: int, axis: int) -> AxisLinks:
    """A part of a reduced axis makes a part of the sum, the product or the extreme."""
    if position or axis not in reduced_axes(view):
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


# Operators that normalise rows, channels or groups.


def summed_rows(view: NodeView, axis: int) -> AxisLinks:
    """Operators that normalise the last axis of sums or products of operands; scales and biases are read whole."""
    if axis == len(view.result) - 1:
        raise NotApplicable("it normalises along this axis")
    return tuple(link if len(view.sizes(index) or ()) > 1 else None for index, link in enumerate(broadcast(view, axis)))


def normalised_channels(view: NodeView, axis: int) -> AxisLinks:
    """BatchNormalization in inference: the statistics of a channel are constants."""
    if view.integer("training_mode", 0) or view.has_several_results:
        raise NotApplicable("it computes statistics")
    if view.opset < 9 and not view.integer("spatial", 1):
        raise NotApplicable("its statistics are not one for each channel")
    return (AxisLink(axis), *(AxisLink(0) if axis == 1 else None for _ in view.inputs[1:]))


def over_channels(_view: NodeView, axis: int) -> AxisLinks:
    """LRN: all but neighbouring channels are apart."""
    if axis == 1:
        raise NotApplicable("it reads neighbouring channels")
    return (AxisLink(axis),)


def along_axis(view: NodeView, axis: int) -> AxisLinks:
    """Softmax and its kin: along one axis, before opset 13 along all axes from that one on."""
    rank = len(view.result)
    chosen = view.integer("axis", -1 if view.opset >= 13 else 1) % rank
    if axis == chosen or (view.opset < 13 and axis > chosen):
        raise NotApplicable("it normalises along this axis")
    return (AxisLink(axis),)


def one_axis(view: NodeView, axis: int) -> AxisLinks:
    """LpNormalization: all axes but one."""
    if axis == view.integer("axis", -1) % len(view.result):
        raise NotApplicable("it normalises along this axis")
    return (AxisLink(axis),)


def from_axis(view: NodeView, axis: int) -> AxisLinks:
    """Layer normalisations: the axes before those that are normalised."""
    if axis >= view.integer("axis", -1) % len(view.result):
        raise NotApplicable("it normalises along this axis")
    return links_of(view, AxisLink(axis))


def instances(view: NodeView, axis: int) -> AxisLinks:
    """InstanceNormalization: all of a channel; GroupNormalization: all of several."""
    if axis > 1 or (axis == 1 and view.node.op_type != "InstanceNormalization"):
        raise NotApplicable("it normalises along this axis")
    return (AxisLink(axis), *(AxisLink(0) if axis == 1 else None for _ in view.inputs[1:]))


def along_axes(view: NodeView, axis: int) -> AxisLinks:
    """MeanVarianceNormalization: the axes over which no mean is taken."""
    rank = len(view.result)
    if axis in {number % rank for number in view.ints("axes", (0, 2, 3))}:
        raise NotApplicable("it normalises along this axis")
    return (AxisLink(axis),)


_NORM, _ROOT_MEAN = 5, 3
"""Mean, difference, square, mean and quotient; square, mean and quotient. A scale and a shift are one more each."""


_ROW = 2
"""Epsilon and the root."""


_SQUARES = {"RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization"}


def batch_operations(view: NodeView) -> int:
    """Count one product and one addition an element: mean, variance, scale and shift are constants, which fold into two."""
    if view.integer("training_mode", 0):
        raise NotApplicable("no rule counts a BatchNormalization in training mode")
    return 2 * view.elements()


def layer_operations(view: NodeView) -> int:
    """Count layer normalisations and those by the root of mean squares."""
    sizes, operations = view.operand(0), _ROOT_MEAN if view.operator in _SQUARES else _NORM
    scaled = view.has(1) + (view.has(2) and view.operator not in _SQUARES)
    rows = math.prod(sizes[: _axis(view, len(sizes))])
    return math.prod(sizes) * (operations + scaled) + rows * _ROW


def skip_operations(view: NodeView) -> int:
    """Count those of onnxruntime that add a second input first: input, skip, scale, shift (not of root means), bias."""
    squares = "Simplified" in view.node.op_type
    scale, bias = (2, 3) if squares else (2, 4)
    shift = 0 if squares else view.has(3)
    each = 1 + (_ROOT_MEAN if squares else _NORM) + view.has(scale) + shift + view.has(bias)
    return view.read() * each + math.prod(view.operand(0)[:-1]) * _ROW


def group_operations(view: NodeView) -> int:
    """Count normalisations of images over each channel, or each of `num_groups`."""
    sizes = view.operand(0)
    rows = sizes[0] * view.integer("num_groups", sizes[1])
    return math.prod(sizes) * (_NORM + 2) + rows * _ROW


def local_operations(view: NodeView) -> int:
    """Count LRN: a square, a sum of `size` squares, a product, an addition, a power and a quotient."""
    return view.elements() * (view.integer("size") + 5)


def norm_operations(view: NodeView) -> int:
    """Count LpNormalization: an absolute value or a square, a sum and a quotient, and a root for each row of squares."""
    rows = view.elements() // max(view.operand(0)[_axis(view, len(view.operand(0)))], 1)
    return 3 * view.elements() + (rows if view.integer("p", 2) == 2 else 0)


def mean_variance_operations(view: NodeView) -> int:
    """Count those over any axes."""
    sizes = view.operand(0)
    axes = {axis % len(sizes) for axis in view.node.attributes.get_ints("axes", (0, 2, 3))}
    rows = math.prod(size for axis, size in enumerate(sizes) if axis not in axes)
    return math.prod(sizes) * _NORM + rows * _ROW


def _axis(view: NodeView, rank: int) -> int:
    axis = view.integer("axis", -1)
    return axis + rank if axis < 0 else axis


_BY_ROW = Operator(over=FIRST, reads=from_axis, work=Operations(layer_operations), saves=saves.first)
_OF_RUNTIME = Operator(name=f"{MICROSOFT}::", over=FIRST, reads=reasons.OPTIMISED, work=NO_PRODUCTS)

NORMALISATION = Family(
    "normalisation",
    (
        *_BY_ROW.rows(
            "BatchNormalization",
            reads=normalised_channels,
            work=Operations(batch_operations),
            takes={4: takes.between(0.1, 2)},
            quantised=reasons.FLOAT_SCALE,
        ),
        *_BY_ROW.rows(
            "GroupNormalization InstanceNormalization",
            reads=instances,
            work=Operations(group_operations),
            quantised=reasons.FLOAT_SCALE,
        ),
        *_BY_ROW.rows("Hardmax", over=reasons.READ_AGAIN, reads=along_axis, work=each(1), saves=saves.stops),
        *_BY_ROW.rows(
            "LRN",
            over=reasons.WINDOW,
            reads=over_channels,
            work=Operations(local_operations),
            saves=saves.first_and_result,
        ),
        *_BY_ROW.rows(
            "LayerNormalization RMSNormalization SimplifiedLayerNormalization", quantised=reasons.FLOAT_SCALE
        ),
        *_BY_ROW.rows("LogSoftmax Softmax", reads=along_axis, work=each(5), saves=saves.result),
        *_BY_ROW.rows("LpNormalization", reads=one_axis, work=Operations(norm_operations)),
        *_BY_ROW.rows("MeanVarianceNormalization", reads=along_axes, work=Operations(mean_variance_operations)),
        *_OF_RUNTIME.rows("BiasSoftmax GroupNorm SkipGroupNorm", over=reasons.NO_KERNEL, reads=reasons.NO_KERNEL),
        *_OF_RUNTIME.rows("BranchwiseRMSNorm LinearAttentionGate", quantised=reasons.FLOAT_SCALE),
        *_OF_RUNTIME.rows("EngramGate", over=reasons.SUM, work=reasons.NOT_COUNTED, quantised=reasons.FLOAT_SCALE),
        *_OF_RUNTIME.rows("GatedRMSNorm", over=frozenset({0, 2}), reads=summed_rows, quantised=reasons.FLOAT_SCALE),
        *_BY_ROW.rows(
            "LayerNormalization SimplifiedLayerNormalization",
            domain=MICROSOFT,
            over=reasons.NO_KERNEL,
            reads=reasons.NO_KERNEL,
            saves=NOT_STANDARD,
        ),
        *_OF_RUNTIME.rows(
            "SkipLayerNormalization SkipSimplifiedLayerNormalization",
            over=frozenset({0, 1}),
            over_each=True,
            reads=summed_rows,
            work=Operations(skip_operations),
        ),
    ),
)
