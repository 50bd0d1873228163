"""Linear models of ai.onnx.ml: each row times every coefficient."""

from __future__ import annotations

import math

from onnxtile.inspection.work import CountedNode, OperationCount, Rule


def _count(site: CountedNode) -> OperationCount:
    rows = math.prod(site.input(0)[:-1])
    coefficients = site.node.attributes.get_floats("coefficients", [])
    intercepts = site.node.attributes.get_floats("intercepts", None) or ()
    return OperationCount(rows * len(coefficients), rows * len(intercepts))


RULE = Rule("linear models", frozenset({"ai.onnx.ml::LinearClassifier", "ai.onnx.ml::LinearRegressor"}), _count)
