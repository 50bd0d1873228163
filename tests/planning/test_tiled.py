"""Plans of tiled layers: the tiles are cut, joined and added where they lie."""

import onnx.parser
import pytest

from onnxtile import api
from onnxtile.tiling.limits import Limits
from tests.planning.conftest import Case

LAYER = """
<ir_version: 10, opset_import: ["" : 20]>
layer (float[ROWS,96] x) => (float[ROWS,80] y) {
  side = Constant<value = int64[2] {96, 80}>()
  w = ConstantOfShape<value = float[1] {0.5}>(side)
  a = Exp(x)
  b = MatMul(a, w)
  y = Neg(b)
}
"""


def tiled(rows: int, limits: Limits) -> Case:
    model = onnx.parser.parse_model(LAYER.replace("ROWS", str(rows)))
    return Case.of(api.tile(model, limits, verify=False).model)


@pytest.mark.parametrize(
    "limits", [Limits(64, 32, 80), Limits(64, 96, 16), Limits(64, 32, 16)], ids=["k", "n", "k and n"]
)
def test_one_row_costs_no_copies(limits: Limits) -> None:
    case = tiled(1, limits)
    result = case.plan()
    assert result.copies.avoided >= 3
    assert result.copies.remaining == 0
    assert result.unplanned == ()
    assert case.run(result).equal


def test_rows_are_cut_and_joined_where_they_lie() -> None:
    case = tiled(8, Limits(2, 96, 80))
    result = case.plan()
    assert (result.copies.avoided, result.copies.remaining) == (8, 0)
    assert case.run(result).equal


def test_columns_of_several_rows_are_copied_and_counted() -> None:
    case = tiled(8, Limits(8, 96, 16))
    result = case.plan()
    assert result.copies.remaining == 5
    assert result.copies.remaining_bytes == 8 * 80 * 4
    assert case.run(result).equal
