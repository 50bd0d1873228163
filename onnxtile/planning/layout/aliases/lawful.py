"""The table of lawful aliases: operators that may write over an operand, and operators that only move bytes.

The planner and fit use this table; the check of plans has its own. Every operator in it has also been run with its output at the address of
its operand in onnxruntime's CPU kernels, repeatedly, in several shapes, alignments and element types, on one thread and on two
(tests/planning/test_in_place.py). Passing there is not enough, since one kernel may use scratch memory where another does not. Failing is:
Hardmax, CumSum, the tanh form of Gelu and onnxruntime's FastGelu and QuickGelu read elements that they have overwritten. LRN is not in the
table either, because its windows reach into elements already written. tests/operators has the reason for each operator that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxtile.model.walk import RESHAPING

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh DequantizeLinear Elu Erf Exp EyeLike "
    "Floor Gelu HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign "
    "Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu"
)

_ALONG_AXES = (
    "Softmax LogSoftmax LpNormalization MeanVarianceNormalization BatchNormalization GroupNormalization InstanceNormalization "
    "LayerNormalization RMSNormalization SimplifiedLayerNormalization"
)
"""Operators that read a whole row or channel before they write it; scales, biases and statistics must not overlap the result."""

_BINARY = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu "
    "Pow Sub Sum Xor"
)

_SCATTERS = "Scatter ScatterElements ScatterND TensorScatter"
"""Operators that copy operand 0, and write updates over some of its elements."""

_OF_RUNTIME = (
    "BiasGelu BranchwiseRMSNorm DequantizeLinear Gelu LinearAttentionGate MurmurHash3 QLinearLeakyRelu QLinearSigmoid QLinearSoftmax "
    "QuantizeLinear SampleOp ScaledSiLU Trilu"
)
"""Operators of onnxruntime's domain that compute element by element, or row by row, on operand 0."""

_SUMS_OF_RUNTIME = {
    **dict.fromkeys(["GatedAdd", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"], frozenset({0, 1})),
    **dict.fromkeys(["QLinearAdd", "QLinearMul"], frozenset({0, 3})),
    "FusedConv": frozenset({3}),
    "FusedGemm": frozenset({2}),
    "GatedRMSNorm": frozenset({0, 2}),
    "NGramRepeatBlock": frozenset({1}),
    "QLinearWhere": frozenset({1, 4}),
}
"""The same on several operands, or on another one: scales, zero points, gates, and what is multiplied, must not overlap the result."""

_FIRST: frozenset[int] = frozenset({0})
_LAST_TWO: frozenset[int] = frozenset({1, 2})

IN_PLACE: Mapping[str, frozenset[int] | None] = {
    **dict.fromkeys([*_UNARY.split(), *_ALONG_AXES.split(), *_SCATTERS.split()], _FIRST),
    **dict.fromkeys(_BINARY.split()),
    "Gemm": frozenset({2}),
    "Where": _LAST_TWO,
    **{f"com.microsoft::{name}": _FIRST for name in _OF_RUNTIME.split()},
    **{f"com.microsoft::{name}": places for name, places in _SUMS_OF_RUNTIME.items()},
}
"""By operator, with its domain where that is not the standard one, the operands that the result may be written over (None: any). Shape and
element size must be the same, no other tensor may lie in those bytes, and no later node may read them."""

SEVERAL_RESULTS = frozenset(
    f"com.microsoft::{name}" for name in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
)
"""Operators of IN_PLACE of which each result may be written over each of these operands: they read an element of all of them before they
write that of the results. Of others no result may, where they have several."""

VIEWS = RESHAPING | {"Cast", "CastLike", "Dropout"}
"""Output 0 is operand 0 with another shape, where both have one element type and size; a Dropout only outside training."""

CUTS = frozenset({"Split", "Slice"})
"""Operators whose results are parts of operand 0, read in place where the bytes are contiguous."""

JOINS = frozenset({"Concat"})
"""Operators whose operands are parts of output 0, written directly into it where the bytes are contiguous."""
