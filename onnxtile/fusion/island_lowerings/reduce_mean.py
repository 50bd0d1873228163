"""The mean of each channel of a stored tensor."""

from __future__ import annotations

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    elements_of,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import ORT_DOMAIN, Argument, NewNode, NotLowered, Replacement


class ReduceMeanIsland(IslandLowering):
    """QLinearGlobalAveragePool of onnxruntime's docs/ContribOperators.md, where the mean is taken over all axes after the channels."""

    name = "ReduceMean"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearGlobalAveragePool."""
        x, result, node = island.stored(0), island.result, island.first
        require_alike(x.rule, result)
        axes, rank = _axes(island), len(x.dims or ())
        if (
            rank < 3
            or sorted(axis % rank for axis in axes) != list(range(2, rank))
            or not node.attributes.get_int("keepdims", 1)
        ):
            raise NotLowered("its mean is not over all axes after the channels, which stay as axes of length 1")
        inputs = (*stored_triple(x), *scale_pair(result))
        return clamped(island, NewNode("QLinearGlobalAveragePool", inputs, domain=ORT_DOMAIN))


def _axes(island: IslandSite) -> tuple[int, ...]:
    given = island.first.attributes.get_ints("axes")
    if given is not None:
        return tuple(given)
    source = island.source(1)
    if not isinstance(source, Argument):
        raise NotLowered("the axes of its mean are not known")
    return tuple(int(axis) for axis in elements_of(source, island.site).ravel())


REDUCE_MEAN = ReduceMeanIsland()
