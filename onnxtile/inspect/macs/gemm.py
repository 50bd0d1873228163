"""Gemm and its kin: M × N elements that sum K products each, and the bias C."""

from __future__ import annotations

from onnxtile.inspect.work import Count, Rule, Site

_BIAS = {"QGemm": 6}


def _count(site: Site) -> Count:
    rows, columns = site.input(0)
    inner = rows if site.number("transA", 0) else columns
    elements = site.elements()
    return Count(elements * inner, elements if site.has(_BIAS.get(site.node.op_type, 2)) else 0)


RULE = Rule(
    "gemm",
    frozenset({"Gemm", "com.microsoft::QGemm", "com.microsoft::FusedGemm", "com.microsoft::GemmFloat8"}),
    _count,
)
