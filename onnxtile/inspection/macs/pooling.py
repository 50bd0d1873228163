"""Pooling: as many operations for each element of the output as the kernel has elements, also where it reaches into padding."""

from __future__ import annotations

import math

from onnxtile.inspection.work import CountedNode, FlopRule, NotKnown


def _count(site: CountedNode) -> int:
    kernel = site.node.attributes.get_ints("kernel_shape", None)
    if kernel is None:
        raise NotKnown(f"{site.node.op_type} does not give 'kernel_shape'")
    # The powers of LpPool, and the root of their sum.
    each = 2 * math.prod(kernel) + 1 if site.operator == "LpPool" else math.prod(kernel)
    return site.elements() * each


RULE = FlopRule("pooling", frozenset({"AveragePool", "LpPool", "MaxPool", "com.microsoft::NhwcMaxPool"}), _count)
