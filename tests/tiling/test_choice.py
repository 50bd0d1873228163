"""The choice of a tile, of products and of convolutions: as good as trying everything, near the bound that nothing beats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import groupby, pairwise, product
from math import inf, prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from onnxtile import api
from onnxtile.model.known import declared
from onnxtile.operators.reads import SlidingAxis
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.system.runtime import Array
from onnxtile.system.text import LARGEST_BOUND
from onnxtile.tiling import choose as search
from onnxtile.tiling.contraction import TensorOperand, matrix_product
from onnxtile.tiling.grid import ORDERS, Axis, TileGrid, Workload
from onnxtile.tiling.limits import AxisBounds, Limits, WindowBounds, bounds_of
from onnxtile.tiling.result import Counts, TileChoice, share, trade, within_slack
from tests import build
from tests.draws import draws
from tests.tiling.conftest import CONVOLUTIONS, TILES, Bench, Case, Tiled

# The choice of a tile: as good as trying everything, and near the bound that nothing beats.


def tiles(groups: Counts, m: Counts, k: Counts, n: Counts, order: str) -> Counts:  # noqa: ARG001 - any order has as many
    return groups * m * k * n


def product_of(sizes: tuple[int, int, int], *kinds: Any) -> Workload:
    """Return the workload of a matrix product; `kinds` are bytes, batches, and the bytes of a column and of a row."""
    m, k, n = sizes
    return Workload(k, n, (SlidingAxis(size=m, out=m),), 1, *kinds)


def front(work: Workload, limits: Limits) -> tuple[TileChoice, ...]:
    return search.front(work, limits, AxisBounds.from_limits(limits), tiles)


def weights(work: Workload) -> tuple[float, float, float]:
    """Return the bytes that an element of A, B and the result takes, the matrices of a batch together."""
    a, b, c = (size * count for size, count in zip(work.bytes, work.batch, strict=True))
    return a, b, c


def totals(work: Workload, limits: Limits) -> tuple[int, int, int]:
    """Return the sizes with what fills them up."""
    m, k, n = (
        -(-size // (bound or multiple)) * (bound or multiple) if limits.pad else size
        for size, bound, multiple in zip(work.sizes[1:], limits.bounds, limits.multiples, strict=True)
    )
    return m, k, n


def pieces(size: int, step: int) -> list[int]:
    return [min(step, size - start) for start in range(0, size, step)]


def serpentine(counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the places of three nested loops, of which each turns back where it ended."""
    outer, middle, inner = counts
    for step in range(outer * middle * inner):
        row, third = divmod(step, inner)
        first, second = divmod(row, middle)
        yield first, second if first % 2 == 0 else middle - 1 - second, third if row % 2 == 0 else inner - 1 - third


def simulated(work: Workload, tile: tuple[int, ...], order: str, limits: Limits) -> float:
    """Run all tiles and count what moves, block by block: a cost model that shares no formula with the other."""
    axes = {axis: pieces(size, step) for axis, size, step in zip("mkn", totals(work, limits), tile, strict=True)}
    element_bytes = dict(zip(("mk", "kn", "mn"), weights(work), strict=True))
    resident: dict[str, Any] = {}
    begun: set[Any] = set()
    moved = 0.0
    for at in serpentine([len(axes[axis]) for axis in order]):
        place = dict(zip(order, at, strict=True))
        for operand, weight in element_bytes.items():
            block = tuple(place[axis] for axis in operand)
            if resident.get(operand) == block:
                continue
            resident[operand] = block
            size = weight * axes[operand[0]][block[0]] * axes[operand[1]][block[1]]
            moved += size * (1 + (block in begun)) if operand == "mn" else size
            if operand == "mn":
                begun.add(block)
    return moved


