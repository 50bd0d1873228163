"""Mish."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.lower.elementwise import require_formula, value_of
from onnxtile.fusion.lower.lowering import CallSite, Lowering, Replacement, require_type
from onnxtile.fusion.lower.terms import Poly, atom, product

_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


def formula(x: Poly) -> Poly:
    """Return the formula that a body has to have."""
    return product(x, atom("Tanh", atom("Softplus", x)))


class Mish(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Mish.html; onnxruntime has no other."""

    name = "Mish"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Mish-18."""
        x = require_formula(site, formula, "x · tanh(softplus(x))")
        require_type("Mish", x, _TYPES)
        return Replacement.one("Mish", (value_of(x),), since=18)


MISH = Mish()
