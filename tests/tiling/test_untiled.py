"""What tile has no rule for is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import parser

from onnxtile import api
from onnxtile.system.errors import UsageError
from onnxtile.tiling.limits import Limits, WindowBounds

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ('[one] y = Einsum<equation = "ij,jk->ik">(a, b)', "tile does not cut Einsum"),
        ("[one] y = com.microsoft.FusedMatMul(a, b)", "tile does not cut FusedMatMul"),
    ],
)
def test_it_is_listed_with_the_reason(bench: Bench, node: str, reason: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[8,8] a, float[8,8] b) => (float[8,8] y) {{ {node} }}"""
    model: onnx.ModelProto = parser.parse_model(text)
    (skip,) = bench.tile(model, Limits.of(max=4)).result.skipped
    assert (skip.node, skip.reason) == ("one", reason)


@pytest.mark.parametrize(
    ("node", "ends"),
    [
        ("MatMul(a, w)", "float[8,8] a"),
        ("Gemm(a, a, w)", "float[8,8] a"),
        ("Conv(a, w)", "float[1,8,4,4] a"),
    ],
)
def test_operands_of_different_element_types_are_not_cut(node: str, ends: str) -> None:
    shape = "8,8,1,1" if "Conv" in node else "8,8"
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g ({ends}, string[{shape}] w) => (float y) {{ [one] y = {node} }}"""
    result = api.tile(parser.parse_model(text), Limits.of(max=4, window=WindowBounds()), verify=False)
    assert [skip["reason"] for skip in result.to_dict()["skipped"]] == ["'w' has another element type than float"]


@pytest.mark.parametrize(("rows", "reason"), [(2**63 - 1, "more than any machine"), (2**50, "would write")])
def test_a_product_of_enormous_size_is_refused_at_once(rows: int, reason: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{rows},4] a, float[4,3] b) => (float[{rows},3] y) {{ y = MatMul(a, b) }}"""
    try:
        said = str(
            [skip["reason"] for skip in api.tile(parser.parse_model(text), max=3, verify=False).to_dict()["skipped"]]
        )
    except UsageError as error:
        said = str(error)
    assert reason in said
