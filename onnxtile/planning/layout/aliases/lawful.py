"""The facts of lawful aliases, as data: which operators may write over an operand, and which only move bytes.

What plans asks this table; what checks plans has one of its own. Every operator in it has also been run with its output at
the address of its input in onnxruntime's CPU kernels, repeatedly, in several shapes and alignments (tests/planning/test_in_place.py).
"Yes" there does not suffice: a kernel may have scratch memory where another has none. "No" there does: Hardmax and the tanh form of
Gelu read elements that they have already overwritten, and are not in it. Nor is LRN, whose windows reach over what has been written.
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
"""These read a row or a channel as a whole before they write it; scales, biases and statistics must lie elsewhere."""

_BINARY = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu "
    "Pow Sub Sum Xor"
)

_FIRST: frozenset[int] = frozenset({0})
_LAST_TWO: frozenset[int] = frozenset({1, 2})

IN_PLACE: Mapping[str, frozenset[int] | None] = {
    **dict.fromkeys([*_UNARY.split(), *_ALONG_AXES.split()], _FIRST),
    **dict.fromkeys(_BINARY.split()),
    "Where": _LAST_TWO,
}
"""By standard operator: which operands output 0 may be written over (None: any), if shape and element size are the same, nothing
else lies in those bytes, and nobody reads them later."""

QUANTISED_IN_PLACE: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(["QLinearAdd", "QLinearMul"], frozenset({0, 3})),
    **dict.fromkeys(["QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"], frozenset({0})),
}
"""The same by operator of onnxruntime's domain: the places of quantised operands, not those of scales and zero points."""

VIEWS = frozenset({"Cast", "CastLike", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Output 0 is operand 0 under another shape, where both have one element type and size; a Dropout only where it does not train."""

CUTS = frozenset({"Split", "Slice"})
"""Their results are parts of operand 0, read in place where the bytes are contiguous."""

JOINS = frozenset({"Concat"})
"""Their operands are parts of output 0, written straight into it where the bytes are contiguous."""
