"""Gemm and its kin: M × N elements that sum K products each, and the bias C."""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, OperationCount, Rule

_BIAS = {"QGemm": 6}


def _count(site: CountedNode) -> OperationCount:
    rows, columns = site.input(0)
    inner = rows if site.number("transA", 0) else columns
    elements = site.elements()
    bias = site.has(_BIAS.get(site.node.op_type, 2))
    return OperationCount(
        elements * inner, elements if bias else 0, _scaled(site, bias) if site.operator == "Gemm" else None
    )


def _scaled(site: CountedNode, bias: bool) -> int:
    """Return the products with alpha and beta, where they are not 1."""
    alpha, beta = (site.node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    return site.elements() * ((alpha != 1) + (bias and beta != 1))


RULE = Rule(
    "gemm",
    frozenset({"Gemm", "com.microsoft::QGemm", "com.microsoft::FusedGemm", "com.microsoft::GemmFloat8"}),
    _count,
)
