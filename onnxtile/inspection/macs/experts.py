"""Mixtures of experts: each row goes through the two or three products of the experts that it is routed to.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MoE and #com.microsoft.QMoE.
"""

from __future__ import annotations

import math

from onnxtile.inspection.work import CountedNode, OperationCount, Rule

_PRODUCTS = {"MoE": ((2, 3), (4, 5), (6, 7)), "QMoE": ((2, 4), (5, 7), (8, 10))}
"""By operator, the places of the weights of each product, and of its bias."""


def _count(site: CountedNode) -> OperationCount:
    """Count MoE and QMoE: weights are (experts, rows, columns), of QMoE several to a byte; `k` experts see each row."""
    routed = math.prod(site.input(0)[:-1]) * site.number("k", 1)
    held = 8 // site.number("expert_weight_bits", 4) if site.node.op_type == "QMoE" else 1
    macs = additions = 0
    for weights, bias in _PRODUCTS[site.node.op_type]:
        if site.has(weights):
            macs += routed * math.prod(site.input(weights)[1:]) * held
            additions += routed * site.input(bias)[1] if site.has(bias) else 0
    return OperationCount(macs, additions)


RULE = Rule("mixture of experts", frozenset({"com.microsoft::MoE", "com.microsoft::QMoE"}), _count)
