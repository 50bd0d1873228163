"""The table of lawful aliases: operators that may write over an operand, and operators that only move bytes.

The planner uses this table; the check of plans has its own. Every operator in it has also been run with its output at the address of its
input in onnxruntime's CPU kernels, repeatedly, in several shapes and alignments (tests/planning/test_in_place.py). Passing there is not
enough, since one kernel may use scratch memory where another does not. Failing is: Hardmax and the tanh form of Gelu read elements that
they have overwritten. LRN is not in the table either, because its windows reach into elements already written.
"""

from __future__ import annotations

from collections.abc import Mapping

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log "
    "Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Cast"
)

_ALONG_AXES = (
    "Softmax LogSoftmax LpNormalization MeanVarianceNormalization BatchNormalization GroupNormalization InstanceNormalization "
    "LayerNormalization RMSNormalization"
)
"""Operators that read a whole row or channel before they write it; scales, biases and statistics must not overlap the result."""

_BINARY = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu "
    "Pow Sub Sum Xor"
)

_SCATTERS = "ScatterElements ScatterND TensorScatter"
"""Operators that copy operand 0, and write updates over some of its elements."""

_FIRST: frozenset[int] = frozenset({0})
_LAST_TWO: frozenset[int] = frozenset({1, 2})

IN_PLACE: Mapping[str, frozenset[int] | None] = {
    **dict.fromkeys([*_UNARY.split(), *_ALONG_AXES.split(), *_SCATTERS.split()], _FIRST),
    **dict.fromkeys(_BINARY.split()),
    "Gemm": frozenset({2}),
    "Where": _LAST_TWO,
}
"""By standard operator, the operands that output 0 may be written over (None: any). Shape and element size must be the same, no other
tensor may lie in those bytes, and no later node may read them."""

QUANTISED_IN_PLACE: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(["QLinearAdd", "QLinearMul"], frozenset({0, 3})),
    **dict.fromkeys(["QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"], frozenset({0})),
}
"""The same by operator of onnxruntime's domain: the places of quantised operands, not those of scales and zero points."""

VIEWS = frozenset({"Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Output 0 is operand 0 with another shape, where both have one element type and size; a Dropout only outside training."""

CUTS = frozenset({"Split", "Slice"})
"""Operators whose results are parts of operand 0, read in place where the bytes are contiguous."""

JOINS = frozenset({"Concat"})
"""Operators whose operands are parts of output 0, written directly into it where the bytes are contiguous."""
