"""The page docs/lowerings.md: the proof obligation of each lowering, proved here for all shapes where that can be done.

    python docs/lowering_obligations.py

Formulas are compared exactly with sympy, over the real numbers: those that a lowering demands of a body with the functions by which onnx
defines operators, and the scales and zero points of quantised operators with what is dequantised. A mean is a linear function, so an
identity of means holds for any number of elements. A sum of products holds for any number of terms if it holds for none and one more.
Where a function reshapes and transposes, both formulas are compared at an index of symbols.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import sympy
from documented_formulas import (
    is_chosen,
    is_gemm,
    is_instance_norm,
    is_l2_norm,
    is_largest_moved,
    is_quantised_leaky_relu,
    is_quantised_product,
    is_quantised_sigmoid,
    is_quantised_softmax,
    is_quantised_sum,
)
from index_formulas import is_attention, is_rotary_embedding
from onnx import helper, numpy_helper
from opened_calls import is_opened

from onnxtile.fusion.lower.island_lowering import IslandLowering
from onnxtile.fusion.lower.lowering import Lowering, OperatorLowering, definition
from onnxtile.fusion.lower.terms import Poly, variable
from onnxtile.fusion.lowerings import activations
from onnxtile.fusion.operator_lowerings import StayingOperator
from onnxtile.system.registry import discover

PAGE = Path(__file__).parent / "lowerings.md"
KINDS: Mapping[str, type] = {
    "lowerings": Lowering,
    "island_lowerings": IslandLowering,
    "operator_lowerings": OperatorLowering,
}

x, y, scale, bias, epsilon, count, alpha = sympy.symbols("x y scale bias epsilon count alpha", real=True)
_CONSTANTS = (sympy.Integer(1), sympy.sqrt(2), 2 / sympy.pi, sympy.sqrt(2 / sympy.pi), sympy.Rational(1, 3))
_DIGITS = 7
"""A constant is read as the product of one of _CONSTANTS and the number with the fewest digits that float32 cannot tell from it."""


class Obligation(NamedTuple):
    """What a lowering has to prove, in words; `proof` returns whether it holds for all shapes; without one, `because` has the reason."""

    says: str
    proof: Callable[[], bool] | None = None
    because: str = ""


def exact(number: float) -> sympy.Expr:
    """Return the number of which a constant of a file is the rounded form."""
    factors = [(f"{number / float(one):.{_DIGITS}g}", one) for one in _CONSTANTS]
    factor, one = min(factors, key=lambda pair: len(pair[0]))
    return sympy.Rational(factor) * one


def is_equal(one: sympy.Expr, other: sympy.Expr) -> bool:
    """Return whether two formulas are equal for all real numbers."""
    return bool(sympy.simplify(sympy.expand(one - other)) == 0)


def mean_of(formula: sympy.Expr) -> sympy.Expr:
    """Return the mean of a formula of the element x: a sum of its terms, each a constant times the mean of powers of x and exp(x)."""
    element = sympy.Symbol("u", positive=True)
    terms = sympy.Poly(sympy.expand(formula, power_exp=True).subs(sympy.exp(x), element), x, element).terms()
    means = {(0, 0): sympy.Integer(1)}
    return sum(
        (
            factor * means.get(powers, sympy.Symbol(f"mean_{powers[0]}_{powers[1]}", real=True))
            for powers, factor in terms
        ),
        sympy.Integer(0),
    )


_SHIFT = sympy.Symbol("largest", real=True)
_UNARY: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("Cast", "CastLike", "Flatten", "Reshape", "Identity"), lambda a, *_: a),
    "Sqrt": sympy.sqrt,
    "Reciprocal": lambda a: 1 / a,
    "Exp": sympy.exp,
    **{name: sympy.Function(name) for name in ("Erf", "Tanh", "Sigmoid", "Softplus")},
    **{"Min": sympy.Min, "Max": sympy.Max, "Neg": lambda a: -a},
    **{"Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": lambda a, b: a / b},
    **{"Pow": lambda a, b: a**b, "Sum": lambda *parts: sum(parts), "ReduceMax": lambda *_: _SHIFT},
    **{"ReduceMean": lambda a, *_: mean_of(a), "ReduceSum": lambda a, *_: count * mean_of(a)},
}
"""The operators of a function's body on an element; axes and shapes, which the operators take as further operands, change no formula."""


