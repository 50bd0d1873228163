from itertools import groupby, pairwise

import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.tiling.contraction import TensorOperand, matrix_product
from onnxtile.tiling.grid import Axis, TileGrid
from onnxtile.tiling.limits import Limits, bounds_of

SIZES = st.integers(1, 300)
BOUNDS = st.one_of(st.none(), st.integers(1, 400))


def grid_of(m: int, k: int, n: int, limits: Limits) -> TileGrid:
    """Return the grid of an (m × k) times (k × n) product."""
    a, b = (
        TensorOperand(ir.Value(name=name), dims, ir.DataType.FLOAT, False, (0, 1))
        for name, dims in (("a", (m, k)), ("b", (k, n)))
    )
    product = matrix_product(a, b, (m, n), (0, 1), ir.DataType.FLOAT)
    return TileGrid.fullest(product, bounds_of(product, limits))


@given(SIZES, BOUNDS)
def test_stretches_cover_an_axis_once_in_order_and_keep_the_bound(size: int, bound: int | None) -> None:
    axis = Axis.of(size, bound)
    elements = [e for i in range(axis.count) for e in range(size)[axis.stretch(i)]]
    assert elements == list(range(size))
    assert axis.widths == [len(range(size)[axis.stretch(i)]) for i in range(axis.count)]
    assert bound is None or max(axis.widths) <= bound
    assert min(axis.widths) >= 1


@given(SIZES, st.integers(1, 400))
def test_all_stretches_but_the_last_are_full(size: int, bound: int) -> None:
    *full, last = Axis.of(size, bound).widths
    assert all(width == bound for width in full)
    assert last <= bound
    assert Axis.of(size, bound).count == -(-size // bound), "no more stretches than needed"


@given(st.tuples(*[st.integers(1, 40)] * 3), st.tuples(*[st.one_of(st.none(), st.integers(1, 50))] * 3))
def test_places_visit_each_tile_once_with_k_innermost(
    sizes: tuple[int, int, int], bounds: tuple[int | None, int | None, int | None]
) -> None:
    grid = grid_of(*sizes, Limits(*bounds))
    places = list(grid.positions())
    assert len(places) == len(set(places)) == grid.matmuls
    steps = [[abs(a - b) for a, b in zip(*pair, strict=True)] for pair in pairwise(places)]
    assert all(sum(step) == 1 for step in steps), "each loop turns back where it ended"
    blocks = [block for block, _ in groupby((m, n) for _, m, _, n in places)]
    assert len(blocks) == len(set(blocks)), "the partial sums of a block follow one another"
    assert grid.is_cut == (grid.shape != (1, 1, 1))


def test_alexnet() -> None:
    limits = Limits.of(max=64)
    assert [grid_of(1, k, n, limits).matmuls for k, n in ((9216, 4096), (4096, 4096), (4096, 1000))] == [
        9216,
        4096,
        1024,
    ]
    assert grid_of(1, 4096, 1000, limits).n.widths[-1] == 40
