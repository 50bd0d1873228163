"""HardSwish."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.lower.elementwise import require_formula, times, value_of
from onnxtile.fusion.lower.lowering import CallSite, Lowering, Replacement, require_type
from onnxtile.fusion.lower.terms import Poly, clip, number, product, total

_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
"""The standard takes double as well, but onnxruntime 1.31 has no kernel for it."""


def formula(x: Poly) -> Poly:
    """Return the formula that a body has to have."""
    return product(x, clip(total(times(1.0 / 6.0, x), number(0.5)), 0.0, 1.0))


class HardSwish(Lowering):
    """https://onnx.ai/onnx/operators/onnx__HardSwish.html; onnxruntime has no other."""

    name = "HardSwish"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return HardSwish-14."""
        x = require_formula(site, formula, "x · clip(x/6 + 1/2, 0, 1)")
        require_type("HardSwish", x, _TYPES)
        return Replacement.one("HardSwish", (value_of(x),), since=14)


HARD_SWISH = HardSwish()
