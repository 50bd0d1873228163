"""GELU by its sigmoid approximation, and the sigmoid linear unit with any other factor."""

from __future__ import annotations

from onnxtile.fusion.lowering import FLOATS, ORT_DOMAIN, CallSite, Lowering, Replacement, require_type
from onnxtile.fusion.proofs.elementwise import require_formula, times, value_of
from onnxtile.fusion.proofs.terms import Poly, atom, product

_ALPHA = 1.702


def _formula(x: Poly) -> Poly:
    return product(x, atom("Sigmoid", times(_ALPHA, x)))


class QuickGeLU(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Swish.html, and QuickGelu of onnxruntime's docs/ContribOperators.md."""

    name = "QuickGeLU"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Swish-24 with alpha = 1.702."""
        x = require_formula(site, _formula, "x · σ(1.702 x)")
        require_type("Swish", x, FLOATS)
        return Replacement.one("Swish", (value_of(x),), {"alpha": _ALPHA}, since=24)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.QuickGelu with alpha = 1.702."""
        x = require_formula(site, _formula, "x · σ(1.702 x)")
        require_type("QuickGelu", x, FLOATS)
        return Replacement.one("QuickGelu", (value_of(x),), {"alpha": _ALPHA}, since=1, domain=ORT_DOMAIN)


QUICK_GELU = QuickGeLU()
