"""Products of integers that are not scaled to floats as dynamic quantisation does; those that are, patterns find."""

from __future__ import annotations

from onnxtile.fusion.lowering import NotLowered, Replacement
from onnxtile.fusion.operator_lowering import OperatorLowering, OperatorSite


class PlainIntegers(OperatorLowering):
    """MatMulInteger and ConvInteger, whose 32 bits no float32 holds in general."""

    def __init__(self, name: str) -> None:
        self.name = name

    def to_qdq(self, site: OperatorSite) -> Replacement:
        """Raise NotLowered."""
        raise NotLowered(f"the integers of {site.node.op_type} are not scaled to floats by two scales")


CONV_INTEGER = PlainIntegers("ConvInteger")
MATMUL_INTEGER = PlainIntegers("MatMulInteger")
