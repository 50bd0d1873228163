"""The sigmoid linear unit."""

from __future__ import annotations

from onnxtile.fusion.lowering import FLOATS, ORT_DOMAIN, CallSite, Lowering, Replacement, require_type
from onnxtile.fusion.proofs.elementwise import require_formula, value_of
from onnxtile.fusion.proofs.terms import Poly, atom, product


def _formula(x: Poly) -> Poly:
    return product(x, atom("Sigmoid", x))


class SiLU(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Swish.html, and QuickGelu of onnxruntime's docs/ContribOperators.md."""

    name = "SiLU"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Swish-24 with alpha = 1."""
        x = require_formula(site, _formula, "x · σ(x)")
        require_type("Swish", x, FLOATS)
        return Replacement.one("Swish", (value_of(x),), {"alpha": 1.0}, since=24)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.QuickGelu with alpha = 1, which is the same."""
        x = require_formula(site, _formula, "x · σ(x)")
        require_type("QuickGelu", x, FLOATS)
        return Replacement.one("QuickGelu", (value_of(x),), {"alpha": 1.0}, since=1, domain=ORT_DOMAIN)


SILU = SiLU()
