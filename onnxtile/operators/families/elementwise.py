"""Operators that compute element by element."""

from __future__ import annotations

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLinks, broadcast, same_place
from onnxtile.operators.table import (
    ANY,
    COMPUTED,
    FIRST,
    NO_PRODUCTS,
    NOTHING,
    RISING,
    Family,
    Operations,
    Operator,
    SizeNumbers,
    each,
)


def several_operations(view: NodeView) -> int:
    """Count one operation between any two operands; a mean has a division more."""
    given = sum(view.has(position) for position in range(len(view.node.inputs)))
    return view.elements() * (given - 1 + (view.operator == "Mean"))


def clip_operations(view: NodeView) -> int:
    """Count a comparison for each bound; those before opset 11 are attributes."""
    bounds = sum(view.has(1 + index) or name in view.node.attributes for index, name in enumerate(("min", "max")))
    return view.elements() * bounds


def swish_operations(view: NodeView) -> int:
    """Count a sigmoid and a product, and one with alpha where it is not 1."""
    return view.elements() * (5 + (view.node.attributes.get_float("alpha", 1.0) != 1))


def gelu_operations(view: NodeView) -> int:
    """Count 0.5 x (1 + erf(x / 1.414)), or the form with tanh and a cube, where it is asked for; FastGelu may add a bias."""
    fast = view.operator != "Gelu"
    tanh = fast or view.text("approximate", "none") == "tanh"
    return view.elements() * ((8 if tanh else 5) + (fast and view.has(1)))


def gated_sum(view: NodeView, axis: int) -> AxisLinks:
    """GatedAdd: a gate for each row, which a weight may make of a whole row."""
    if len(view.inputs) > 3 and view.inputs[3] is not None:
        raise NotApplicable("it makes its gates of whole rows")
    return broadcast(view, axis)


_UNARY = Operator(over=FIRST, reads=same_place, work=each(1), saves=saves.stops)
_BINARY = Operator(over=ANY, reads=broadcast, work=each(1), saves=saves.stops)
_OF_RUNTIME = Operator(name=f"{MICROSOFT}::", over=FIRST, reads=same_place, work=NO_PRODUCTS)

FAMILY = Family(
    "elementwise",
    (
        *_UNARY.rows("Abs", saves=saves.first, numbers=COMPUTED),
        *_UNARY.rows(
            "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Log Sin Sinh Tan ThresholdedRelu", saves=saves.first
        ),
        *_BINARY.rows("Add", saves=saves.nothing, numbers=RISING, commutes=True),
        *_BINARY.rows("And Or", numbers=RISING, truths=True, commutes=True),
        *_UNARY.rows("BitCast", work=NOTHING),
        *_BINARY.rows("BitShift BitwiseXor"),
        *_BINARY.rows("BitwiseAnd BitwiseOr", commutes=True),
        *_UNARY.rows("BitwiseNot"),
        *_UNARY.rows("Ceil Floor", numbers=RISING),
        *_UNARY.rows("Celu HardSwish Mish", work=each(5), saves=saves.first),
        *_BINARY.rows("Clip", over=FIRST, work=Operations(clip_operations), saves=saves.first, numbers=COMPUTED),
        *_BINARY.rows(
            "Div", saves=saves.quotient, numbers=SizeNumbers(falling=frozenset({1})), takes={1: takes.divisor}
        ),
        *_UNARY.rows("Elu Sigmoid", work=each(4), saves=saves.result),
        *_BINARY.rows(
            "Equal",
            numbers=COMPUTED,
            takes={0: takes.compared_with, 1: takes.compared_with},
            truths=True,
            commutes=True,
        ),
        *_UNARY.rows("Exp Reciprocal Relu Tanh", saves=saves.result),
        *_UNARY.rows("Gelu", over=reasons.READ_AGAIN, work=Operations(gelu_operations), saves=saves.first),
        *_BINARY.rows("Greater GreaterOrEqual", numbers=SizeNumbers(falling=frozenset({1})), truths=True),
        *_UNARY.rows("HardSigmoid", work=each(4), saves=saves.first),
        *_UNARY.rows("IsInf IsNaN", truths=True),
        *_UNARY.rows("LeakyRelu", work=each(2), saves=saves.first),
        *_BINARY.rows("Less LessOrEqual", numbers=SizeNumbers(falling=frozenset({0})), truths=True),
        *_BINARY.rows(
            "Max Min", work=Operations(several_operations), saves=saves.operands, numbers=RISING, commutes=True
        ),
        *_BINARY.rows("Mean Sum", work=Operations(several_operations), saves=saves.nothing, commutes=True),
        *_BINARY.rows("Mod", numbers=COMPUTED, takes={1: takes.divisor}),
        *_BINARY.rows("Mul", saves=saves.other_factor, numbers=RISING, commutes=True),
        *_UNARY.rows("Neg", saves=saves.nothing, numbers=SizeNumbers(falling=frozenset({0}))),
        *_UNARY.rows("Not", numbers=SizeNumbers(falling=frozenset({0})), truths=True),
        *_BINARY.rows("PRelu", work=each(2), saves=saves.operands),
        *_BINARY.rows("Pow", saves=saves.operands, numbers=COMPUTED),
        *_UNARY.rows("Round Sign", numbers=COMPUTED),
        *_UNARY.rows("Selu", work=each(5), saves=saves.result),
        *_UNARY.rows("Shrink Softplus Softsign", work=each(3), saves=saves.first),
        *_UNARY.rows("Sqrt", saves=saves.result, numbers=COMPUTED),
        *_BINARY.rows("Sub", saves=saves.nothing, numbers=SizeNumbers(falling=frozenset({1}))),
        *_UNARY.rows(
            "SwiGLU", over=reasons.OTHER_SIZE, reads=reasons.NO_KERNEL, work=reasons.NO_FORMULA, saves=saves.operands
        ),
        *_UNARY.rows("Swish", work=Operations(swish_operations), saves=saves.first),
        *_BINARY.rows("Where", over=frozenset({1, 2}), work=NOTHING, saves=saves.chosen(0), numbers=COMPUTED),
        *_BINARY.rows("Xor", truths=True, commutes=True),
        *_OF_RUNTIME.rows("BiasAdd BiasSplitGelu", over=reasons.NO_KERNEL, reads=reasons.NO_KERNEL),
        *_OF_RUNTIME.rows("BiasGelu", reads=broadcast, work=each(6)),
        *_OF_RUNTIME.rows("FastGelu", over=reasons.READ_AGAIN, reads=broadcast, work=Operations(gelu_operations)),
        *_OF_RUNTIME.rows("GatedAdd", over=frozenset({0, 1}), reads=gated_sum),
        *_OF_RUNTIME.rows("Gelu", over=reasons.READ_AGAIN, work=each(5)),
        *_OF_RUNTIME.rows("MurmurHash3 SampleOp"),
        *_OF_RUNTIME.rows("QuickGelu", over=reasons.READ_AGAIN, work=each(3)),
        *_OF_RUNTIME.rows("ScaledSiLU", quantised=reasons.FLOAT_SCALE),
    ),
)
