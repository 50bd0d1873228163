"""The elements of each operand that a range of the output reads, axis by axis, exact for each operator.

A rule is found by the operator's name. Operators without a rule are never cut; tests/operators has the reason for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from onnxtile.fitting.axis_links import AxisLink, AxisLinks, OperatorFacts, Uncut
from onnxtile.fitting.moved_axes import expanded, gathered, padded, reshaped, sliced, spread, stacked
from onnxtile.fitting.quantised_operators import quantised_facts
from onnxtile.fitting.resized_axes import resized
from onnxtile.inspection.work import operator_name
from onnxtile.model.draws import draws
from onnxtile.tiling.sliding import SlidingAxis
from onnxtile.tiling.tensors import NotTiled

AxisRule = Callable[[OperatorFacts, int], AxisLinks]

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast CastLike Ceil Celu Cos Cosh Dropout Elu Erf Exp Floor Gelu "
    "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign "
    "Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
)
_BROADCAST = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or "
    "PRelu Pow Sub Sum Where Xor"
)
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


def links(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Return the link of each operand along `axis` of the first result. Raises Uncut with the reason where it cannot be cut."""
    if draws(facts.node, facts.opset, facts.constants):
        raise Uncut("it draws random numbers")
    plain = quantised_facts(facts)
    name = operator_name(facts.node) if plain is None else plain.plain_type
    rule = _RULES.get(name)
    if rule is None:
        raise Uncut(f"{name.replace('::', '.')} has no rule for cutting")
    if not 0 <= axis < len(facts.result):
        raise Uncut("its result does not have this axis")
    return rule(facts, axis) if plain is None else plain.spread(rule(plain, axis))


def _padded(facts: OperatorFacts, first: Sequence[AxisLink | None]) -> AxisLinks:
    return (*first, *(None for _ in range(len(facts.inputs) - len(first))))


def _unary(facts: OperatorFacts, axis: int) -> AxisLinks:
    if len([value for value in facts.node.outputs if value.name]) > 1:
        raise Uncut("it has several results")
    return _padded(facts, [AxisLink(axis)])


