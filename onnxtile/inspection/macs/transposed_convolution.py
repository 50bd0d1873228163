"""Transposed convolutions: each input element is multiplied by the kernel of every output channel of its group.

What padding cuts off again is counted, as a kernel that runs over the inputs computes it.
"""

from __future__ import annotations

import math

from onnxtile.inspection.work import CountedNode, OperationCount, Rule


def _count(site: CountedNode) -> OperationCount:
    # The weight is (channels in, channels out / groups, kernel ...).
    return OperationCount(site.read() * math.prod(site.input(1)[1:]), site.elements() if site.has(2) else 0, 0)


RULE = Rule("transposed convolution", frozenset({"ConvTranspose"}), _count)
