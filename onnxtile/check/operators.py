"""The table of ONNX operators whose results may share bytes with operands, written from the specification for this check alone.

It needs Python alone: `check_account.py` beside it, which proves bounds without onnxtile, has the same rules as the check of plans.

An operator may write over an operand if each element of its result depends only on the same element of that operand. It may, too, if it
reads a whole row or channel before it writes it, or updates some elements of an operand and keeps the others. So may a Gemm, which adds
each element of its last operand to the product of the others. Operators whose results need neighbours of an element (convolutions,
pooling, LRN, Hardmax), or move elements (Transpose, Gather, Tile), may not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from operator import index

_ROUNDING = ["Abs", "Ceil", "Floor", "Neg", "Reciprocal", "Round", "Sign", "Sqrt"]
_EXPONENTIAL = ["Erf", "Exp", "Log"]
_TRIGONOMETRIC = ["Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Tanh"]
_ACTIVATIONS = [
    *("Celu", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Selu"),
    *("Shrink", "Sigmoid", "Softplus", "Softsign", "Swish", "ThresholdedRelu"),
]
_CONVERTING = ["BitCast", "Cast", "CastLike", "DequantizeLinear", "IsInf", "IsNaN", "QuantizeLinear"]
_KEEPING_OR_FILLING = ["EyeLike", "Trilu"]
_ONE_ELEMENT = [
    *(*_ROUNDING, *_EXPONENTIAL, *_TRIGONOMETRIC, *_ACTIVATIONS, *_CONVERTING, *_KEEPING_OR_FILLING),
    *("BitwiseNot", "Clip", "Not"),
]

_BY_ROW_OR_CHANNEL = [
    *("LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Softmax"),
    *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization"),
    "SimplifiedLayerNormalization",
]

_UPDATING = ["Scatter", "ScatterElements", "ScatterND", "TensorScatter"]

_ARITHMETIC = ["Add", "Div", "Max", "Mean", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub", "Sum"]
_COMPARING = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
_LOGICAL = ["And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Or", "Xor"]

_CONTRIBUTED_OVER: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(["BiasGelu", "LinearAttentionGate", "MurmurHash3", "SampleOp", "ScaledSiLU"], frozenset({0})),
    **dict.fromkeys(["BranchwiseRMSNorm", "DequantizeLinear", "QuantizeLinear", "Trilu"], frozenset({0})),
    "FusedConv": frozenset({3}),
    "FusedGemm": frozenset({2}),
    "GatedAdd": frozenset({0, 1}),
    "GatedRMSNorm": frozenset({0, 2}),
    "NGramRepeatBlock": frozenset({1}),
    "QLinearAdd": frozenset({0, 3}),
    "QLinearLeakyRelu": frozenset({0}),
    "QLinearMul": frozenset({0, 3}),
    "QLinearSigmoid": frozenset({0}),
    "QLinearSoftmax": frozenset({0}),
    "QLinearWhere": frozenset({1, 4}),
    "SkipLayerNormalization": frozenset({0, 1}),
    "SkipSimplifiedLayerNormalization": frozenset({0, 1}),
}
"""Operators of onnxruntime's domain. FusedConv and FusedGemm add their last operand to the product element by element."""

ANY_OPERAND = None
WRITES_OVER: Mapping[str, frozenset[int] | None] = {
    **dict.fromkeys([*_ONE_ELEMENT, *_BY_ROW_OR_CHANNEL, *_UPDATING], frozenset({0})),
    **dict.fromkeys([*_ARITHMETIC, *_COMPARING, *_LOGICAL], ANY_OPERAND),
    "Gemm": frozenset({2}),
    "Where": frozenset({1, 2}),
    **{f"com.microsoft::{name}": places for name, places in _CONTRIBUTED_OVER.items()},
}
"""By operator, the indices of the operands that output 0 may be written over, where shapes and element sizes are equal."""

SUMMING = frozenset({f"com.microsoft::Skip{name}" for name in ("LayerNormalization", "SimplifiedLayerNormalization")})
"""Of those, the operators whose results may each be written over: they also give the sum of both operands, computed by element."""

