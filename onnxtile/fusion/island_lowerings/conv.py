"""A convolution of stored tensors."""

from __future__ import annotations

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    StoredTensor,
    clamped,
    require_alike,
    scale_pair,
    stored_bias,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import NewNode, NotLowered, Replacement, settings


class ConvIsland(IslandLowering):
    """https://onnx.ai/onnx/operators/onnx__QLinearConv.html."""

    name = "Conv"

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return QLinearConv-10."""
        x, weight, result = island.stored(0), island.stored(1), island.result
        require_alike(x.rule, result)
        inputs = (*stored_triple(x), *stored_triple(weight, axis=0), *scale_pair(result))
        bias = stored_bias(island, island.source(2), (x, weight), _channels(weight))
        operands = inputs if bias is None else (*inputs, bias)
        return clamped(island, NewNode("QLinearConv", operands, settings(island.first), since=10))

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearConv-10."""
        return self.to_onnx(island)


def _channels(weight: StoredTensor) -> int:
    count = weight.dims[0] if weight.dims else None
    if not isinstance(count, int):
        raise NotLowered("the number of its channels is not known")
    return count


CONV = ConvIsland()
