"""GELU by the error function."""

from __future__ import annotations

import math

from onnxtile.fusion.lowering import FLOATS, ORT_DOMAIN, CallSite, Lowering, Replacement, require_type
from onnxtile.fusion.proofs.elementwise import require_formula, times, value_of
from onnxtile.fusion.proofs.terms import Poly, atom, number, total


def _formula(x: Poly) -> Poly:
    return times(0.5, x, total(number(1.0), atom("Erf", times(math.sqrt(0.5), x))))


class GeLU(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Gelu.html, and Gelu of onnxruntime's docs/ContribOperators.md."""

    name = "GeLU"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Gelu-20."""
        x = require_formula(site, _formula, "x/2 · (1 + erf(x/√2))")
        require_type("Gelu", x, FLOATS)
        return Replacement.one("Gelu", (value_of(x),), since=20)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.Gelu, which asks for no opset."""
        x = require_formula(site, _formula, "x/2 · (1 + erf(x/√2))")
        require_type("Gelu", x, FLOATS)
        return Replacement.one("Gelu", (value_of(x),), since=1, domain=ORT_DOMAIN)


GELU = GeLU()
