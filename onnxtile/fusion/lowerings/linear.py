"""A fully connected layer on a matrix."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.lower.elementwise import value_of
from onnxtile.fusion.lower.lowering import (
    FLOATS,
    Argument,
    CallSite,
    Lowering,
    NotLowered,
    Replacement,
    inlined,
    known_dims,
    require_type,
)
from onnxtile.fusion.lower.terms import atom_of, matmul, operands, same, total, variable

_TYPES = FLOATS | {ir.DataType.DOUBLE}
_SINCE = {"Gemm": 7, "Reshape": 5, "MatMul": 1, "Add": 7}


class Linear(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Gemm.html; of more than two axes no operator takes a product and a bias: two do."""

    name = "Linear"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Gemm-13, the Gemm that it is, or the product and the sum."""
        operators = [node.op_type for node in site.function if node.op_type != "Constant"]
        if "Gemm" in operators:
            return inlined(site, _SINCE, main=operators.index("Gemm"))
        x, weight, bias = _parts(site)
        for argument in (x, weight, bias):
            if require_type("Gemm", argument, _TYPES) != site.dtype:
                raise NotLowered("its inputs differ in their element types")
        columns = known_dims(weight)[-1]
        matrices = len(known_dims(x)) == 2 and len(known_dims(weight)) == 2
        if not matrices or known_dims(bias) not in {(columns,), (1, columns)} or columns is None:
            return inlined(site, _SINCE, main=operators.index("MatMul"))
        return Replacement.one("Gemm", (value_of(x), value_of(weight), value_of(bias)), since=7)


def _parts(site: CallSite) -> tuple[Argument, Argument, Argument]:
    """Return the factors and the addend. Raises NotLowered."""
    form = site.forms[0]
    found = [base for monomial, _ in form for base, _ in monomial if base[0] == "MatMul"]
    if len(form) != 2 or len(found) != 1:
        raise NotLowered("its body is not one product and a bias")
    factors = [atom_of(poly) for poly in operands(found[0])]
    indices = [int(str(base[1])) for base in factors if base is not None and base[0] == "input"]
    others = set(range(len(site.arguments))) - set(indices)
    if len(indices) != 2 or len(others) != 1:
        raise NotLowered("its body is not one product and a bias")
    x, weight = indices
    bias = others.pop()
    if not same(form, total(matmul(variable(x), variable(weight)), variable(bias)), 0.0):
        raise NotLowered("its product or its bias is multiplied by a number")
    return site.arguments[x], site.arguments[weight], site.arguments[bias]


LINEAR = Linear()