def allowed(work: Workload, limits: Limits, tile: tuple[int, ...]) -> bool:
    m, k, n = map(min, tile, totals(work, limits))
    blocks = [m * k, k * n, m * n]
    held = [block * weight for block, weight in zip(blocks, weights(work), strict=True)]
    elements = [block * batch for block, batch in zip(blocks, work.batch, strict=True)]
    return (
        all(bound is None or size <= bound for size, bound in zip((m, k, n), limits.bounds, strict=True))
        and (limits.memory is None or sum(held) + n * work.column + m * work.row <= limits.memory)
        and (limits.largest_bytes is None or max(held) <= limits.largest_bytes)
        and (limits.largest_elements is None or max(elements) <= limits.largest_elements)
    )


def exhaustive(work: Workload, limits: Limits) -> dict[int, float]:
    """Return the fewest bytes for each number of tiles, of all tiles in all orders."""
    steps = [
        [bound] if limits.pad and bound else range(multiple, -(-size // multiple) * multiple + 1, multiple)
        for size, bound, multiple in zip(work.sizes[1:], limits.bounds, limits.multiples, strict=True)
    ]
    found: dict[int, float] = {}
    for tile in product(steps[0], steps[1], steps[2]):
        if not allowed(work, limits, tile):
            continue
        counts = [-(-size // step) for size, step in zip(work.sizes[1:], tile, strict=True)]
        number = counts[0] * counts[1] * counts[2]
        best = min(simulated(work, tile, order, limits) for order in ORDERS)
        found[number] = min(best, found.get(number, best))
    return found


SIZE = st.integers(1, 9)
AXIS = st.sampled_from([(None, 1), (None, 1), (4, 1), (6, 2), (None, 4), (4, 4)])


@draws(60, 240)
@given(
    sizes=st.tuples(SIZE, SIZE, SIZE),
    kinds=st.sampled_from([((4, 4, 4), (1, 1, 1)), ((1, 1, 4), (1, 1, 1)), ((2, 2, 2), (3, 1, 3)), ((4, 4, 4), (2, 2, 2))]),
    axes=st.tuples(AXIS, AXIS, AXIS),
    memory=st.one_of(st.none(), st.integers(8, 400)),
    largest=st.tuples(st.one_of(st.none(), st.integers(2, 40)), st.one_of(st.none(), st.integers(8, 200))),
    pad=st.booleans(),
    besides=st.sampled_from([(0, 0), (0, 0), (1, 0), (4, 2)]),
)  # fmt: skip
def test_it_is_as_good_as_trying_everything(
    sizes: Any, kinds: Any, axes: Any, memory: int | None, largest: Any, pad: bool, besides: tuple[int, int]
) -> None:
    column, row = besides
    work = product_of(sizes, kinds[0], kinds[1], column, row)
    limits = Limits(
        axes[0][0], axes[1][0], axes[2][0], (axes[0][1], axes[1][1], axes[2][1]), memory=memory,
        largest_elements=largest[0], largest_bytes=largest[1], pad=pad,
    )  # fmt: skip
    best = exhaustive(work, limits)
    choices = front(work, limits)
    expected = {n: b for n, b in best.items() if all(b < other for number, other in best.items() if number < n)}
    assert {choice.nodes: choice.bytes_moved for choice in choices} == expected
    for choice in choices:
        assert allowed(work, limits, choice.tile[1:])
        assert simulated(work, choice.tile[1:], choice.order, limits) == choice.bytes_moved
        a, b, c = weights(work)
        m, k, n = map(min, choice.tile[1:], totals(work, limits))
        assert choice.held == m * k * a + k * n * b + m * n * c + n * column + m * row
    if not choices and memory is not None and largest == (None, None):
        assert search.smallest(work, AxisBounds.from_limits(limits))[0] > memory


@draws(100, 400)
@given(
    st.tuples(st.integers(1, 700), st.integers(1, 700), st.integers(1, 700)), st.integers(12, 20_000),
    st.sampled_from([(4, 4, 4), (1, 1, 4), (2, 2, 4)]),
)  # fmt: skip
def test_nothing_is_below_the_bound(sizes: tuple[int, int, int], memory: int, kinds: tuple[int, int, int]) -> None:
    work = product_of(sizes, kinds)
    assert all(choice.bytes_moved >= work.lower_bound(memory) for choice in front(work, Limits(memory=memory)))


def fewest(m: int, k: int, n: int, held: int) -> int:
    """Return the fewest elements that any schedule moves: the cheapest way over all states of a fast memory of `held` elements.

    A state is what lies there and which products are done. A product is done as soon as its two factors and its sum lie there; a
    sum begins there for nothing, is written when it leaves, and leaves when it is complete.
    """
    places = [("a", i, x) for i in range(m) for x in range(k)] + [("b", x, j) for x in range(k) for j in range(n)]
    places += [("c", i, j) for i in range(m) for j in range(n)]
    bit = {place: 1 << at for at, place in enumerate(places)}
    needs = [bit["a", i, x] | bit["b", x, j] | bit["c", i, j] for i in range(m) for j in range(n) for x in range(k)]
    sums = {bit["c", i, j]: ((1 << k) - 1) << k * (i * n + j) for i in range(m) for j in range(n)}

    def read(element: int, there: int, done: int) -> tuple[int, int, int]:
        """Return what `element` costs to have, and the state that it leads to."""
        cost = int(element not in sums or bool(done & sums[element]))
        there |= element
        done |= sum(1 << at for at, need in enumerate(needs) if there & need == need)
        complete = [total for total, products in sums.items() if there & total and done & products == products]
        return cost + len(complete), there & ~sum(complete), done

    waiting, seen = [(0, 0, 0)], set()
    while True:
        moved, there, done = heappop(waiting)
        if done == (1 << len(needs)) - 1:
            return moved
        if (there, done) in seen:
            continue
        seen.add((there, done))
        states = [(0, there)]
        if there.bit_count() == held:
            lying = [element for element in bit.values() if there & element]
            states = [(int(bool(done & sums.get(element, 0))), there & ~element) for element in lying]
        for left, kept in states:
            for element in bit.values():
                if not there & element and done & sums.get(element, 0) != sums.get(element, -1):
                    cost, now, finished = read(element, kept, done)
                    heappush(waiting, (moved + left + cost, now, finished))


@pytest.mark.parametrize(
    ("sizes", "memories"),
    [((1, 4, 1), (3, 4, 9)), ((2, 1, 2), (3, 4, 8)), ((1, 2, 2), (3, 4)), ((2, 2, 1), (3, 8))],
)
def test_no_schedule_at_all_is_below_the_bound(sizes: tuple[int, int, int], memories: tuple[int, ...]) -> None:
    m, k, n = sizes
    once = m * k + k * n + m * n
    for held in memories:
        bound = product_of(sizes, (1, 1, 1)).lower_bound(held)
        assert once <= bound <= fewest(*sizes, held)
    if memories[-1] == once:
        assert fewest(*sizes, once) == bound == once


@pytest.mark.parametrize("sizes", [(1, 9216, 4096), (1, 4096, 4096), (1, 4096, 1000), (8, 100_000, 8), (4096, 9216, 1)])
def test_what_is_read_once_is_at_the_bound(sizes: tuple[int, int, int]) -> None:
    work = product_of(sizes, (4, 4, 4))
    m, k, n = sizes
    assert work.lower_bound(2**18) == 4 * (m * k + k * n + m * n)
    assert front(work, Limits(memory=2**18))[-1].bytes_moved == work.lower_bound(2**18)


@pytest.mark.parametrize(
    ("sizes", "elements"),
    [((1240, 1024, 1240), 2**16), ((3968, 4096, 3968), 2**16), ((8192, 4096, 8192), 2**16), ((4096, 4096, 11008), 2**16),
     ((5040, 2048, 5040), 2**18), ((8128, 8192, 8128), 2**20)],
)  # fmt: skip
def test_it_is_near_the_bound(sizes: tuple[int, int, int], elements: int) -> None:
    work, memory = product_of(sizes, (4, 4, 4)), 4 * elements
    best = front(work, Limits(multiples=(1, 8, 1), memory=memory))[-1]
    m, k, n = sizes
    assert work.lower_bound(memory) == 4 * (2 * m * k * n / elements**0.5 + m * n)
    assert 1 <= best.bytes_moved / work.lower_bound(memory) < 1.05


def choices(*pairs: tuple[int, int]) -> list[TileChoice]:
    return [TileChoice((1, 1, 1), "mnk", nodes, moved, 0) for nodes, moved in pairs]


def test_nodes_go_where_they_save_most() -> None:
    one, other = choices((1, 100), (3, 60), (9, 50)), choices((2, 1000), (4, 500), (40, 100))
    assert share([one, other], None) == [2, 2]
    assert share([one, other], 3) == [0, 0]
    assert share([one, other], 5) == [0, 1]
    assert share([one, other], 7) == [1, 1]
    assert share([one, other], 44) == [1, 2]
    assert share([one, other], 49) == [2, 2]
    assert share([one], 8) == [1]
    with pytest.raises(Infeasible, match="2 nodes at most: the fewest are 3"):
        share([one, other], 2)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8), st.integers(0, 300))
def test_of_one_front_the_best_within_the_number_is_taken(steps: list[tuple[int, int]], most: int) -> None:
    nodes, moved = 0, 300
    pairs = []
    for more, fewer in steps:
        nodes, moved = nodes + more, moved - fewer
        pairs.append((nodes, moved))
    if most < pairs[0][0]:
        return
    (taken,) = share([choices(*pairs)], most)
    allowed = [i for i, (number, _) in enumerate(pairs) if number <= most]
    near = [i for i, (_, moved) in enumerate(pairs) if moved <= 1.05 * pairs[-1][1]]
    assert taken == min(allowed[-1], near[0])


def test_the_fewest_nodes_within_five_percent_of_the_fewest_bytes_are_taken() -> None:
    assert share([choices((1, 106), (2, 105), (90, 100)), choices((1, 200), (7, 106), (9, 100))], None) == [1, 2]
    assert share([choices((1, 105), (2, 104), (90, 100))], 10**6) == [0]
    assert share([choices((5, 0))], None) == [0]


@pytest.mark.parametrize("elements", [2**14, 2**16, 2**18])
@pytest.mark.parametrize("sizes", [(1024, 1024, 1024), (1500, 4096, 1024), (64, 4096, 11008), (1, 4096, 4096)])
def test_the_choice_moves_at_most_five_percent_more_than_any_other(sizes: tuple[int, int, int], elements: int) -> None:
    found = front(product_of(sizes, (4, 4, 4)), Limits(memory=4 * elements))
    taken = found[within_slack(found)]
    assert taken.bytes_moved <= 1.05 * min(choice.bytes_moved for choice in found)
    assert all(choice.bytes_moved > 1.05 * found[-1].bytes_moved for choice in found if choice.nodes < taken.nodes)


def test_a_trade_table_is_small_and_has_the_ends_and_the_choice() -> None:
    many = choices(*((i, 1000 - i) for i in range(1, 500)))
    table = trade(many, 77)
    assert table[0] is many[0] and table[-1] is many[-1] and many[77] in table and len(table) <= 10
    assert trade(many[:1], 0) == (many[0],)


@pytest.mark.parametrize("sizes", [(1000, 7, 300), (5, 5, 5), (900, 8, 900), (1, 1, 1), (64, 3, 100_000)])
@pytest.mark.parametrize("limits", [Limits(memory=4096), Limits(m=64, n=64, memory=4096)])
def test_the_number_of_tiles_to_compare_is_bounded_before_they_are_made(
    sizes: tuple[int, int, int], limits: Limits
) -> None:
    work, bounds = product_of(sizes), AxisBounds.from_limits(limits)
    steps = search.shortest_steps(sizes[0], bounds.sliding[0]), search.shortest_steps(sizes[2], bounds.filters)
    made = len(steps[0]) * len(steps[1])
    assert made <= search.pairs_at_most(work, bounds) <= 16 * made


def test_a_product_of_a_size_that_no_search_ends_on_is_left_as_it_is() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[9007199254740993, 4] x, float[4, 3] w) => (float[M, 3] y) '
        "{ y = MatMul(x, w) }"
    )
    result = api.tile(model, max="1KiB", verify=False)
    reasons = [one["reason"] for one in result.to_dict()["skipped"]]
    assert reasons == ["its sizes leave more than 4,194,304 tiles to compare"]


