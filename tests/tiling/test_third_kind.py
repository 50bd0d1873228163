"""A further operator is one class: choice, limits, writing and checking need no change."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
import pytest
from onnx import parser

from onnxtile import api
from onnxtile.operators.table import operators
from onnxtile.system.registry import discover
from onnxtile.tiling.contraction import Contraction, Tileable, TilingFacts, matrix_product, required_input
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.operators.floats import gemm_factor as factor


class FusedMatMul(Tileable):
    """A matrix product with alpha and transpositions, of com.microsoft."""

    name = "FusedMatMul"
    domain = "com.microsoft"

    def restate(self, node: ir.Node, facts: TilingFacts) -> Contraction:
        a, b = (factor(node, required_input(node, side), side, facts) for side in (0, 1))
        alpha = node.attributes.get_float("alpha", 1.0)
        return matrix_product(a, b, (a.size(0), b.size(1)), (0, 1), a.dtype, alpha=alpha)


@pytest.mark.parametrize("limits", [Limits.of(max=4), Limits(memory=200)])
def test_an_operator_more_is_one_class(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    shipped = discover("onnxtile.tiling.operators", Tileable)  # type: ignore[type-abstract]
    monkeypatch.setattr("onnxtile.tiling.tile.discover", lambda *_: {**shipped, "FusedMatMul": FusedMatMul()})
    name = "com.microsoft::FusedMatMul"
    monkeypatch.setitem(operators(), name, replace(operators()[name], contraction=None))
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[9,7] x, float[5,7] w) => (float[9,5] y)
        { y = com.microsoft.FusedMatMul<alpha = 0.3, transB = 1>(x, w) }"""
    )
    tiled = api.tile(model, limits)
    (site,) = tiled.result.tiled
    assert site.op == "FusedMatMul" and site.grid.matmuls > 1
    assert tiled.verdict is not None and tiled.verdict.equal and all(verdict.passed for verdict in tiled.sites)
