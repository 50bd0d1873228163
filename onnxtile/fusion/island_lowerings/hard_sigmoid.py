"""HardSigmoid of a stored tensor."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import ORT_DOMAIN, Literal, NewNode, NotLowered, Operand, Replacement


class HardSigmoidIsland(IslandLowering):
    """max(0, min(1, α x + β)): QLinearAdd of onnxruntime's docs/ContribOperators.md, of x with its scale times α, and of β."""

    name = "HardSigmoid"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearAdd, and Clip where the result can be stored beyond 0 or 1."""
        x, result = island.stored(0), island.result
        require_alike(x.rule, result)
        alpha, beta = (
            island.first.attributes.get_float(key, default) for key, default in (("alpha", 0.2), ("beta", 0.5))
        )
        if alpha <= 0.0:
            raise NotLowered("its alpha is not positive, and no scale is zero or negative")
        stored, _, zero = stored_triple(x)
        scale = Literal(np.asarray(x.rule.number * alpha, np.float32), ir.DataType.FLOAT, "scale")
        inputs = (stored, scale, zero, *_one_element(beta, x.rule.dtype), *scale_pair(result))
        return clamped(island, NewNode("QLinearAdd", inputs, domain=ORT_DOMAIN), within=(0.0, 1.0))


def _one_element(number: float, dtype: ir.DataType) -> tuple[Operand, Operand, Operand]:
    """Return `number` as one element stored as `dtype`, its scale and its zero point."""
    return (
        Literal(np.asarray(int(number > 0), dtype.numpy()), dtype, "element"),
        Literal(np.asarray(abs(number) or 1.0, np.float32), ir.DataType.FLOAT, "scale"),
        Literal(np.asarray(int(number < 0), dtype.numpy()), dtype, "zero_point"),
    )


HARD_SIGMOID = HardSigmoidIsland()
