"""The values that the gradient of an operator reads: the derivative written with as few values as possible.

y = f(x): where f' is a function of y the output is kept (relu, sigmoid, softmax), else the input; a product needs the other operand;
what is linear (sums, views, copies, averages) needs nothing. (A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008,
chapter 3; the formulas are those of PyTorch's derivatives.yaml.)
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from onnxtile import keys

SEQUENCES = {"SequenceConstruct", "SequenceErase", "SequenceInsert", "SplitToSequence"}
"""Their output is a sequence, whose element type no shape inference gives."""
_NOTHING = {
    *("Add", "Sub", "Sum", "Mean", "Neg", "Identity", "Cast", "CastLike", "Dropout", "CumSum", "Trilu"),
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Slice", "Pad", "Expand", "Tile"),
    *("ReduceSum", "ReduceMean", "AveragePool", "GlobalAveragePool", "DepthToSpace", "SpaceToDepth", "Resize"),
    *("Upsample", "ReverseSequence", "CenterCropPad", "Col2Im", "QuantizeLinear", "DequantizeLinear"),
    *("AffineGrid", "DFT", "SequenceAt", "ConcatFromSequence", "Optional", "OptionalGetElement"),
    *SEQUENCES,
}
_INPUT = {
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Log", "Sin", "Sinh", "Tan"),
    *("Celu", "Clip", "Gelu", "HardSigmoid", "HardSwish", "Mish", "Shrink", "Softplus", "Softsign", "Swish"),
    *("ThresholdedRelu", "LeakyRelu", "ReduceSumSquare", "ReduceL1", "LpNormalization", "MeanVarianceNormalization"),
    *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization", "BatchNormalization"),
    *("MaxPool", "GlobalMaxPool", "SimplifiedLayerNormalization"),
}
_OUTPUT = {"Elu", "Exp", "LogSoftmax", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softmax", "Sqrt", "Tanh"}
_INPUT_AND_OUTPUT = {
    *("LRN", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMin", "ReduceProd", "CumProd", "Det"),
}
_ALL = {
    *("Attention", "LinearAttention", "RNN", "GRU", "LSTM", "LpPool", "GlobalLpPool"),
}
"""These need all their inputs and outputs that are tensors."""
_INPUTS = {"GridSample", "Max", "Min", "PRelu", "SoftmaxCrossEntropyLoss", "SwiGLU"}
"""These need all their inputs."""
_PRODUCT = {"Conv", "ConvTranspose", "DeformConv", "Einsum", "Gemm", "MatMul", "Mul", "STFT"}
"""The gradient of the first operand needs the second, and the reverse."""
_CHOICE = {
    **{name: 1 for name in ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter")},
    **{"Where": 0, "Compress": 1, "MaxUnpool": 1, "NegativeLogLikelihoodLoss": 1, "TensorScatter": 2},
}
"""The gradient goes where this input says."""
STOPS = {
    *(
        "Ceil",
        "Floor",
        "Round",
        "Sign",
        "OneHot",
        "EyeLike",
        "ConstantOfShape",
        "IsNaN",
        "IsInf",
        "Range",
        "Shape",
        "Size",
    ),
    *("Mod", "Hardmax", "Bernoulli", "DynamicQuantizeLinear", "RandomNormalLike", "RandomUniformLike", "RandomNormal"),
    *(
        "RandomUniform",
        "Multinomial",
        "Constant",
        "ArgMax",
        "ArgMin",
        "NonZero",
        "NonMaxSuppression",
        "BitCast",
        "BitShift",
    ),
    *("And", "Or", "Xor", "Not", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    *(
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "ConvInteger",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
    ),
    *("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix", "ImageDecoder", "OptionalHasElement"),
    *("SequenceEmpty", "SequenceLength", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
    "TfIdfVectorizer",
}
"""Their derivative is zero wherever there is one: so is that of whole numbers, truths and texts."""


ATTENTION, SOFTMAX = "ScaledDotProductAttention", "Softmax"
ONE_OPERATOR = frozenset(
    {
        *(ATTENTION, SOFTMAX, "GeLU", "GeLUTanh", "HardSwish", "Mish", "QuickGeLU", "SiLU"),
        *("GroupNorm", "InstanceNorm", "LayerNorm", "RMSNorm"),
    }
)
"""Meta-ops that frameworks have as one operator, with a gradient of its own; they need their inputs but Softmax, which needs its output.
Attention needs both: the scores are computed again (Dao et al., "FlashAttention", arXiv 2205.14135, algorithm 4)."""


def is_one_operator(domain: str, name: str) -> bool:
    """Return whether a function is a meta-op that frameworks have as one operator."""
    return domain == keys.DOMAIN and keys.meta_op(name) in ONE_OPERATOR


def needed(node: ir.Node, varying: Container[ir.Value]) -> list[ir.Value] | None:
    """Return the values that the gradient of `node` is computed from; None where nobody knows.

    `varying` are the values for which a gradient is wanted.
    """
    op, inputs = node.op_type, [value for value in node.inputs if value is not None]
    if is_one_operator(node.domain, op):
        outputs = list(node.outputs) if keys.meta_op(op) in {ATTENTION, SOFTMAX} else []
        return outputs if keys.meta_op(op) == SOFTMAX else outputs + inputs
    if node.domain not in {"", "ai.onnx"}:
        return None
    if op in _NOTHING:
        return []
    if op in _INPUT:
        return inputs[:1]
    if op in _OUTPUT:
        return [node.outputs[0]]
    if op in _INPUT_AND_OUTPUT:
        return [inputs[0], node.outputs[0]]
    if op in _INPUTS:
        return inputs
    if op in _ALL:
        return [*inputs, *(value for value in node.outputs if value.name)]
    return _of_operands(node, inputs, varying)


def _of_operands(node: ir.Node, inputs: list[ir.Value], varying: Container[ir.Value]) -> list[ir.Value] | None:
    """Return the values that the gradient reads for an operator with operands of different kinds."""
    first, second = inputs[0], inputs[1] if len(inputs) > 1 else inputs[0]
    match node.op_type:
        case "Div" | "Pow":
            return [first, second] if second in varying or node.op_type == "Pow" else [second]
        case "TopK":
            return [node.outputs[1]]
        case "RotaryEmbedding":
            return inputs[1:3]
        case op if op in _CHOICE:
            return [inputs[_CHOICE[op]]]
        case op if op in _PRODUCT and len(inputs) > 1:
            wanted = [second] if first in varying else []
            return [*wanted, first] if second in varying else wanted
        case _:
            return None
