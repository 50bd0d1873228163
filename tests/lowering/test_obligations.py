"""The page docs/lowerings.md: each lowering has an obligation, and those that are called proved hold."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import ROOT, docs_script

sympy: Any = importlib.import_module("sympy")
DOCS = ROOT / "docs"


@pytest.fixture(name="script", scope="module")
def _script() -> ModuleType:
    return docs_script("lowering_obligations")


@pytest.fixture(name="formulas", scope="module")
def _formulas(script: ModuleType) -> ModuleType:
    del script
    return sys.modules["documented_formulas"]


def test_choices_are_documented_in_the_words_of_onnx(formulas: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert formulas.is_chosen("QLinearWhere", "Where", 16)
    assert formulas.is_chosen("QLinearConcat", "Concat", 13)
    assert not formulas.is_chosen("QLinearWhere", "Concat", 13)
    assert not formulas.is_chosen("QLinearConcat", "Where", 16)
    monkeypatch.setattr(formulas, "documentation", lambda *_: "")
    assert not formulas.is_chosen("QLinearWhere", "Where", 16)


@pytest.mark.parametrize(
    ("proof", "op", "old", "new"),
    [
        ("is_quantised_sum", "QLinearAdd", "B_scale * (", "A_scale * ("),
        ("is_quantised_sum", "QLinearAdd", "+ C_zero_point", ""),
        ("is_quantised_product", "QLinearMul", "/C_scale", "*C_scale"),
        (
            "is_quantised_sigmoid",
            "QLinearSigmoid",
            "quantize(Sigmoid(dequantize(x)))",
            "quantize(dequantize(Sigmoid(x)))",
        ),
        ("is_quantised_sigmoid", "QLinearSigmoid", "exp(-x)", "exp(x)"),
        ("is_quantised_softmax", "QLinearSoftmax", "Exp(input) / ", "input / "),
        ("is_quantised_leaky_relu", "QLinearLeakyRelu", "alpha * dequantize(x)", "dequantize(alpha * x)"),
        ("is_gemm", "Gemm", "beta * C", "beta * C * C"),
    ],
)
def test_another_documentation_is_not_proved(
    formulas: ModuleType, monkeypatch: pytest.MonkeyPatch, proof: str, op: str, old: str, new: str
) -> None:
    assert getattr(formulas, proof)()
    read = formulas.documentation

    def changed(name: str, version: int | None = None) -> str:
        text: str = read(name, version)
        assert name != op or old in text
        return text.replace(old, new) if name == op else text

    monkeypatch.setattr(formulas, "documentation", changed)
    assert not getattr(formulas, proof)()


def test_another_formula_is_not_that_of_the_documentation(script: ModuleType, formulas: ModuleType) -> None:
    x, mean = script.x, script.mean_of(script.x)
    variance = script.mean_of((x - mean) ** 2)
    centred = (x - mean) / sympy.sqrt(variance + script.epsilon) * script.scale + script.bias
    assert formulas.is_instance_norm(centred, mean, variance, script.bias)
    assert not formulas.is_instance_norm(centred - script.bias, mean, variance, script.bias)
    norm = sympy.sqrt(script.count * script.mean_of(x**2))
    assert formulas.is_l2_norm(x / norm, norm)
    assert not formulas.is_l2_norm(x / norm**2, norm)
    with pytest.raises(ValueError, match="no formula"):
        formulas.documented("no words", "y = (.+)")


def test_the_page_is_that_of_the_script(script: ModuleType) -> None:
    assert (DOCS / "lowerings.md").read_text(encoding="utf-8") == script.page(), "python docs/lowering_obligations.py"


def test_each_lowering_has_one_obligation_and_no_other_has(script: ModuleType) -> None:
    assert {kind: sorted(of) for kind, of in script.OBLIGATIONS.items()} == script.found()


@pytest.mark.parametrize(
    ("op", "version", "wrong"),
    [
        ("Gelu", 20, lambda s: s.x / 2 * (1 + sympy.Function("Erf")(s.x / sympy.sqrt(3)))),
        ("HardSwish", 22, lambda s: s.x * sympy.Max(0, sympy.Min(1, s.x / 6 + sympy.Rational(1, 3)))),
        ("Mish", 22, lambda s: s.x * sympy.Function("Tanh")(sympy.Function("Softplus")(2 * s.x))),
        ("Swish", 24, lambda s: s.x * sympy.Function("Sigmoid")(s.x)),
    ],
)
def test_another_formula_is_not_proved(script: ModuleType, op: str, version: int, wrong: object) -> None:
    assert callable(wrong)
    assert not script.is_equal(wrong(script), script.defined(op, version, {"x": script.x}))


def test_another_norm_is_not_proved(script: ModuleType) -> None:
    x, given = script.x, {"x": script.x, "scale": script.scale, "bias": script.bias}
    spread = sympy.sqrt(script.mean_of(x**2) + script.epsilon)
    wrong = (x - script.mean_of(x)) / spread * script.scale + script.bias
    assert not script.is_equal(wrong, script.defined("LayerNormalization", 17, given, axis=-1))


def test_a_mean_is_linear(script: ModuleType) -> None:
    x = script.x
    centred = script.mean_of((x - script.mean_of(x)) ** 2)
    assert script.is_equal(centred, script.mean_of(x**2) - script.mean_of(x) ** 2)
    assert not script.is_equal(script.mean_of(x**2), script.mean_of(x) ** 2)


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (0.70710677, sympy.sqrt(2) / 2),
        (0.63661975, 2 / sympy.pi),
        (0.16666667, sympy.Rational(1, 6)),
        (0.044715, sympy.Rational("0.044715")),
        (1.702, sympy.Rational("1.702")),
    ],
)
def test_a_rounded_constant_is_read_as_what_it_is_rounded_from(script: ModuleType, number: float, wanted: Any) -> None:
    assert script.exact(number) == wanted


def test_an_obligation_that_does_not_hold_stops_the_script(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**script.OBLIGATIONS["lowerings"], "Mish": script.Obligation("x is x²", lambda: False)}
    monkeypatch.setattr(script, "OBLIGATIONS", {**script.OBLIGATIONS, "lowerings": wrong})
    with pytest.raises(ValueError, match="Mish: the obligation does not hold"):
        script.page()


def test_a_call_that_is_not_opened_is_not_proved(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    del script
    opened = sys.modules["opened_calls"]
    assert opened.is_opened("SkipRMSNorm")
    monkeypatch.setitem(opened.NORMS, "SkipRMSNorm", opened.NORMS["SkipLayerNorm"])
    assert not opened.is_opened("SkipRMSNorm")


@pytest.mark.parametrize(
    ("proof", "table", "operator", "other"),
    [
        ("is_rotary_embedding", "_ELEMENTWISE", "Sub", lambda a, b: a - b if a.is_integer else a + b),
        ("is_rotary_embedding", "_ELEMENTWISE", "Add", lambda a, b: a - b),
        ("is_attention", "_ELEMENTWISE", "Sqrt", lambda a: a),
        ("is_attention", "_ELEMENTWISE", "Add", lambda a, b: a * b),
        ("is_attention", "_MOVED", "Softmax", lambda of, _: of[0]),
    ],
)
def test_another_function_of_an_operator_is_not_proved(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, proof: str, table: str, operator: str, other: Any
) -> None:
    """The function of the operator is evaluated with another meaning of one of its nodes."""
    indexed = sys.modules[script.is_attention.__module__]
    assert getattr(indexed, proof)()
    monkeypatch.setitem(getattr(indexed, table), operator, other)
    assert not getattr(indexed, proof)()


def test_a_part_that_is_not_known_is_no_proof(script: ModuleType) -> None:
    indexed = sys.modules[script.is_attention.__module__]
    size, index = sympy.symbols("size index", integer=True, nonnegative=True)
    parts = [indexed.given(name, (size,)) for name in "ab"]
    with pytest.raises(ValueError, match="the part in which index lies is not known"):
        indexed.joined(parts, 0).at((index,))
    with pytest.raises(ValueError, match="is not"):
        indexed.reshaped(indexed.given("a", (size, size)), (size * size,))
