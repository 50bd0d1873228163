"""A stored tensor divided by a number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    real_elements,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import ORT_DOMAIN, Literal, NewNode, NotLowered, Replacement


class DivIsland(IslandLowering):
    """QLinearMul of onnxruntime's docs/ContribOperators.md by the reciprocal, which is stored as 1 with the reciprocal as its scale."""

    name = "Div"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearMul."""
        x, result = island.stored(0), island.result
        require_alike(x.rule, result)
        divisor = real_elements(island, island.source(1))
        if divisor.size != 1 or not np.isfinite(divisor).all() or not divisor.all() or divisor.ndim > _rank(island):
            raise NotLowered("it is not divided by one constant number")
        reciprocal = np.float32(1.0) / divisor.astype(np.float32).reshape(())
        if reciprocal < 0:
            raise NotLowered("it is divided by a negative number, and no scale is negative")
        dtype = result.dtype
        factor = (
            Literal(np.ones((), dtype.numpy()), dtype, "one"),
            Literal(np.asarray(reciprocal), ir.DataType.FLOAT, "reciprocal"),
            Literal(np.zeros((), dtype.numpy()), dtype, "zero_point"),
        )
        inputs = (*stored_triple(x), *factor, *scale_pair(result))
        return clamped(island, NewNode("QLinearMul", inputs, domain=ORT_DOMAIN))


def _rank(island: IslandSite) -> int:
    dims = island.stored(0).dims
    return 0 if dims is None else len(dims)


DIV = DivIsland()
