"""Lowerings of activations: GELU and its tanh form, HardSwish, Mish, SiLU, QuickGELU and Softmax."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.lowering import (
    FLOATS,
    WITH_DOUBLE,
    CallSite,
    Literal,
    Lowering,
    Made,
    NewNode,
    Replacement,
    Setting,
    definition,
    require_operator,
    require_type,
    value_of,
)
from onnxtile.fusion.lower.terms import Poly, number, product
from onnxtile.fusion.lowerings.norms import only_axis
from onnxtile.operators.node_view import MICROSOFT
from onnxtile.system.dataclass import dataclass

_WITHOUT_BFLOAT = WITH_DOUBLE - {ir.DataType.BFLOAT16}


@dataclass(frozen=True)
class ActivationLowering(Lowering):
    """A function of each element, times `factor`: the standard `operator` with `settings`, of opset `since`, or onnxruntime's `contrib`.

    See https://onnx.ai/onnx/operators, and onnxruntime's docs/ContribOperators.md; without a `contrib`, onnxruntime takes the standard one.
    """

    name: str
    text: str
    operator: str
    since: int
    settings: tuple[tuple[str, Setting], ...] = ()
    types: frozenset[ir.DataType] = FLOATS
    contrib: NewNode | None = None
    factor: float = 1.0

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return the standard operator."""
        return self._proved(site, NewNode(self.operator, (), dict(self.settings), since=self.since))

    def to_ort(self, site: CallSite) -> Replacement:
        """Return the operator of onnxruntime, which asks for no opset."""
        return self.to_onnx(site) if self.contrib is None else self._proved(site, self.contrib)

    def computes(self, x: Poly) -> Poly:
        """Return what a body has to compute of x."""
        return product(number(self.factor), definition(self.operator, self.since, (x,), self.settings))

    def _proved(self, site: CallSite, node: NewNode) -> Replacement:
        dtype = site.dtype.name.lower()
        (x,) = require_operator(site, self.computes, f"its body is not {self.text} within the precision of {dtype}")
        kind = require_type(node.op, x, self.types)
        node = replace(node, inputs=(value_of(x),))
        if self.factor == 1.0:
            return Replacement((node,), (Made(0),))
        factor = Literal(np.asarray(self.factor, kind.numpy()), kind, "two")
        return Replacement((node, NewNode("Mul", (Made(0), factor), since=7)), (Made(1),))


_GELU = NewNode("Gelu", (), domain=MICROSOFT)
_FAST_GELU = NewNode("FastGelu", (), domain=MICROSOFT)
_TANH = (("approximate", "tanh"),)
_ERF_TEXT, _TANH_TEXT = "(1 + erf(x/√2))", "(1 + tanh(√(2/π) · (x + 0.044715 x³)))"
GELU = ActivationLowering("GeLU", f"x/2 · {_ERF_TEXT}", "Gelu", 20, contrib=_GELU)
GELU_TANH = ActivationLowering("GeLUTanh", f"x/2 · {_TANH_TEXT}", "Gelu", 20, _TANH, contrib=_FAST_GELU)
# Without the factor 1/2, which an optimiser folded into a weight.
TWICE_GELU = ActivationLowering("TwiceGeLU", f"x · {_ERF_TEXT}", "Gelu", 20, contrib=_GELU, factor=2.0)
TWICE_GELU_TANH = ActivationLowering(
    "TwiceGeLUTanh", f"x · {_TANH_TEXT}", "Gelu", 20, _TANH, contrib=_FAST_GELU, factor=2.0
)

# The standard's HardSwish takes double as well, but onnxruntime 1.31 has no kernel for it.
HARD_SWISH = ActivationLowering(
    "HardSwish", "x · clip(x/6 + 1/2, 0, 1)", "HardSwish", 14, types=_WITHOUT_BFLOAT - {ir.DataType.DOUBLE}
)
MISH = ActivationLowering("Mish", "x · tanh(softplus(x))", "Mish", 18, types=_WITHOUT_BFLOAT)


def _swish(name: str, text: str, alpha: float) -> ActivationLowering:
    contrib = NewNode("QuickGelu", (), {"alpha": alpha}, MICROSOFT)
    return ActivationLowering(name, text, "Swish", 24, (("alpha", alpha),), contrib=contrib)


SILU = _swish("SiLU", "x · σ(x)", 1.0)
QUICK_GELU = _swish("QuickGeLU", "x · σ(1.702 x)", 1.702)


class Softmax(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Softmax.html."""

    name = "Softmax"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Softmax-13, which shifts by the largest element also where the body does not, and so does not overflow."""
        axis = only_axis(site.forms[0])
        reason = "its body is not exp(x - max x) / Σ exp(x - max x) along one axis"
        (x,) = require_operator(site, lambda x: definition("Softmax", 13, (x,), (("axis", axis),), (axis,)), reason)
        require_type("Softmax", x, WITH_DOUBLE)
        return Replacement.one("Softmax", (value_of(x),), {"axis": axis}, since=13)


SOFTMAX = Softmax()
