"""Twice GELU by its tanh approximation, whose factor 1/2 was folded into a weight."""

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
from onnxtile.fusion.proofs.terms import Poly, atom, number, power, product, total


def _formula(x: Poly) -> Poly:
    inner = times(math.sqrt(2.0 / math.pi), total(x, times(0.044715, power(x, 3.0))))
    return product(x, total(number(1.0), atom("Tanh", inner)))


class TwiceGeLUTanh(Lowering):
    """GELU by its tanh approximation, and a product by 2."""

    name = "TwiceGeLUTanh"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Gelu-20 with approximate = tanh, doubled."""
        return self._doubled(site, "Gelu", {"approximate": "tanh"}, "", 20)

    def to_ort(self, site: CallSite) -> Replacement:
        """Return com.microsoft.FastGelu, doubled."""
        return self._doubled(site, "FastGelu", {}, ORT_DOMAIN, 1)

    @staticmethod
    def _doubled(site: CallSite, op_type: str, attributes: dict[str, str], domain: str, since: int) -> Replacement:
        x = require_formula(site, _formula, "x · (1 + tanh(√(2/π) · (x + 0.044715 x³)))")
        dtype = require_type(op_type, x, FLOATS)
        two = Literal(np.asarray(2.0, dtype.numpy()), dtype, "two")
        steps = (NewNode(op_type, (value_of(x),), attributes, domain, since), NewNode("Mul", (Made(0), two), since=7))
        return Replacement(steps, (Made(1),))


TWICE_GELU_TANH = TwiceGeLUTanh()
