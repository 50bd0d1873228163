"""Operators that normalise rows, channels or groups."""

from __future__ import annotations

import math

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, broadcast, links_of
from onnxtile.operators.row import (
    FIRST,
    NO_PRODUCTS,
    NOT_STANDARD,
    Family,
    Operations,
    Operator,
    each,
)


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

FAMILY = Family(
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