def defined(op: str, version: int, given: Mapping[str, sympy.Expr], **attributes: Any) -> sympy.Expr:
    """Return the formula of the first result of an operator of onnx, from its function."""
    function = _function(op, version, list(given), attributes)
    values: dict[str, Any] = dict(zip(function.input, given.values(), strict=True))
    for node in function.node:
        if node.op_type == "Constant":
            values[node.output[0]] = _constant(node, attributes)
        elif node.op_type == "HardSigmoid":
            factor, term = (exact(next(a.f for a in node.attribute if a.name == name)) for name in ("alpha", "beta"))
            values[node.output[0]] = sympy.Max(0, sympy.Min(1, factor * values[node.input[0]] + term))
        elif node.op_type in _UNARY and values.get(node.input[0]) is not None:
            values[node.output[0]] = _UNARY[node.op_type](*(values.get(name) for name in node.input))
    return values[function.output[0]]


def _function(op: str, version: int, inputs: list[str], attributes: Mapping[str, Any]) -> onnx.FunctionProto:
    schema = onnx.defs.get_schema(op, version, "")
    if not schema.has_context_dependent_function:
        return schema.function_body
    node = helper.make_node(op, inputs, ["result"], **attributes)
    shapes = [["batch", "channels", "height"], *[["channels"]] * (len(inputs) - 1)]
    types = [helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, shape).SerializeToString() for shape in shapes]
    return onnx.FunctionProto.FromString(schema.get_context_dependent_function(node.SerializeToString(), types))


