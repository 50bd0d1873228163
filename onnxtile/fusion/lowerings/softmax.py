"""Softmax along one axis."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.lower.elementwise import value_of
from onnxtile.fusion.lower.lowering import (
    FLOATS,
    CallSite,
    Lowering,
    NotLowered,
    Replacement,
    require_shape,
    require_type,
)
from onnxtile.fusion.lower.norms import only_axis
from onnxtile.fusion.lower.terms import Poly, atom, inputs_of, number, power, product, same, total, variable

_TYPES = FLOATS | {ir.DataType.DOUBLE}


def formula(x: Poly, axis: int, *, shifted: bool) -> Poly:
    """Return the formula that a body has to have, where it is `shifted` by the largest element or not."""
    top = atom("ReduceMax", (axis,), 1, x)
    exponentials = atom("Exp", total(x, product(number(-1.0), top)) if shifted else x)
    return product(exponentials, power(atom("ReduceSum", (axis,), 1, exponentials), -1.0))


class Softmax(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Softmax.html."""

    name = "Softmax"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Softmax-13, which shifts by the largest element also where the body does not, and so does not overflow."""
        read = inputs_of(site.forms[0])
        if len(site.forms) != 1 or len(read) != 1:
            raise NotLowered("its body is no softmax of one value")
        index = read.pop()
        axis = only_axis(site.forms[0], "ReduceSum")
        wanted = (formula(variable(index), axis, shifted=shifted) for shifted in (True, False))
        if not any(same(site.forms[0], form, site.tolerance()) for form in wanted):
            raise NotLowered("its body is not exp(x - max x) / Σ exp(x - max x) along one axis")
        x = site.arguments[index]
        require_shape(site.results[0], x)
        if require_type("Softmax", x, _TYPES) != site.dtype:
            raise NotLowered("its input and its result differ in their element types")
        return Replacement.one("Softmax", (value_of(x),), {"axis": axis}, since=13)


SOFTMAX = Softmax()
