"""Lowerings of activations: GELU and its tanh form, HardSwish, Mish, SiLU, QuickGELU and Softmax."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.lowering import (
    FLOATS,
    ORT_DOMAIN,
    CallSite,
    Literal,
    Lowering,
    Made,
    NewNode,
    NotLowered,
    Replacement,
    Setting,
    require_formula,
    require_shape,
    require_type,
    times,
    value_of,
)
from onnxtile.fusion.lower.norms import only_axis
from onnxtile.fusion.lower.terms import Poly, atom, clip, inputs_of, number, power, product, same, total, variable


def _exact(x: Poly) -> Poly:
    return atom("Erf", times(math.sqrt(0.5), x))


def _approximate(x: Poly) -> Poly:
    return atom("Tanh", times(math.sqrt(2.0 / math.pi), total(x, times(0.044715, power(x, 3.0)))))


class GeLU(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Gelu.html, and Gelu and FastGelu of onnxruntime's docs/ContribOperators.md.

    Without its factor 1/2, which an optimiser folded into a weight, it is that operator and a product by 2.
    """

    def __init__(self, name: str, *, tanh: bool = False, twice: bool = False) -> None:
        self.name = name
        self._tanh = tanh
        self._twice = twice

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Gelu-20."""
        return self._proved(site, "Gelu", {"approximate": "tanh"} if self._tanh else {}, "", 20)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.Gelu or FastGelu, which ask for no opset."""
        return self._proved(site, "FastGelu" if self._tanh else "Gelu", {}, ORT_DOMAIN, 1)

    def _proved(
        self, site: CallSite, op_type: str, attributes: dict[str, Setting], domain: str, since: int
    ) -> Replacement:
        x = require_formula(site, self.formula, self._text)
        dtype = require_type(op_type, x, FLOATS)
        gelu = NewNode(op_type, (value_of(x),), attributes, domain, since)
        if not self._twice:
            return Replacement((gelu,), (Made(0),))
        two = Literal(np.asarray(2.0, dtype.numpy()), dtype, "two")
        return Replacement((gelu, NewNode("Mul", (Made(0), two), since=7)), (Made(1),))

    def formula(self, x: Poly) -> Poly:
        """Return the formula that a body has to have."""
        gate = total(number(1.0), _approximate(x) if self._tanh else _exact(x))
        return product(x, gate) if self._twice else times(0.5, x, gate)

    @property
    def _text(self) -> str:
        inner = "tanh(√(2/π) · (x + 0.044715 x³))" if self._tanh else "erf(x/√2)"
        return f"{'x' if self._twice else 'x/2'} · (1 + {inner})"


GELU = GeLU("GeLU")
GELU_TANH = GeLU("GeLUTanh", tanh=True)
TWICE_GELU = GeLU("TwiceGeLU", twice=True)
TWICE_GELU_TANH = GeLU("TwiceGeLUTanh", tanh=True, twice=True)


# HardSwish.

_HARD_SWISH_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
"""The standard takes double as well, but onnxruntime 1.31 has no kernel for it."""


def hard_swish_formula(x: Poly) -> Poly:
    """Return the formula that a body has to have."""
    return product(x, clip(total(times(1.0 / 6.0, x), number(0.5)), 0.0, 1.0))


class HardSwish(Lowering):
    """https://onnx.ai/onnx/operators/onnx__HardSwish.html; onnxruntime has no other."""

    name = "HardSwish"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return HardSwish-14."""
        x = require_formula(site, hard_swish_formula, "x · clip(x/6 + 1/2, 0, 1)")
        require_type("HardSwish", x, _HARD_SWISH_TYPES)
        return Replacement.one("HardSwish", (value_of(x),), since=14)


HARD_SWISH = HardSwish()


# Mish.

_MISH_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


def mish_formula(x: Poly) -> Poly:
    """Return the formula that a body has to have."""
    return product(x, atom("Tanh", atom("Softplus", x)))


class Mish(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Mish.html; onnxruntime has no other."""

    name = "Mish"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Mish-18."""
        x = require_formula(site, mish_formula, "x · tanh(softplus(x))")
        require_type("Mish", x, _MISH_TYPES)
        return Replacement.one("Mish", (value_of(x),), since=18)


MISH = Mish()


# The sigmoid linear unit, and GELU by its sigmoid approximation, which is the same of another factor.


class Swish(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Swish.html, and QuickGelu of onnxruntime's docs/ContribOperators.md: x · σ(α x)."""

    def __init__(self, name: str, alpha: float) -> None:
        self.name = name
        self.alpha = alpha

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Swish-24."""
        return self._proved(site, "Swish", "", 24)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.QuickGelu."""
        return self._proved(site, "QuickGelu", ORT_DOMAIN, 1)

    def _proved(self, site: CallSite, op_type: str, domain: str, since: int) -> Replacement:
        factor = "" if self.alpha == 1.0 else f"{self.alpha:g} "
        x = require_formula(site, self.formula, f"x · σ({factor}x)")
        require_type(op_type, x, FLOATS)
        return Replacement.one(op_type, (value_of(x),), {"alpha": self.alpha}, since=since, domain=domain)

    def formula(self, x: Poly) -> Poly:
        """Return the formula that a body has to have."""
        return product(x, atom("Sigmoid", times(self.alpha, x)))


SILU = Swish("SiLU", 1.0)
QUICK_GELU = Swish("QuickGeLU", 1.702)


# Softmax along one axis.

_SOFTMAX_TYPES = FLOATS | {ir.DataType.DOUBLE}


def softmax_formula(x: Poly, axis: int, *, shifted: bool) -> Poly:
    """Return the formula that a body has to have, where it is `shifted` by the largest element or not."""
    top = atom("ReduceMax", (axis,), 1, x)
    exponentials = atom("Exp", total(x, product(number(-1.0), top)) if shifted else x)
    return product(exponentials, power(atom("ReduceSum", (axis,), 1, exponentials), -1.0))


class Softmax(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Softmax.html."""

    name = "Softmax"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Softmax-13, which shifts by the largest element also where the body does not, and so does not overflow."""
        read = inputs_of(site.forms[0])
        if len(site.forms) != 1 or len(read) != 1:
            raise NotLowered("its body is no softmax of one value")
        index = read.pop()
        axis = only_axis(site.forms[0], "ReduceSum")
        wanted = (softmax_formula(variable(index), axis, shifted=shifted) for shifted in (True, False))
        if not any(same(site.forms[0], form, site.tolerance()) for form in wanted):
            raise NotLowered("its body is not exp(x - max x) / Σ exp(x - max x) along one axis")
        x = site.arguments[index]
        require_shape(site.results[0], x)
        if require_type("Softmax", x, _SOFTMAX_TYPES) != site.dtype:
            raise NotLowered("its input and its result differ in their element types")
        return Replacement.one("Softmax", (value_of(x),), {"axis": axis}, since=13)


SOFTMAX = Softmax()
