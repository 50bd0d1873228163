"""Reductions: operations for each element of the input, and for each of the output."""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, FlopRule, NotKnown

_OPERATIONS = {
    **dict.fromkeys(("ArgMax", "ArgMin", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), (1, 0)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), (1, 0)),
    **dict.fromkeys(("ReduceL1", "ReduceSumSquare"), (2, 0)),
    "GlobalLpPool": (2, 1),
    "ReduceL2": (2, 1),
    "ReduceLogSum": (1, 1),
    "ReduceLogSumExp": (4, 2),
}
"""A mean has its division in the place of the addition that a sum of n has not."""


def _count(site: CountedNode) -> int:
    if site.number("noop_with_empty_axes", 0) and not site.has(1):
        raise NotKnown(f"no rule counts a {site.operator} without axes that leaves its input as it is")
    each, last = _OPERATIONS[site.operator]
    return each * site.read() + last * site.elements()


RULE = FlopRule("reduction", frozenset(_OPERATIONS), _count)
