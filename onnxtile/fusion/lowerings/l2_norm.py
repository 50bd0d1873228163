"""A vector divided by its length."""

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
from onnxtile.fusion.lower.terms import Poly, atom, atoms, inputs_of, power, product, same, variable

_TYPES = FLOATS | {ir.DataType.DOUBLE}


def _by_length(x: Poly, axis: int) -> Poly:
    return product(x, power(atom("ReduceL2", (axis,), 1, x), -1.0))


def _by_squares(x: Poly, axis: int) -> Poly:
    return product(x, power(power(atom("ReduceSum", (axis,), 1, product(x, x)), 0.5), -1.0))


_FORMULAS = {"ReduceL2": _by_length, "ReduceSum": _by_squares}


class L2Norm(Lowering):
    """https://onnx.ai/onnx/operators/onnx__LpNormalization.html: x / ‖x‖, and nothing that keeps the length from 0."""

    name = "L2Norm"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return LpNormalization-1 with p = 2."""
        read, kinds = inputs_of(site.forms[0]), {base[0] for base, _ in atoms(site.forms[0])}
        reduction = next((kind for kind in _FORMULAS if kind in kinds), None)
        if len(site.forms) != 1 or len(read) != 1 or reduction is None:
            raise NotLowered("its body is not x / ‖x‖")
        index = read.pop()
        axis = only_axis(site.forms[0], reduction)
        if not same(site.forms[0], _FORMULAS[reduction](variable(index), axis), site.tolerance()):
            raise NotLowered("LpNormalization does not keep the length from 0, by a bound or an addend")
        x = site.arguments[index]
        require_shape(site.results[0], x)
        if require_type("LpNormalization", x, _TYPES) != site.dtype:
            raise NotLowered("its input and its result differ in their element types")
        return Replacement.one("LpNormalization", (value_of(x),), {"axis": axis, "p": 2}, since=1)


L2_NORM = L2Norm()
