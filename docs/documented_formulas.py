"""The formulas by which onnx and onnxruntime document operators, read from the installed packages as sympy's, and proofs with them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import onnx
import sympy
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_state

_NAMES = "A B C A_scale B_scale C_scale A_zero_point B_zero_point C_zero_point x scale mean variance epsilon alpha beta product input"
SYMBOLS: Mapping[str, sympy.Symbol] = {name: sympy.Symbol(name, real=True) for name in _NAMES.split()}
_WORDS: Mapping[str, Any] = {
    **SYMBOLS,
    **{name: sympy.Function(name) for name in ("quantize", "dequantize", "Sigmoid")},
}


def documentation(op: str, version: int | None = None) -> str:
    """Return what onnx says of an operator, or onnxruntime for an operator of its own."""
    if version is not None:
        return str(onnx.defs.get_schema(op, version, "").doc)
    schemas = runtime_state.get_all_operator_schema()
    return str(next(one.doc for one in schemas if (one.domain, one.name) == ("com.microsoft", op)))


def documented(text: str, pattern: str, **words: Any) -> sympy.Expr:
    """Return the formula that stands in a text where `pattern` has its group. Raises ValueError where the text has none."""
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no formula {pattern!r} in: {text[:200]}")
    return sympy.sympify(found.group(1).strip(" `"), locals={**_WORDS, **words})


def _real(name: str) -> sympy.Expr:
    return SYMBOLS[f"{name}_scale"] * (SYMBOLS[name] - SYMBOLS[f"{name}_zero_point"])


def _is_zero(formula: sympy.Expr) -> bool:
    return bool(sympy.simplify(sympy.expand(formula)) == 0)


def is_quantised_sum() -> bool:
    """Prove that QLinearAdd is the sum of what is dequantised, quantised."""
    stored = documented(documentation("QLinearAdd"), r"C = (.+)")
    return _is_zero(stored - ((_real("A") + _real("B")) / SYMBOLS["C_scale"] + SYMBOLS["C_zero_point"]))


def is_quantised_product() -> bool:
    """Prove that QLinearMul is the product of what is dequantised, quantised."""
    stored = documented(documentation("QLinearMul"), r"C = (.+)")
    return _is_zero(stored - (_real("A") * _real("B") / SYMBOLS["C_scale"] + SYMBOLS["C_zero_point"]))


def is_quantised_sigmoid() -> bool:
    """Prove that QLinearSigmoid is Sigmoid of what is dequantised, quantised, and its Sigmoid that of onnx."""
    text, x = documentation("QLinearSigmoid"), SYMBOLS["x"]
    whole = documented(text, r"f\(x\) = (quantize\(.+?\)\)\))")
    inner = documented(text, r"Sigmoid\(x\) = ([^`]+)")
    ours = documented(documentation("Sigmoid", 13), r"y = (1 / \(1 \+ exp\(-x\)\))")
    return bool(whole == _WORDS["quantize"](_WORDS["Sigmoid"](_WORDS["dequantize"](x)))) and _is_zero(inner - ours)


def is_quantised_leaky_relu() -> bool:
    """Prove that QLinearLeakyRelu is LeakyRelu of what is dequantised, quantised, below zero and from zero on."""
    theirs, ours = documentation("QLinearLeakyRelu"), documentation("LeakyRelu", 16)
    x, real = SYMBOLS["x"], _WORDS["dequantize"](SYMBOLS["x"])
    pairs = (("<", r"f\(x\) = ([^`=]+?) for x < 0"), (">=", r"f\(x\) = ([^`=]+?) for x >= 0"))
    return all(
        documented(theirs, rf"f\(x\) = ([^`=]+?) for dequantize\(x\) {sign} 0")
        == _WORDS["quantize"](documented(ours, pattern).subs(x, real))
        for sign, pattern in pairs
    )


def is_quantised_softmax() -> bool:
    """Prove that onnxruntime documents QLinearSoftmax by the formula of onnx's Softmax."""
    total = sympy.Symbol("total", positive=True)
    theirs, ours = (
        documented(
            text.replace("ReduceSum(Exp(input), axis=axis, keepdims=1)", "total"),
            r"Softmax\(input, axis\) = (.+)",
            Exp=sympy.exp,
            total=total,
        )
        for text in (documentation("QLinearSoftmax"), documentation("Softmax", 13))
    )
    return _is_zero(theirs - ours)


def is_chosen(op: str, onnx_op: str, version: int) -> bool:
    """Prove that onnxruntime documents an operator by the words of onnx's, which choose elements, and that scales change no number.

    Each stored element is dequantised with its scale and quantised with that of the result, and then stands for the same number.
    """
    theirs, ours = ("".join(text.split()) for text in (documentation(op), documentation(onnx_op, version)))
    stored = _real("A") / SYMBOLS["C_scale"] + SYMBOLS["C_zero_point"]
    return bool(theirs) and ours.startswith(theirs) and _is_zero(_real("C").subs(SYMBOLS["C"], stored) - _real("A"))


def is_gemm() -> bool:
    """Prove that Gemm with alpha = beta = 1 is a product and a bias."""
    text = documentation("Gemm", 13).replace("A' * B'", "product")
    formula = documented(text, r"Y = ([^,]+),").subs({SYMBOLS["alpha"]: 1, SYMBOLS["beta"]: 1})
    return _is_zero(formula - (SYMBOLS["product"] + SYMBOLS["C"]))


def is_instance_norm(formula: sympy.Expr, mean: sympy.Expr, variance: sympy.Expr, bias: sympy.Expr) -> bool:
    """Prove that a formula of the elements of a channel is that of InstanceNormalization."""
    words = {"mean": mean, "variance": variance, "B": bias}
    return _is_zero(documented(documentation("InstanceNormalization", 6), r"y = (.+?),", **words) - formula)


def is_l2_norm(formula: sympy.Expr, norm: sympy.Expr) -> bool:
    """Prove that a formula of x is x over its norm, which LpNormalization of p = 2 is."""
    text = documentation("LpNormalization", 22).replace("Lp_norm(input, axis)", "norm")
    return _is_zero(documented(text, r"output = (.+?)`", norm=norm, input=SYMBOLS["x"]) - formula)


def is_largest_moved() -> bool:
    """Prove that the largest stored element stands for the largest number, s > 0: of two, and so of any number of elements."""
    a, zero = sympy.symbols("a z", real=True)
    unit, more = sympy.Symbol("s", positive=True), sympy.Symbol("more", nonnegative=True)
    pairs = ((a + more, a), (a, a + more))
    return all(
        _is_zero(sympy.Max(*(unit * (q - zero) for q in pair)) - unit * (sympy.Max(*pair) - zero)) for pair in pairs
    )
