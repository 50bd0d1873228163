"""Functions of one stored tensor."""

from __future__ import annotations

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    limits,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import ORT_DOMAIN, NewNode, NotLowered, Replacement, settings


class UnaryIsland(IslandLowering):
    """QLinearSigmoid, QLinearLeakyRelu, QLinearAveragePool ... of onnxruntime's docs/ContribOperators.md."""

    def __init__(self, name: str, attributes: frozenset[str] = frozenset()) -> None:
        self.name = name
        self._attributes = attributes

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return the operator of onnxruntime of that name."""
        x, result = island.stored(0), island.result
        require_alike(x.rule, result)
        given = settings(island.first)
        unknown = sorted(given.keys() - self._attributes)
        if unknown:
            raise NotLowered(f"QLinear{self.name} has no attribute {unknown[0]}")
        if self.name == "Softmax":
            if 1.0 / result.number + result.zero > limits(result.dtype)[1] + 1:
                raise NotLowered("its result is stored up to less than 1, and QLinearSoftmax does not saturate")
            opset = island.site.function.opset_imports.get("", 1)
            given = {"axis": 1 if opset < 13 else -1, **given, "opset": opset}
            if x.dims is not None and x.dims[-1] == 1:
                raise NotLowered("its softmax is of one element, of which QLinearSoftmax makes 0")
        inputs = (*stored_triple(x), *scale_pair(result))
        return clamped(island, NewNode(f"QLinear{self.name}", inputs, given, ORT_DOMAIN))


_POOLING = frozenset({"auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"})

AVERAGE_POOL = UnaryIsland("AveragePool", _POOLING)
GLOBAL_AVERAGE_POOL = UnaryIsland("GlobalAveragePool")
LEAKY_RELU = UnaryIsland("LeakyRelu", frozenset({"alpha"}))
SIGMOID = UnaryIsland("Sigmoid")
SOFTMAX = UnaryIsland("Softmax", frozenset({"axis"}))
