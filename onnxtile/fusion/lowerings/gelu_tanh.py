"""GELU by its tanh approximation."""

from __future__ import annotations

import math

from onnxtile.fusion.lowering import FLOATS, ORT_DOMAIN, CallSite, Lowering, Replacement, require_type
from onnxtile.fusion.proofs.elementwise import require_formula, times, value_of
from onnxtile.fusion.proofs.terms import Poly, atom, number, power, total

_TEXT = "x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))"


def _formula(x: Poly) -> Poly:
    inner = times(math.sqrt(2.0 / math.pi), total(x, times(0.044715, power(x, 3.0))))
    return times(0.5, x, total(number(1.0), atom("Tanh", inner)))


class GeLUTanh(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Gelu.html, and FastGelu of onnxruntime's docs/ContribOperators.md."""

    name = "GeLUTanh"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Gelu-20 with approximate = tanh."""
        x = require_formula(site, _formula, _TEXT)
        require_type("Gelu", x, FLOATS)
        return Replacement.one("Gelu", (value_of(x),), {"approximate": "tanh"}, since=20)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.FastGelu."""
        x = require_formula(site, _formula, _TEXT)
        require_type("FastGelu", x, FLOATS)
        return Replacement.one("FastGelu", (value_of(x),), since=1, domain=ORT_DOMAIN)


GELU_TANH = GeLUTanh()