SAME_ELEMENTS = frozenset({"Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Output 0 has the elements of operand 0 in the same order, where both have one element type; a Dropout that trains does not."""

TAKES_PARTS = frozenset({"Split", "Slice"})
"""Outputs are boxes of operand 0."""

JOINS = frozenset({"Concat"})
"""Operands are boxes of output 0."""

APPENDS: Mapping[str, Mapping[int, int]] = {
    "Attention": {1: 4, 2: 5},
    "Concat": {0: 0},
    "GRU": {1: 5},
    "LSTM": {1: 5, 2: 6},
    "RNN": {1: 5},
    "com.microsoft::GroupQueryAttention": {1: 3, 2: 4},
    "com.microsoft::MultiHeadAttention": {1: 6, 2: 7},
}
"""By operator and output, the operand that holds the state before: the output begins with it, or is made when it has been read."""

FACTORS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(["Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger"], (0, 1)),
    **dict.fromkeys(["QLinearConv", "QLinearMatMul"], (0, 3)),
    **dict.fromkeys([f"com.microsoft::{name}" for name in ("DynamicQuantizeMatMul", "FusedConv", "FusedGemm")], (0, 1)),
    "com.microsoft::MatMulIntegerToFloat": (0, 1),
    "com.microsoft::QGemm": (0, 3),
}
"""The operators whose multiply-accumulates are counted, and the places of the two operands that they multiply."""

_MOVING = [
    *("Compress", "Constant", "ConstantOfShape", "DepthToSpace", "Expand", "Gather", "GatherElements", "GatherND"),
    *("Pad", "Range", "Resize", "ReverseSequence", "Shape", "Size", "SpaceToDepth", "Tile", "Transpose", "Upsample"),
]
_REDUCING = [
    *("ArgMax", "ArgMin", "AveragePool", "CumSum", "GlobalAveragePool", "GlobalMaxPool", "Hardmax", "LRN", "LpPool"),
    *("MaxPool", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
]
WITHOUT_PRODUCTS: frozenset[str] = frozenset(
    {
        *(name for name in WRITES_OVER if name not in FACTORS),
        *(*SAME_ELEMENTS, *TAKES_PARTS, *JOINS, *_MOVING, *_REDUCING),
    }
)
"""Operators that multiply no matrices. Of operators that are in neither table, the multiply-accumulates are not known."""

STANDARD = frozenset({"", "ai.onnx"})
"""The domains of the operators above."""

WITH_BODIES = frozenset({"If", "Loop", "Scan"})
"""Operators whose bodies have plans of their own."""


PURE_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
"""Domains whose operators are known: from constants they compute constants."""

DRAWING = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        *("RandomUniformLike", "com.microsoft::BiasDropout", "com.microsoft::BitmaskBiasDropout"),
        *("com.microsoft::BitmaskDropout", "com.microsoft::Sampling"),
    }
)
"""Operators that draw random numbers, or may: their results are never constant."""

OF_CONTAINERS = ("Sequence", "SplitToSequence", "ConcatFromSequence", "Optional")
"""The first letters of the operators of sequences and optionals, which are never constant."""


DECLARED = "onnxtile.check"
"""The group of entry points by which other distributions say what operators of their own domains write over.

Each names a table such as WRITES_OVER. The rows of these operators, by which the planner goes, are not read.
"""


class UnusableTable(ValueError):
    """The table of an entry point that cannot be read, in one line."""


def places_over(domain: str, operator: str) -> frozenset[int] | None:
    """Return the operands that `operator`, whose name begins with its `domain`, may write over: none of one that is in no table.

    Raises UnusableTable.
    """
    if domain in PURE_DOMAINS:
        return WRITES_OVER.get(operator, frozenset())
    return _declared(tuple(sys.path)).get(operator, frozenset())


@cache
def _declared(_path: tuple[str, ...]) -> Mapping[str, frozenset[int] | None]:
    """Return the tables of the distributions on the path, put together."""
    from importlib.metadata import entry_points

    tables: dict[str, frozenset[int] | None] = {}
    for point in entry_points(group=DECLARED):
        try:
            table = point.load().items()
            tables |= {name: places if places is None else frozenset(map(index, places)) for name, places in table}
        except Exception as error:
            owner = "an unknown distribution" if point.dist is None else point.dist.name
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UnusableTable(
                f"the plug-in {point.name!r} of {owner} (group {DECLARED}) cannot be used: {reason}"
            ) from error
    return tables


def appends(operator: str) -> bool:
    """Return whether an operator of this name may make a state over the one before in some domain."""
    return operator in WITH_BODIES or operator in {name.rpartition("::")[2] for name in APPENDS}


def slice_corner(
    whole: Sequence[int], starts: Sequence[int] | None, axes: Sequence[int] | None, steps: Sequence[int] | None
) -> list[int] | None:
    """Return the indices of the first element of a Slice of a tensor with the sizes `whole`; None for steps that are not 1.

    None of the numbers may be unknown (None), and there is an axis of `whole` for each start; else None is returned, too.
    """
    if starts is None or axes is None or steps is None or len(axes) != len(starts) or {*steps} - {1}:
        return None
    corner = [0] * len(whole)
    for start, axis in zip(starts, axes, strict=True):
        if not -len(whole) <= axis < len(whole):
            return None
        length = whole[axis]
        corner[axis] = max(0, min(start + length if start < 0 else start, length))
    return corner


def elements_before(whole: Sequence[int], corner: Sequence[int]) -> int:
    """Return the number of elements of a tensor with the sizes `whole` before the one with the indices `corner`."""
    return sum(start * math.prod(whole[axis + 1 :]) for axis, start in enumerate(corner))


def is_contiguous(whole: Sequence[int], box: Sequence[int]) -> bool:
    """Return whether the elements of a `box` inside a tensor with the sizes `whole` are some, and follow each other there.

    They do if the distance from the first to the last equals their number.
    """
    last = elements_before(whole, [length - 1 for length in box])
    return len(whole) == len(box) and min(box, default=1) > 0 and last + 1 == math.prod(box)
