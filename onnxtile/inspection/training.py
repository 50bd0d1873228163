"""The activations that a backward pass would keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxtile.inspection.work import operator_name, write_out_calls
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.topology import node_ids
from onnxtile.model.walk import RESHAPING, dependencies
from onnxtile.shapes.resolve import Shapes, resolve, tensor_bytes

# The values that the gradient of an operator reads: the derivative written with as few values as possible.
#
# y = f(x): where f' is a function of y the output is kept (relu, sigmoid, softmax), else the input; a product needs the other operand; what
# is linear (sums, views, copies, averages) needs nothing. (A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008, chapter 3; the
# formulas are those of PyTorch's derivatives.yaml.)

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


_BESIDE = {
    "Dropout": ("mask", 0, False),
    "GlobalMaxPool": ("indices", 8, False),
    "MaxPool": ("indices", 8, False),
    "LayerNorm": ("statistics", 8, True),
    "LayerNormalization": ("statistics", 8, True),
    ATTENTION: ("scores", 4, True),
}
"""The kept values, with their bytes for each element or each row (along the last axis) of the result."""
_VIEWS = RESHAPING | {"Transpose"}
"""Frameworks make these without a copy."""


@dataclass(frozen=True)
class KeptValue:
    """An activation that is kept: its bytes (None where unknown), and the nodes whose gradients need it.

    A kept tensor that is not a value of the graph is named after its node: "pool:indices", "drop:mask".
    """

    name: str
    bytes: int | None
    needed_by: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one value."""
        return {"name": self.name, "bytes": self.bytes, "needed_by": list(self.needed_by)}


@dataclass(frozen=True)
class Kept:
    """The activations that a backward pass keeps, each once; `by_operator` says for whom (the first that needs it).

    `unknown` are nodes on the way of a gradient that no rule knows: what they keep is not in the sum.
    """

    values: tuple[KeptValue, ...]
    by_operator: dict[str, int]
    unknown: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """The bytes of all values of known size."""
        return sum(value.bytes or 0 for value in self.values)

    @property
    def of_unknown_size(self) -> int:
        """How many of the values have a size that only a run can tell."""
        return sum(value.bytes is None for value in self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of what is kept."""
        return {
            "bytes": self.bytes,
            "of_unknown_size": self.of_unknown_size,
            "by_operator": self.by_operator,
            "values": [value.to_dict() for value in self.values],
            "unknown": list(self.unknown),
        }


def kept_for_training(model: ir.Model) -> Kept:
    """Return the activations that a backward pass of `model` keeps when every parameter is trained and no input is.

    A parameter is a floating-point constant of more than one element. A call of a local function keeps what its nodes do, a meta-op
    that frameworks have as one operator what that keeps. A value and its views are kept once. Statistics that a normalisation keeps
    for each channel are not counted.
    """
    inlined = model.clone() if model.functions else model
    if model.functions and not write_out_calls(inlined, lambda one: not is_one_operator(one.domain, one.name)):
        model = inlined
    shapes, constants = resolve(model), Constants(model)
    needs: dict[ir.Value, list[ir.Node]] = {}
    unknown: list[ir.Node] = []
    beside: list[tuple[ir.Node, str, int | None]] = []
    varying = _Varying(shapes, constants)
    for node in model.graph:
        if not varying.passes(node):
            continue
        values = needed(node, varying)
        if values is None:
            unknown.append(node)
        for value in map(_stored, values or ()):
            if value not in constants:
                needs.setdefault(value, []).append(node)
        own = _beside(node, shapes)
        if own is not None:
            beside.append((node, *own))
    names = node_ids(model.graph)
    by_operator: Counter[str] = Counter()
    kept = [
        KeptValue(value.name or "", tensor_bytes(value, shapes), tuple(dict.fromkeys(names[node] for node in nodes)))
        for value, nodes in needs.items()
    ]
    kept += [KeptValue(f"{names[node]}:{what}", size, (names[node],)) for node, what, size in beside]
    for nodes, one in zip((*needs.values(), *([node] for node, _, _ in beside)), kept, strict=True):
        by_operator[operator_name(nodes[0])] += one.bytes or 0
    return Kept(tuple(kept), dict(by_operator.most_common()), tuple(names[node] for node in unknown))


def _beside(node: ir.Node, shapes: Shapes) -> tuple[str, int | None] | None:
    """Return a tensor that a framework keeps although the graph has no such value, and its bytes (None where unknown).

    As PyTorch does on a CPU: MaxPool keeps where each maximum was, an int64; Dropout the factor of each element, in its own type; a layer
    normalisation the mean and the deviation of each row, attention the logarithm of the sum of its scores, float32.
    """
    op = keys.meta_op(node.op_type) if is_one_operator(node.domain, node.op_type) else node.op_type
    if node.domain not in {"", "ai.onnx", keys.DOMAIN} or op not in _BESIDE:
        return None
    if op == "Dropout":
        return "mask", tensor_bytes(node.outputs[0], shapes)
    sizes = shapes.sizes(node.outputs[0])
    what, each, by_row = _BESIDE[op]
    return what, None if sizes is None else each * math.prod(sizes[:-1] if by_row else sizes)


def _stored(value: ir.Value) -> ir.Value:
    """Return the value whose bytes `value` is a view of."""
    node = value.producer()
    while node is not None and node.domain in {"", "ai.onnx"} and node.op_type in _VIEWS and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


class _Varying:
    """The values that change when a parameter does, gathered node by node in the order of the graph."""

    def __init__(self, shapes: Shapes, constants: Constants) -> None:
        self._shapes = shapes
        self._constants = constants
        self._computed: set[ir.Value] = set()

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, ir.Value):
            return False
        return value in self._computed or self._is_parameter(value)

    def passes(self, node: ir.Node) -> bool:
        """Tell whether a gradient goes through `node`, and note its outputs."""
        if node.op_type in STOPS or all(value in self._constants for value in node.outputs):
            return False
        sequence = node.op_type in SEQUENCES
        outputs = [value for value in node.outputs if value.name and (sequence or self._is_float(value))]
        if not outputs or not any(value in self for value in dependencies(node)):
            return False
        self._computed.update(outputs)
        return True

    def _is_parameter(self, value: ir.Value) -> bool:
        sizes = self._shapes.sizes(value)
        return value in self._constants and self._is_float(value) and (sizes is None or math.prod(sizes) > 1)

    def _is_float(self, value: ir.Value) -> bool:
        dtype = self._shapes.dtype(value)
        return dtype is not None and dtype.is_floating_point()
