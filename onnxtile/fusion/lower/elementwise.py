"""Proofs of functions of one variable, applied to each element."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtile.fusion.lower.lowering import Argument, CallSite, NotLowered, require_shape
from onnxtile.fusion.lower.terms import Poly, TermsTooLarge, inputs_of, number, product, same, variable

Formula = Callable[[Poly], Poly]


def require_formula(site: CallSite, formula: Formula, text: str) -> Argument:
    """Return the input of which the site computes `formula`, element by element. Raises NotLowered, where `text` says the formula."""
    read = inputs_of(site.forms[0])
    if len(site.forms) != 1 or len(read) != 1:
        raise NotLowered(f"its body is no function of one value: {text} is")
    index = read.pop()
    x = site.arguments[index]
    try:
        wanted = formula(variable(index))
    except TermsTooLarge:
        raise NotLowered("its body is too large to be proved") from None
    if not same(site.forms[0], wanted, site.tolerance()):
        dtype = site.dtype.name.lower()
        raise NotLowered(f"its body is not {text} within the precision of {dtype}")
    if x.dtype != site.results[0].dtype:
        raise NotLowered("its input and its result differ in their element types")
    require_shape(site.results[0], x)
    return x


def value_of(x: Argument) -> ir.Value:
    """Return the value of an argument that has one."""
    if x.value is None:
        raise NotLowered("its input has no name")
    return x.value


def times(factor: float, *polys: Poly) -> Poly:
    """Return the product of a number and polynomials."""
    return product(number(factor), *polys)
