"""A fully connected layer on a matrix."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fuse.lower.contract import FLOATS, Argument, Lowering, NotLowered, Proof, Site, known_dims, require_type
from onnxtile.fuse.lower.elementwise import value_of
from onnxtile.fuse.lower.terms import atom_of, matmul, operands, same, total, variable

_TYPES = FLOATS | {ir.DataType.DOUBLE}


class Linear(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Gemm.html; of more than two axes no operator takes a product and a bias."""

    name = "Linear"

    def to_onnx(self, site: Site) -> Proof:
        """Return Gemm-13, or the Gemm that it is."""
        nodes = list(site.function)
        if len(nodes) == 1 and nodes[0].op_type == "Gemm" and not nodes[0].domain:
            arguments = dict(zip(site.function.inputs, site.arguments, strict=True))
            inputs = tuple(None if value is None else value_of(arguments[value]) for value in nodes[0].inputs)
            settings = {name: attribute.value for name, attribute in nodes[0].attributes.items()}
            return Proof.one("Gemm", inputs, settings, since=7)
        x, weight, bias = _parts(site)
        for argument in (x, weight, bias):
            if require_type("Gemm", argument, _TYPES) != site.dtype:
                raise NotLowered("its inputs differ in their element types")
        if len(known_dims(x)) != 2 or len(known_dims(weight)) != 2:
            raise NotLowered(f"Gemm multiplies matrices, its input has the shape {list(known_dims(x))}")
        columns = known_dims(weight)[1]
        if known_dims(bias) not in {(columns,), (1, columns)} or columns is None:
            raise NotLowered(f"its bias has the shape {list(known_dims(bias))}")
        return Proof.one("Gemm", (value_of(x), value_of(weight), value_of(bias)), since=7)


def _parts(site: Site) -> tuple[Argument, Argument, Argument]:
    """Return what is multiplied, and what is added. Raises NotLowered."""
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
