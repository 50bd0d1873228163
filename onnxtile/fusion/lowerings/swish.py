"""The sigmoid linear unit, and GELU by its sigmoid approximation, which is the same of another factor."""

from __future__ import annotations

from onnxtile.fusion.lower.elementwise import require_formula, times, value_of
from onnxtile.fusion.lower.lowering import FLOATS, ORT_DOMAIN, CallSite, Lowering, Replacement, require_type
from onnxtile.fusion.lower.terms import Poly, atom, product


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