def _broadcast(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Each operand is aligned at its last axis; an operand of size 1 along an axis is read whole."""
    rank, size = len(facts.result), facts.result[axis]
    found: list[AxisLink | None] = []
    for place in range(len(facts.inputs)):
        sizes = () if facts.inputs[place] is None else facts.operand(place)
        own = axis - rank + len(sizes)
        found.append(AxisLink(own) if own >= 0 and sizes[own] == size and size > 1 else None)
    return tuple(found)


def _gated_sum(facts: OperatorFacts, axis: int) -> AxisLinks:
    """GatedAdd: a gate for each row, which a weight may make of a whole row."""
    if len(facts.inputs) > 3 and facts.inputs[3] is not None:
        raise Uncut("it makes its gates of whole rows")
    return _broadcast(facts, axis)


def _beside_rows(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Operators that normalise the last axis of sums or products of operands; scales and biases are read whole."""
    if axis == len(facts.result) - 1:
        raise Uncut("it normalises along this axis")
    return tuple(
        link if len(facts.sizes(place) or ()) > 1 else None for place, link in enumerate(_broadcast(facts, axis))
    )


def _normalised_channels(facts: OperatorFacts, axis: int) -> AxisLinks:
    """BatchNormalization in inference: the statistics of a channel are constants."""
    if facts.integer("training_mode", 0) or len([value for value in facts.node.outputs if value.name]) > 1:
        raise Uncut("it computes statistics")
    if facts.opset < 9 and not facts.integer("spatial", 1):
        raise Uncut("its statistics are not one for each channel")
    return (AxisLink(axis), *(AxisLink(0) if axis == 1 else None for _ in facts.inputs[1:]))


def _over_channels(_facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis == 1:
        raise Uncut("it reads neighbouring channels")
    return (AxisLink(axis),)


def _along(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Softmax and its kin: along one axis, before opset 13 along all axes from that one on."""
    rank = len(facts.result)
    chosen = facts.integer("axis", -1 if facts.opset >= 13 else 1) % rank
    if axis == chosen or (facts.opset < 13 and axis > chosen):
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis),)


def _one_axis(facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis == facts.integer("axis", -1) % len(facts.result):
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis),)


def _from_axis(facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis >= facts.integer("axis", -1) % len(facts.result):
        raise Uncut("it normalises along this axis")
    return _padded(facts, [AxisLink(axis)])


def _instances(facts: OperatorFacts, axis: int) -> AxisLinks:
    """InstanceNormalization: all of a channel; GroupNormalization: all of several."""
    if axis > 1 or (axis == 1 and facts.node.op_type != "InstanceNormalization"):
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis), *(AxisLink(0) if axis == 1 else None for _ in facts.inputs[1:]))


def _along_axes(facts: OperatorFacts, axis: int) -> AxisLinks:
    rank = len(facts.result)
    if axis in {one % rank for one in facts.ints("axes", (0, 2, 3))}:
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis),)


def _accumulated(facts: OperatorFacts, axis: int) -> AxisLinks:
    """CumSum and its kin: each element is made of those before it along one axis."""
    own = facts.numbers(1)
    if own is None or axis == int(own[0]) % len(facts.result):
        raise Uncut("it accumulates along this axis")
    return _padded(facts, [AxisLink(axis)])


def _rotated(facts: OperatorFacts, axis: int) -> AxisLinks:
    """RotaryEmbedding: a row of a head is read as a whole, with the cosines and sines of its position."""
    rank = len(facts.result)
    if axis == rank - 1:
        raise Uncut("it reads the whole of this axis")
    # [batch, heads, tokens, head] or [batch, tokens, heads of a row].
    own = {0: 0, rank - 2: 1}.get(axis)
    has_places = len(facts.inputs) > 3 and facts.inputs[3] is not None
    table = None if own is None or has_places else AxisLink(own)
    places = (AxisLink(own) if own is not None else None,) if has_places else ()
    return _padded(facts, [AxisLink(axis), table, table, *places])


def _repeated(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Tile: along an axis that is not repeated."""
    counts = facts.numbers(1)
    if counts is None or len(counts) != len(facts.result) or int(counts[axis]) != 1:
        raise Uncut("it repeats its operand along this axis")
    return _padded(facts, [AxisLink(axis)])


def _sliding(facts: OperatorFacts, axis: int, kernel: Sequence[int], *, transposed: bool = False) -> SlidingAxis:
    """Return the windows along the spatial `axis`, for an operand of known sizes."""
    rank, at = len(kernel), axis - 2
    pads, strides = facts.ints("pads", [0] * 2 * rank), facts.ints("strides", [1] * rank)
    dilations, extra = facts.ints("dilations", [1] * rank), facts.ints("output_padding", [0] * rank)
    if len(pads) != 2 * rank or len(strides) != rank or min(pads) < 0:
        raise Uncut("its pads or strides do not fit its rank")
    wanted = facts.ints("output_shape", [0] * rank)[-rank:] if "output_shape" in facts.node.attributes else None
    slide = SlidingAxis(
        kernel=kernel[at],
        stride=strides[at],
        dilation=dilations[at],
        before=pads[at],
        after=pads[rank + at],
        output_padding=extra[at],
        auto=facts.node.attributes.get_string("auto_pad", "NOTSET"),
        wanted=None if wanted is None else wanted[at],
        transposed=transposed,
    )
    try:
        # With ceil_mode the last window may reach over the padding.
        return replace(slide.over(facts.operand(0)[axis]), out=facts.result[axis])
    except NotTiled as error:
        raise Uncut(str(error)) from error


def _conv(facts: OperatorFacts, axis: int) -> AxisLinks:
    kernel, groups = facts.operand(1), facts.integer("group", 1)
    has_bias = len(facts.inputs) > 2
    if axis == 1:
        depthwise = groups > 1 and kernel[0] == groups and kernel[1] == 1
        if groups > 1 and not depthwise:
            raise Uncut("its groups have several channels")
        bias = (AxisLink(0),) if has_bias else ()
        return (AxisLink(1) if depthwise else None, AxisLink(0), *bias)
    if axis == 0:
        return _padded(facts, [AxisLink(0)])
    return _padded(facts, [AxisLink(axis, _sliding(facts, axis, kernel[2:]))])


def _conv_transpose(facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis == 1:
        raise Uncut("its output channels are not cut")
    if axis == 0:
        return _padded(facts, [AxisLink(0)])
    return _padded(facts, [AxisLink(axis, _sliding(facts, axis, facts.operand(1)[2:], transposed=True))])


def _pool(facts: OperatorFacts, axis: int) -> AxisLinks:
    if len([value for value in facts.node.outputs if value.name]) > 1:
        raise Uncut("it also gives the places of its results")
    if axis < 2:
        return (AxisLink(axis),)
    slide = _sliding(facts, axis, facts.ints("kernel_shape", ()))
    counted = facts.node.op_type.endswith("AveragePool") and facts.integer("count_include_pad", 0)
    if counted and facts.integer("ceil_mode", 0):
        raise Uncut("it counts its padding, and its last window reaches over it")
    last = slide.window(slice(facts.result[axis] - 1, facts.result[axis]))
    if max(slide.before, last.after) >= slide.reach:
        raise Uncut("a window reads padding only")
    return (AxisLink(axis, slide),)


def _global_pool(_facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis > 1:
        raise Uncut("it reads the whole of this axis")
    return (AxisLink(axis),)


def _reduced(facts: OperatorFacts, axis: int) -> AxisLinks:
    """The axes that are not reduced stay in their order; without keepdims the result has no others."""
    rank = len(facts.operand(0))
    axes = facts.numbers(1) if len(facts.inputs) > 1 else facts.ints("axes", ())
    if not axes and facts.integer("noop_with_empty_axes", 0):
        return _padded(facts, [AxisLink(axis)])
    reduced = {int(one) % rank for one in axes} if axes else set(range(rank))
    left = range(rank) if facts.integer("keepdims", 1) else [one for one in range(rank) if one not in reduced]
    if left[axis] in reduced:
        raise Uncut("it reduces this axis")
    return _padded(facts, [AxisLink(left[axis])])


def _chosen(facts: OperatorFacts, axis: int) -> AxisLinks:
    """ArgMax and its kin: one axis is reduced to the place of an element."""
    rank = len(facts.operand(0))
    own = facts.integer("axis", 0) % rank
    left = [one for one in range(rank) if facts.integer("keepdims", 1) or one != own]
    if left[axis] == own:
        raise Uncut("it reduces this axis")
    return (AxisLink(left[axis]),)


def _joined(facts: OperatorFacts, axis: int) -> AxisLinks:
    if facts.integer("axis", 1 if facts.opset < 4 else 0) % len(facts.result) == axis:
        raise Uncut("it joins its operands along this axis")
    return tuple(AxisLink(axis) for _ in facts.inputs)


def _split(facts: OperatorFacts, axis: int) -> AxisLinks:
    if facts.integer("axis", 0) % len(facts.result) == axis:
        raise Uncut("it splits its operand along this axis")
    return _padded(facts, [AxisLink(axis)])


def _transposed(facts: OperatorFacts, axis: int) -> AxisLinks:
    rank = len(facts.result)
    return (AxisLink(facts.ints("perm", range(rank)[::-1])[axis]),)


def _matmul(facts: OperatorFacts, axis: int) -> AxisLinks:
    left, right, rank = facts.operand(0), facts.operand(1), len(facts.result)
    if len(left) < 2 or len(right) < 2:
        raise Uncut("it multiplies a vector")
    if axis == rank - 1:
        return (None, AxisLink(len(right) - 1))
    if axis == rank - 2:
        return (AxisLink(len(left) - 2), None)
    found = []
    for sizes in (left, right):
        own = axis - rank + len(sizes)
        found.append(AxisLink(own) if own >= 0 and sizes[own] > 1 else None)
    return tuple(found)


def _gemm(facts: OperatorFacts, axis: int) -> AxisLinks:
    place = axis  # rows come from A, columns from B
    turned = facts.integer("transA" if place == 0 else "transB", 0)
    factors: list[AxisLink | None] = [None, None]
    factors[place] = AxisLink(1 - axis if turned else axis)
    sizes = facts.sizes(2)
    if sizes is None:
        return _padded(facts, factors)
    own = axis - 2 + len(sizes)
    return (*factors, AxisLink(own) if own >= 0 and sizes[own] > 1 else None)


def _quantised(facts: OperatorFacts, axis: int) -> AxisLinks:
    scale = facts.operand(1)
    if prod(scale) > 1 and (facts.integer("block_size", 0) or len(scale) != 1):
        raise Uncut("it has a scale for each block")
    per_axis = prod(scale) > 1 and facts.integer("axis", 1) % len(facts.result) == axis
    return (AxisLink(axis), *(AxisLink(0) if per_axis else None for _ in facts.inputs[1:]))


_RULES: dict[str, AxisRule] = {
    **dict.fromkeys(_UNARY.split(), _unary),
    **dict.fromkeys(_BROADCAST.split(), _broadcast),
    **dict.fromkeys(["MaxPool", "AveragePool", "LpPool"], _pool),
    **dict.fromkeys(["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"], _global_pool),
    **dict.fromkeys(_REDUCTIONS.split(), _reduced),
    **dict.fromkeys(["ArgMax", "ArgMin"], _chosen),
    **dict.fromkeys(["Reshape", "Flatten", "Squeeze", "Unsqueeze"], reshaped),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], _along),
    **dict.fromkeys(["LpNormalization"], _one_axis),
    "Slice": sliced,
    "Pad": padded,
    "Expand": expanded,
    "Gather": gathered,
    "DepthToSpace": spread,
    "SpaceToDepth": stacked,
    **dict.fromkeys(["LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"], _from_axis),
    **dict.fromkeys(["InstanceNormalization", "GroupNormalization"], _instances),
    "MeanVarianceNormalization": _along_axes,
    **dict.fromkeys(["CumSum", "CumProd"], _accumulated),
    "RotaryEmbedding": _rotated,
    "Tile": _repeated,
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear"], _quantised),
    **dict.fromkeys(["Resize", "Upsample"], resized),
    "BatchNormalization": _normalised_channels,
    "LRN": _over_channels,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Concat": _joined,
    "Split": _split,
    "Transpose": _transposed,
    "MatMul": _matmul,
    "Gemm": _gemm,
    **{f"com.microsoft::{name}": _unary for name in ("Gelu", "MurmurHash3", "QuickGelu", "SampleOp", "ScaledSiLU")},
    **{f"com.microsoft::{name}": _broadcast for name in ("BiasGelu", "FastGelu")},
    **{f"com.microsoft::{name}": _quantised for name in ("QuantizeLinear", "DequantizeLinear")},
    "com.microsoft::GatedAdd": _gated_sum,
    "com.microsoft::GatedRMSNorm": _beside_rows,
    "com.microsoft::SkipLayerNormalization": _beside_rows,
    "com.microsoft::SkipSimplifiedLayerNormalization": _beside_rows,
}

__all__ = ["AxisLink", "AxisLinks", "OperatorFacts", "Uncut", "links"]
