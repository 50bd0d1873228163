"""Element-wise operators: as many operations for each element of the output as their formula has; functions such as exp count one."""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, FlopRule

_ONE = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot"),
    *("BitwiseOr", "BitwiseXor", "Ceil", "Cos", "Cosh", "CumProd", "CumSum", "Div", "Equal", "Erf", "Exp", "Floor"),
    *(
        "Greater",
        "GreaterOrEqual",
        "Hardmax",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Log",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
    ),
    *("Pow", "Reciprocal", "Relu", "Round", "Sign", "Sin", "Sinh", "Sqrt", "Sub", "Tan", "Tanh", "ThresholdedRelu"),
    "Xor",
)
_OPERATIONS = {
    **dict.fromkeys(_ONE, 1),
    **dict.fromkeys(("LeakyRelu", "PRelu", "Range"), 2),
    **dict.fromkeys(("Shrink", "Softplus", "Softsign", "com.microsoft::QuickGelu"), 3),
    **dict.fromkeys(("Elu", "HardSigmoid", "Sigmoid"), 4),
    **dict.fromkeys(("Celu", "HardSwish", "LogSoftmax", "Mish", "Selu", "Softmax", "com.microsoft::Gelu"), 5),
    "com.microsoft::BiasGelu": 6,
}
"""A sigmoid is a negation, an exponential, an addition and a division: 4.
A softmax is a maximum, a difference, an exponential, a sum and a quotient: 5.
"""


def _count(site: CountedNode) -> int:
    return site.elements() * _OPERATIONS[site.operator]


def _count_several(site: CountedNode) -> int:
    """Count one operation between any two operands; a mean has a division more."""
    given = sum(site.has(position) for position in range(len(site.node.inputs)))
    return site.elements() * (given - 1 + (site.operator == "Mean"))


def _count_clip(site: CountedNode) -> int:
    """Count a comparison for each bound; those before opset 11 are attributes."""
    bounds = sum(site.has(1 + place) or name in site.node.attributes for place, name in enumerate(("min", "max")))
    return site.elements() * bounds


def _count_swish(site: CountedNode) -> int:
    """Count a sigmoid and a product, and one with alpha where it is not 1."""
    return site.elements() * (5 + (site.node.attributes.get_float("alpha", 1.0) != 1))


def _count_gelu(site: CountedNode) -> int:
    """Count 0.5 x (1 + erf(x / 1.414)), or the form with tanh and a cube, where it is asked for; FastGelu may add a bias."""
    fast = site.operator != "Gelu"
    tanh = fast or site.text("approximate", "none") == "tanh"
    return site.elements() * ((8 if tanh else 5) + (fast and site.has(1)))


def _count_quantisation(site: CountedNode) -> int:
    """Count scale, rounding and two bounds to quantise, the scale alone to undo it, and in both the zero point where there is one."""
    own = 1 if site.node.op_type == "DequantizeLinear" else 4
    return site.elements() * (own + site.has(2))


RULE = FlopRule("element-wise", frozenset(_OPERATIONS), _count)
SEVERAL = FlopRule("element-wise of several", frozenset({"Max", "Mean", "Min", "Sum"}), _count_several)
CLIP = FlopRule("clip", frozenset({"Clip"}), _count_clip)
SWISH = FlopRule("swish", frozenset({"Swish"}), _count_swish)
GELU = FlopRule("gelu", frozenset({"Gelu", "com.microsoft::FastGelu"}), _count_gelu)
QUANTISATION = FlopRule(
    "quantisation",
    frozenset(f"{domain}{op}" for domain in ("", "com.microsoft::") for op in ("QuantizeLinear", "DequantizeLinear")),
    _count_quantisation,
)