# The choice of a convolution's tile: as good as trying everything.


PIXELS = st.integers(1, 5)
BOUND = st.one_of(st.none(), st.integers(1, 5))


def conv_tiles(*counts: Any) -> Any:
    return np.prod(np.broadcast_arrays(*counts[:-1]), axis=0)


def conv_simulated(work: Workload, tile: tuple[int, ...], order: str, most: float = inf) -> int:
    """Run all tiles and count what moves, block by block, up to `most`; shares no formula with the other."""
    groups, rows, columns, channels, filters = tile
    pixels = list(product(pieces(work.outs[0], rows), pieces(work.outs[1], columns)))
    axes: dict[str, Any] = {"m": pixels, "k": pieces(work.channels, channels), "n": pieces(work.filters, filters)}
    moved = 0
    for together in pieces(work.groups, groups):
        resident: dict[str, Any] = {}
        begun: set[Any] = set()
        for at in serpentine([len(axes[axis]) for axis in order]):
            if moved >= most:
                return moved
            place = dict(zip(order, at, strict=True))
            high, wide = pixels[place["m"]]
            k, n = axes["k"][place["k"]], axes["n"][place["n"]]
            window = ((high - 1) * work.sliding[0].stride + work.sliding[0].reach) * (
                (wide - 1) * work.sliding[1].stride + work.sliding[1].reach
            )
            sizes = {"mk": work.batch[0] * k * window, "kn": k * n * work.kernel, "mn": work.batch[0] * n * high * wide}
            for operand, size, element in zip(sizes, sizes.values(), work.bytes, strict=True):
                block = tuple(place[axis] for axis in operand)
                if resident.get(operand) == block:
                    continue
                resident[operand] = block
                moved += together * size * element * (1 + (operand == "mn" and block in begun))
                begun.add(block) if operand == "mn" else None
    return moved