def _constant(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> sympy.Expr | None:
    """Return a constant of a function; None for shapes. 1e-5, the default, is epsilon."""
    given = node.attribute[0]
    if given.ref_attr_name:
        return alpha if given.ref_attr_name == "alpha" else attributes[given.ref_attr_name]
    array = numpy_helper.to_array(given.t) if given.name == "value" else None
    if array is None or array.dtype.kind != "f" or array.size != 1:
        return None
    return epsilon if math.isclose(array.item(), 1e-5, rel_tol=1e-6) else exact(array.item())


def formula(poly: Poly) -> sympy.Expr:
    """Return a polynomial of fusion's proofs as a formula."""
    return sum(
        (
            exact(factor) * math.prod((_atom(base) ** exact(power) for base, power in monomial), start=sympy.Integer(1))
            for monomial, factor in poly
        ),
        sympy.Integer(0),
    )


def _atom(base: tuple[Any, ...]) -> sympy.Expr:
    inner = next((formula(part) for part in base if isinstance(part, frozenset)), x)
    if base[0] == "Clip":
        return sympy.Max(exact(base[1]), sympy.Min(exact(base[2]), inner))
    return inner if base[0] in {"input", "sum"} else _UNARY[base[0]](inner)


def stored(name: str) -> tuple[sympy.Expr, sympy.Expr]:
    """Return the difference of a stored element and its zero point, and the number that it stands for."""
    element, zero, unit = sympy.symbols(f"{name} zero_{name} scale_{name}", real=True)
    return element - zero, unit * (element - zero)


def _elementwise(demanded: Poly, op: str, version: int, **attributes: Any) -> Callable[[], bool]:
    return lambda: is_equal(formula(demanded), defined(op, version, {"x": x}, **attributes))


def _twice(plug_in: activations.Activation) -> Callable[[], bool]:
    demanded = formula(plug_in.computes(variable(0)))
    return lambda: is_equal(demanded, 2 * defined("Gelu", 20, {"x": x}, **dict(plug_in.settings)))


_SPREAD = sympy.sqrt(mean_of((x - mean_of(x)) ** 2) + epsilon)
_CENTRED = (x - mean_of(x)) / _SPREAD * scale + bias
_NORM = {"x": x, "scale": scale, "bias": bias}


def _silu(plug_in: activations.Activation) -> Callable[[], bool]:
    factor = exact(float(dict(plug_in.settings)["alpha"]))  # type: ignore[arg-type]
    demanded = formula(plug_in.computes(variable(0)))
    return lambda: is_equal(demanded, defined("Swish", 24, {"x": x}).subs(alpha, factor))


def _softmax() -> bool:
    shifted = defined("Softmax", 13, {"x": x}, axis=-1)
    unshifted = sympy.exp(x) / (count * mean_of(sympy.exp(x)))
    demanded = formula(definition("Softmax", 13, (variable(0),), (("axis", -1),), (-1,)))
    return is_equal(demanded, shifted) and is_equal(demanded, unshifted)


def _product() -> bool:
    """Prove Σ D(a) D(b) + s_a s_b c = s_a s_b (Σ (a - z_a)(b - z_b) + c): with no term, and with one more."""
    (a, real_a), (b, real_b) = stored("a"), stored("b")
    sums, real_sums, c = sympy.symbols("sums real_sums c", real=True)
    unit = sympy.Symbol("scale_a", real=True) * sympy.Symbol("scale_b", real=True)
    is_start = is_equal(unit * c, unit * (0 + c))
    step = (real_sums + real_a * real_b + unit * c) - unit * (sums + a * b + c)
    return is_start and is_equal(step.subs(real_sums, unit * sums), sympy.Integer(0))


def _complement() -> bool:
    element, zero, unit, ones = sympy.symbols("q z s ones", real=True)
    # Of b bits, ~q is -1 - q for signed elements and 2^b - 1 - q for others.
    return all(is_equal(unit * ((top - element) - (top - zero)), -unit * (element - zero)) for top in (-1, ones))


def _quotient() -> bool:
    divisor = sympy.Symbol("d", nonzero=True)
    return is_equal(stored("a")[1] / divisor, stored("a")[1] * (1 / divisor) * (1 - 0))


def _hard_sigmoid() -> bool:
    unit, beta = sympy.Symbol("scale_a", real=True), sympy.Symbol("beta", positive=True)
    difference, real = stored("a")
    parts = ((beta, beta * (1 - 0)), (-beta, beta * (0 - 1)), (sympy.Integer(0), sympy.Integer(1) * (0 - 0)))
    return all(is_equal(alpha * real + number, alpha * unit * difference + element) for number, element in parts)


def _mean() -> bool:
    unit, zero = sympy.symbols("s z", real=True)
    return is_equal(mean_of(unit * (x - zero)), unit * (mean_of(x) - zero))


def _padded_mean() -> bool:
    """Prove the identity of means, and that a stored element that is the zero point stands for the 0 of padding."""
    real = stored("a")[1]
    element, zero = sympy.symbols("a zero_a", real=True)
    return _mean() and is_equal(real.subs(element, zero), sympy.Integer(0))


def _moved() -> bool:
    difference, real = stored("a")
    zero, unit = sympy.symbols("zero_a scale_a", real=True)
    return is_equal(real / unit + zero, difference + zero)


_PRODUCT = Obligation("Σ D(a)·D(b) + s_a·s_b·c = s_a·s_b·(Σ (a - z_a)(b - z_b) + c), any number of terms", _product)
_MOVED = Obligation("D(q)/s + z = q: an element that is moved stays the same", _moved)
_DEFINED = Obligation(
    "the float operator of what is dequantised, quantised",
    because="onnxruntime documents the operator without a formula",
)
_CHOSEN = {
    name: Obligation(
        f"D(D(q)/s + z) = D(q): an element keeps its number between scales; QLinear{name} is documented in the words of {name}-{version}",
        partial(is_chosen, f"QLinear{name}", name, version),
    )
    for name, version in (("Where", 16), ("Concat", 13))
}
_SOFTMAX = Obligation(
    "exp D(q) / Σ exp D(q), quantised, is QLinearSoftmax, as its documentation says", is_quantised_softmax
)
_SUM = Obligation("(D(a) + D(b))/s + z is QLinearAdd, as its documentation says", is_quantised_sum)
_TIMES = Obligation("D(a)·D(b)/s + z is QLinearMul, as its documentation says", is_quantised_product)
_SIGMOID = Obligation("σ(D(q)), quantised, is QLinearSigmoid, as its documentation says", is_quantised_sigmoid)
_LEAKY = Obligation(
    "α·D(q) below zero, else D(q), quantised, is QLinearLeakyRelu, as its documentation says", is_quantised_leaky_relu
)
_MEAN_OF_WINDOW = Obligation(
    "E s·(q - z) = s·(E q - z) over the elements of a window, of which padding is z", _padded_mean
)

_OPENED = "the call becomes the nodes of its body, an Add and a normalisation, as they are"

OBLIGATIONS: Mapping[str, Mapping[str, Obligation]] = {
    "lowerings": {
        "GeLU": Obligation(
            "x/2 · (1 + erf(x/√2)) is Gelu-20", _elementwise(activations.GELU.computes(variable(0)), "Gelu", 20)
        ),
        "GeLUTanh": Obligation(
            "x/2 · (1 + tanh(√(2/π)(x + 0.044715 x³))) is Gelu-20 of `tanh`",
            _elementwise(activations.GELU_TANH.computes(variable(0)), "Gelu", 20, approximate="tanh"),
        ),
        "TwiceGeLU": Obligation("x · (1 + erf(x/√2)) is 2 · Gelu-20", _twice(activations.TWICE_GELU)),
        "TwiceGeLUTanh": Obligation("x · (1 + tanh(…)) is 2 · Gelu-20 of `tanh`", _twice(activations.TWICE_GELU_TANH)),
        "SiLU": Obligation("x · σ(x) is Swish-24 of alpha 1", _silu(activations.SILU)),
        "QuickGeLU": Obligation("x · σ(1.702 x) is Swish-24 of alpha 1.702", _silu(activations.QUICK_GELU)),
        "HardSwish": Obligation(
            "x · clip(x/6 + 1/2, 0, 1) is HardSwish-22",
            _elementwise(activations.HARD_SWISH.computes(variable(0)), "HardSwish", 22),
        ),
        "Mish": Obligation(
            "x · tanh(softplus(x)) is Mish-22", _elementwise(activations.MISH.computes(variable(0)), "Mish", 22)
        ),
        "LayerNorm": Obligation(
            "(x - E x) / √(E (x - E x)² + ε) · s + b is LayerNormalization-17, any number of elements",
            lambda: is_equal(_CENTRED, defined("LayerNormalization", 17, _NORM, axis=-1)),
        ),
        "GroupNorm": Obligation(
            "the same over the channels of a group is GroupNormalization-21",
            lambda: is_equal(_CENTRED, defined("GroupNormalization", 21, _NORM, num_groups=2)),
        ),
        "RMSNorm": Obligation(
            "x / √(E x² + ε) · s is RMSNormalization-23, any number of elements",
            lambda: is_equal(
                x / sympy.sqrt(mean_of(x**2) + epsilon) * scale,
                defined("RMSNormalization", 23, {"x": x, "scale": scale}, axis=-1),
            ),
        ),
        "Softmax": Obligation("exp(x - t) / Σ exp(x - t) is Softmax-13 for t = 0 and t = max x", _softmax),
        "InstanceNorm": Obligation(
            "the formula of LayerNorm over the axes after the channels is that of InstanceNormalization-6's documentation",
            lambda: is_instance_norm(_CENTRED, mean_of(x), mean_of((x - mean_of(x)) ** 2), bias),
        ),
        "L2Norm": Obligation(
            "x / √(Σ x²) is x over its norm, as LpNormalization-22's documentation says, for p = 2",
            lambda: is_l2_norm(x / sympy.sqrt(count * mean_of(x**2)), sympy.sqrt(count * mean_of(x**2))),
        ),
        "Linear": Obligation("Σ a·b + c is Gemm-13 with alpha = beta = 1, as its documentation says", is_gemm),
        **{name: Obligation(_OPENED, partial(is_opened, name)) for name in ("SkipLayerNorm", "SkipRMSNorm")},
        "RotaryEmbedding": Obligation(
            "x · cos + (-x₂, x₁) · sin, at every index of four axes, is RotaryEmbedding-23 of halves",
            is_rotary_embedding,
        ),
        "ScaledDotProductAttention": Obligation(
            "softmax(scale · q kᵀ + mask) v, at every index of three or four axes, is Attention-23",
            is_attention,
            "MultiHeadAttention is tested, as onnxruntime documents it without a formula",
        ),
        "DynamicMatMul": _PRODUCT,
        "IntegerMatMul": _PRODUCT,
        "IntegerConv": _PRODUCT,
    },
    "island_lowerings": {
        **dict.fromkeys(("Conv", "MatMul", "Gemm"), _PRODUCT),
        **dict.fromkeys(("Add", "Sum"), _SUM),
        **_CHOSEN,
        "Softmax": _SOFTMAX,
        **{"Mul": _TIMES, "AveragePool": _MEAN_OF_WINDOW, "LeakyRelu": _LEAKY, "Sigmoid": _SIGMOID},
        "com.microsoft::Attention": _DEFINED,
        "Sub": Obligation("s·(~q - ~z) = -s·(q - z): the complement is the negative number", _complement),
        "Div": Obligation("s·(q - z)/d = s·(q - z) · (1/d)·(1 - 0)", _quotient),
        "HardSigmoid": Obligation("α·s·(q - z) + β is a sum of two stored tensors, for β of each sign", _hard_sigmoid),
        **dict.fromkeys(
            ("GlobalAveragePool", "ReduceMean"), Obligation("E s·(q - z) = s·(E q - z), any number of elements", _mean)
        ),
        **dict.fromkeys(
            (
                *(
                    "DepthToSpace",
                    "Expand",
                    "Flatten",
                    "Gather",
                    "Identity",
                    "Reshape",
                    "Resize",
                    "Slice",
                    "SpaceToDepth",
                    "Split",
                ),
                *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
            ),
            _MOVED,
        ),
        "MaxPool": Obligation("max s·(q - z) = s·(max q - z) for s > 0, any number of elements", is_largest_moved),
    },
    "operator_lowerings": {
        **dict.fromkeys(
            ("QLinearConv", "QLinearMatMul", "com.microsoft::QGemm", "com.microsoft::MatMulIntegerToFloat"), _PRODUCT
        ),
        **dict.fromkeys(("com.microsoft::DynamicQuantizeMatMul", "com.microsoft::MatMulNBits"), _PRODUCT),
        **{f"com.microsoft::QLinear{name}": one for name, one in _CHOSEN.items()},
        "com.microsoft::QLinearSoftmax": _SOFTMAX,
        "com.microsoft::QLinearAdd": _SUM,
        "com.microsoft::QLinearMul": _TIMES,
        "com.microsoft::QLinearAveragePool": _MEAN_OF_WINDOW,
        "com.microsoft::QLinearLeakyRelu": _LEAKY,
        "com.microsoft::QLinearSigmoid": _SIGMOID,
        "com.microsoft::QLinearGlobalAveragePool": Obligation(
            "E s·(q - z) = s·(E q - z), any number of elements", _mean
        ),
        "com.microsoft::QAttention": _DEFINED,
    },
}
"""By kind and name."""
_TITLES = {
    "lowerings": ("Meta-ops", "onnxtile/fusion/lowerings"),
    "island_lowerings": ("Quantised islands", "onnxtile/fusion/island_lowerings"),
    "operator_lowerings": ("Quantised operators", "onnxtile/fusion/operator_lowerings"),
}
_HEAD = """# Lowerings and their proofs

A lowering writes another operator for a meta-op, for operators between DequantizeLinear and QuantizeLinear, or for a
quantised operator. `python docs/lowering_obligations.py` writes this page, and proves each line that says so.

- **proved**: two formulas are equal over the real numbers, for all shapes. Of a meta-op, they are the formula that the
  lowering demands, and the function by which onnx defines the operator, or the formula in its documentation. Of quantised
  tensors, they are the product, sum, mean or move of stored elements, and the same of what is dequantised. Where the line
  says so, the formula is read from the documentation of onnxruntime's operator; else it defines the operator in words.
- **tested**: `tests/lowering` compares both on random inputs. The line says why it is not proved.

D(q) = s·(q - z) is what the element q of the scale s and the zero point z stands for, E is the mean. A constant such as
0.70710677 counts as the number that it is rounded from.

Each site is proved by itself, too. Activations, Softmax, layer, RMS, instance and L2 norms, and products with a bias
have one proof. It reads the body of the call and the definition of the operator as terms, and compares them. The
definition is onnx's function; that of layer norm is the formula of instance norm, too. `LpNormalization` and `Gemm`
have none, so theirs are in `onnxtile/fusion/lower/lowering.py`. Attention, rotary embeddings, groups and quantised
operators have proofs of their own. Of what a pattern file declares, and of onnxruntime's attention, whose documentation
has no formula, a run decides: `"decided": "by a run"` in the result says so.

Then `fuse` runs each different site alone, before and after, and the whole model. Floats round, so results are equal within
the tolerances of [verify](verify.md).

## Edge rows

A formula over the real numbers says nothing of NaN, infinities, and numbers that leave the range of their type. So `fuse`
also runs each different site on edge rows, before and after, in onnxruntime. One input at a time has such a number in
all elements, in a row of its last axis, or in its last element; the other inputs are random. Then several inputs have such
numbers at random places, always the same.

| number | is |
|---|---|
| `0` | 0 and -0 |
| `denormal`, `tiny` | the smallest number of the type, and the smallest normal one |
| `large` | random numbers times 10,000, or times the cube root of the largest number where that is less |
| `huge` | the largest number of the type, of either sign |
| `inf`, `NaN` | infinities of either sign, and what is no number; a mask that is -inf hides a row |
| `false`, `true` | of masks of booleans |
| `lowest`, `middle`, `highest` | of integers of 8 bits |

Sites in bfloat16 run on edge rows in float. A finite number may be off by the tolerances, or by the smallest normal
number. It may also be off by twice what one unit in the last place of the inputs makes of it. Edge rows are samples: with
these numbers at other places, a site may differ too. Inputs of more than 4 million elements get one row for each number.

| effect | what differs | lowered by default |
|---|---|---|
| kinder | elements that are NaN or infinite before are the same or finite after, and all others are equal | yes |
| no number | no element is finite before, and an infinite one became NaN, or the other way round | yes |
| beyond range | the row has denormal, tiny or huge numbers, whose squares leave the range of the type | yes |
| worse | anything else | no |

`--edge strict` refuses sites of all four effects, and `--edge any` refuses none. A result names each lowered site that
differs, with its numbers. Beyond the range of a type, the order of operations decides the result.

The lowerings of the following meta-ops may differ by default:

"""
EDGE_ROWS: Mapping[str, Mapping[str, str]] = {
    "L2Norm": {"kinder": "0", "beyond range": "denormal, tiny, huge"},
    "Softmax": {"kinder": "large", "beyond range": "huge"},
    "ScaledDotProductAttention": {"kinder": "inf, NaN, large", "beyond range": "denormal, tiny, huge"},
    **{name: {"beyond range": "huge"} for name in ("GeLU", "GeLUTanh", "HardSwish", "RotaryEmbedding", "RMSNorm")},
    **{name: {"beyond range": "huge"} for name in ("LayerNorm", "GroupNorm", "InstanceNorm")},
    **{
        name: {"no number": "inf", "beyond range": "denormal, tiny, huge"}
        for name in ("DynamicMatMul", "IntegerMatMul", "IntegerConv")
    },
}
"""The numbers on which lowered sites may differ, by meta-op and effect; `tests/lowering` compares them with what sites name."""
_EDGE_NOTES = """
A zero vector has no direction: x / ‖x‖ is NaN, and LpNormalization makes it 0. A mask of -inf that hides a row gives NaN,
and onnxruntime's Attention makes the row 0; a guard makes it 0 before and after. Such a guard also makes 0 of NaN that
stands in V. Softmax without a maximum overflows; the operator subtracts one. Where it has infinite elements, and where
`Where` hides scores, the operators spread NaN further, and the calls stay.

Quantised islands and operators have no differences on the extremes of integers.
"""


def found() -> dict[str, list[str]]:
    """Return the names of all lowerings, by kind; operators that stay as they are have none."""
    plug_ins = {kind: discover(f"onnxtile.fusion.{kind}", of) for kind, of in KINDS.items()}
    return {
        kind: sorted(n for n, one in of.items() if not isinstance(one, StayingOperator))
        for kind, of in plug_ins.items()
    }


def page() -> str:
    """Return the page. Raises KeyError for a lowering without an obligation, ValueError where one does not hold."""
    lines, counts = [], {"proved": 0, "tested": 0}
    for kind, names in found().items():
        title, folder = _TITLES[kind]
        lines += [
            "",
            f"## {title}",
            "",
            f"In `{folder}`.",
            "",
            "| lowering | obligation | for all shapes |",
            "|---|---|---|",
        ]
        for name in names:
            obligation = OBLIGATIONS[kind][name]
            if obligation.proof is not None and not obligation.proof():
                raise ValueError(f"{name}: the obligation does not hold: {obligation.says}")
            word = "tested" if obligation.proof is None else "proved"
            state = f"{word}: {obligation.because}" if obligation.because else word
            counts[word] += 1
            lines.append(f"| `{name}` | {obligation.says} | {state} |")
    total = f"\n{counts['proved']} of {sum(counts.values())} lowerings are proved, {counts['tested']} are tested.\n"
    return _HEAD + _edge_rows() + _EDGE_NOTES + total + "\n".join(lines) + "\n"


def _edge_rows() -> str:
    """Return the table of the numbers on which lowerings may differ."""
    lines = ["| lowering | kinder | no number | beyond range |", "|---|---|---|---|"]
    for name, effects in sorted(EDGE_ROWS.items()):
        shown = (effects.get(effect, "") for effect in ("kinder", "no number", "beyond range"))
        lines.append(f"| `{name}` | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"written: {PAGE}\n")
