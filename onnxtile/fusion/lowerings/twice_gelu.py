"""Twice the GELU, whose factor 1/2 was folded into a weight."""

from __future__ import annotations

import math

import numpy as np

from onnxtile.fusion.lowering import (
    FLOATS,
    ORT_DOMAIN,
    CallSite,
    Literal,
    Lowering,
    Made,
    NewNode,
    Replacement,
    require_type,
)
from onnxtile.fusion.proofs.elementwise import require_formula, times, value_of
from onnxtile.fusion.proofs.terms import Poly, atom, number, product, total


def _formula(x: Poly) -> Poly:
    return product(x, total(number(1.0), atom("Erf", times(math.sqrt(0.5), x))))


class TwiceGeLU(Lowering):
    """Gelu, and a product by 2."""

    name = "TwiceGeLU"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Gelu-20, doubled."""
        return self._doubled(site, "", 20)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.Gelu, doubled."""
        return self._doubled(site, ORT_DOMAIN, 1)

    @staticmethod
    def _doubled(site: CallSite, domain: str, since: int) -> Replacement:
        x = require_formula(site, _formula, "x · (1 + erf(x/√2))")
        dtype = require_type("Gelu", x, FLOATS)
        two = Literal(np.asarray(2.0, dtype.numpy()), dtype, "two")
        steps = (NewNode("Gelu", (value_of(x),), {}, domain, since), NewNode("Mul", (Made(0), two), since=7))
        return Replacement(steps, (Made(1),))


TWICE_GELU = TwiceGeLU()