def held(work: Workload, tile: tuple[int, ...]) -> float:
    groups, rows, columns, channels, filters = tile
    high, wide = (s.stride * (n - 1) + s.reach for s, n in zip(work.sliding, (rows, columns), strict=True))
    a, b, c = work.bytes
    return groups * (
        work.batch[0] * (channels * high * wide * a + filters * rows * columns * c)
        + filters * channels * work.kernel * b
        + filters * work.column
    )


def conv_allowed(work: Workload, limits: Limits, tile: tuple[int, ...]) -> bool:
    groups, rows, columns, channels, filters = tile
    window = limits.window or WindowBounds()
    cut = channels < work.channels or filters < work.filters
    bounds = (
        (rows * columns, limits.m),
        (channels * work.kernel, limits.k),
        (filters, limits.n),
        (rows, window.rows),
        (columns, window.columns),
        (groups * channels, window.channels),
        (groups * filters, window.filters),
        (held(work, tile), limits.memory),
    )
    return (groups == 1 or not cut) and all(bound is None or size <= bound for size, bound in bounds)


@draws(20, 80)
@given(
    outs=st.tuples(PIXELS, PIXELS), channels=PIXELS, filters=PIXELS, groups=st.integers(1, 4), batch=st.integers(1, 2),
    kernels=st.tuples(st.integers(1, 3), st.integers(1, 3)), strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    memory=st.one_of(st.none(), st.integers(20, 800)), m=st.one_of(st.none(), st.integers(1, 12)), n=BOUND,
    window=st.builds(WindowBounds, BOUND, BOUND, BOUND, BOUND),
    kinds=st.sampled_from([(4, 4, 4), (1, 1, 4)]), bias=st.sampled_from([0, 4]),
)  # fmt: skip
def test_a_convolution_is_as_good_as_trying_everything(
    outs: Any, channels: int, filters: int, groups: int, batch: int, kernels: Any, strides: Any, memory: int | None,
    m: int | None, n: int | None, window: WindowBounds, kinds: Any, bias: int,
) -> None:  # fmt: skip
    slides = tuple(
        SlidingAxis(kernel, stride, size=(out - 1) * stride + kernel, out=out)
        for out, kernel, stride in zip(outs, kernels, strides, strict=True)
    )
    work = Workload(channels, filters, slides, groups, kinds, (batch, 1, batch), bias)
    limits = Limits(m, None, n, memory=memory, window=window)
    best: dict[int, int] = {}
    for tile in product(*(range(1, size + 1) for size in (groups, *outs, channels, filters))):
        if not conv_allowed(work, limits, tile):
            continue
        number = int(np.prod([-(-s // t) for s, t in zip((groups, *outs, channels, filters), tile, strict=True)]))
        for order in ORDERS:
            known = best.get(number, inf)
            best[number] = int(min(known, conv_simulated(work, tile, order, known)))
    expected = {n: b for n, b in best.items() if all(b < other for number, other in best.items() if number < n)}
    bounds = AxisBounds.from_limits(limits, kernel=work.kernel, rank=2, windows=True)
    choices = search.front(work, limits, bounds, conv_tiles)
    assert {choice.nodes: choice.bytes_moved for choice in choices} == expected
    for choice in choices:
        assert conv_allowed(work, limits, choice.tile)
        assert choice.held == held(work, choice.tile)
        assert choice.bytes_moved >= work.lower_bound(memory or 2**40)


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
    axis = Axis.from_size(size, bound)
    elements = [e for i in range(axis.count) for e in range(size)[axis.stretch(i)]]
    assert elements == list(range(size))
    assert axis.widths == [len(range(size)[axis.stretch(i)]) for i in range(axis.count)]
    assert bound is None or max(axis.widths) <= bound
    assert min(axis.widths) >= 1


@given(SIZES, st.integers(1, 400))
def test_all_stretches_but_the_last_are_full(size: int, bound: int) -> None:
    *full, last = Axis.from_size(size, bound).widths
    assert all(width == bound for width in full)
    assert last <= bound
    assert Axis.from_size(size, bound).count == -(-size // bound), "no more stretches than needed"


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


def test_max_bounds_every_axis_that_has_no_bound_of_its_own() -> None:
    assert Limits.of(max=64) == Limits(64, 64, 64)
    assert Limits.of(max=64, k=16) == Limits(64, 16, 64)
    assert Limits.of(n=8) == Limits(None, None, 8)
    assert Limits.of(max=LARGEST_BOUND).m == LARGEST_BOUND


@pytest.mark.parametrize("bound", [0, -1, -64, LARGEST_BOUND + 1, 10**30])
@pytest.mark.parametrize("option", ["max", "m", "k", "n"])
def test_a_bound_that_makes_no_sense_is_refused_by_its_option(option: str, bound: Any) -> None:
    shown = "every axis" if option == "max" else option.upper()
    with pytest.raises(UsageError, match=f"^the bound {bound} of {shown}\\b"):
        Limits.of(**dict[str, Any]({option: bound}))


@pytest.mark.parametrize("bound", [True, 64.0, "64"])
def test_a_bound_is_a_whole_number(bound: int) -> None:
    with pytest.raises(UsageError, match="not a whole number"):
        Limits.of(max=bound)


def test_no_limit_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="no limit"):
        Limits.of()


# What a tile is said to hold is what its node reads and makes in the model that is written.


def largest(tiled: Tiled) -> int:
    """Return the bytes of all that one tile reads and makes, at most."""
    shapes = resolve(tiled.model)

    def size(value: ir.Value) -> int:
        dims, dtype = shapes.dims(value) or declared(value).dims, shapes.dtype(value) or value.dtype
        assert dims is not None and dtype is not None
        return int(prod(int(str(dim)) for dim in dims) * dtype.itemsize)

    return max(
        sum(size(value) for value in {*node.inputs, *node.outputs} if value is not None)
        for node in tiled.nodes
        if node.op_type in TILES | CONVOLUTIONS
    )


def convolution(x: tuple[int, ...], w: Array, op: str = "Conv", **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", "w"], ["y"], name="conv", **attributes)
    model = build.model([node], {"x": x}, {"y": None}, {"w": w}, ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def ones(*dims: int) -> Array:
    import numpy as np

    return np.ones(dims, np.float32)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "op", "exact"),
    [
        ((1, 16, 14, 14), (32, 16, 1, 1), {"strides": [2, 2]}, "Conv", True),
        ((1, 16, 15, 15), (32, 16, 3, 3), {"strides": [2, 2]}, "Conv", True),
        ((2, 12, 16, 13), (8, 12, 3, 2), {"strides": [3, 2]}, "Conv", True),
        ((1, 8, 12, 12), (8, 2, 3, 3), {"group": 4}, "Conv", True),
        ((1, 8, 12, 12), (16, 8, 3, 3), {"dilations": [2, 2]}, "Conv", True),
        ((1, 8, 12, 12), (16, 8, 3, 3), {"pads": [1, 1, 1, 1]}, "Conv", False),
        ((1, 8, 12, 12), (8, 12, 3, 3), {"strides": [2, 2]}, "ConvTranspose", False),
        ((1, 8, 12, 12), (8, 12, 1, 1), {"strides": [3, 3]}, "ConvTranspose", False),
    ],
)
@pytest.mark.parametrize("share", [5, 2, 1.2])
def test_convolutions(
    bench: Bench, x: tuple[int, ...], w: tuple[int, ...], attributes: Any, op: str, exact: bool, share: float
) -> None:
    model = convolution(x, ones(*w), op, **attributes)
    whole = 4 * (prod(x) + prod(w) + prod(d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim))
    tiled = bench.tile(model, Limits.of(memory=int(whole / share), window=WindowBounds()))
    (site,) = tiled.result.tiled
    assert site.chosen is not None
    claimed = site.chosen.choice.held
    assert largest(tiled) <= claimed <= whole / share
    assert site.chosen.lower_bound is not None and site.chosen.lower_bound <= whole
    assert largest(tiled) == claimed or not exact


def test_a_stride_beyond_the_kernel_reads_what_it_steps_over(bench: Bench) -> None:
    model = convolution((1, 64, 28, 28), ones(128, 64, 1, 1), strides=[2, 2])
    tiled = bench.tile(model, Limits.of(memory=256 * 1024, window=WindowBounds()))
    (site,) = tiled.result.tiled
    assert site.chosen is not None and largest(tiled) == site.chosen.choice.held <= 256 * 1024


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("constants", ["", "b"])
@pytest.mark.parametrize("memory", [300, 700, 1500, 3000])
def test_products(bench: Bench, op: str, constants: str, memory: int) -> None:
    case = Case(m=20, k=24, n=18, op=op, constants=constants, trans_b=op == "Gemm")
    tiled = bench.tile(case.model(), Limits.of(memory=memory, m=20))
    (site,) = tiled.result.tiled
    assert site.chosen is not None and largest(tiled) == site.chosen.choice.held <= memory
