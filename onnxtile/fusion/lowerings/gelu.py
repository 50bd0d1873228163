"""GELU by the error function and by its tanh approximation, as it is and without its factor 1/2."""

from __future__ import annotations

import math

import numpy as np

from onnxtile.fusion.lower.elementwise import require_formula, times, value_of
from onnxtile.fusion.lower.lowering import (
    FLOATS,
    ORT_DOMAIN,
    CallSite,
    Literal,
    Lowering,
    Made,
    NewNode,
    Replacement,
    Setting,
    require_type,
)
from onnxtile.fusion.lower.terms import Poly, atom, number, power, product, total


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
