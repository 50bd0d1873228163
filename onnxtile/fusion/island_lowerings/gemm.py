"""A matrix product with a bias, of stored matrices."""

from __future__ import annotations

from onnxtile.fusion.island_lowerings.matmul import quantised_gemm
from onnxtile.fusion.lower.island_lowering import IslandLowering, IslandSite, StoredTensor, product_by_blocks
from onnxtile.fusion.lower.lowering import NotLowered, Replacement, settings


class GemmIsland(IslandLowering):
    """QGemm and MatMulNBits of onnxruntime's docs/ContribOperators.md."""

    name = "Gemm"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QGemm; with a weight in blocks MatMulNBits."""
        given = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **settings(island.first)}
        bias = island.source(2)
        if bias is not None and given["beta"] != 1.0:
            raise NotLowered(f"its bias is multiplied by {given['beta']}, and QGemm multiplies none")
        if bias is not None and given["alpha"] != 1.0:
            raise NotLowered(f"its product is multiplied by {given['alpha']} before its bias is added")
        del given["beta"]
        if isinstance(island.source(0), StoredTensor):
            return quantised_gemm(island, bias, given)
        weight = island.stored(1)
        if given["alpha"] != 1.0 or given["transA"]:
            raise NotLowered("MatMulNBits neither transposes nor multiplies its operand")
        return product_by_blocks(island, island.source(0), weight.transposed() if given["transB"] else weight, bias)


GEMM = GemmIsland()
