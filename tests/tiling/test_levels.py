"""Two levels of tiles: outer tiles that a memory holds, tiles that an array runs inside them, and the bytes that each level moves."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser, printer

from onnxtile import api
from onnxtile.model import keys
from onnxtile.operators.reads import SlidingAxis
from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.tiling import choose as search
from onnxtile.tiling.grid import ORDERS, Nest, Workload
from onnxtile.tiling.limits import AxisBounds, Limits, TilingPolicy, find
from onnxtile.tiling.result import TiledNode
from tests.draws import draws
from tests.tiling.conftest import Bench, Tiled
from tests.tiling.test_choice import serpentine
from tests.tiling.test_models import before, meaning, without_weights

# The bytes that a schedule moves, counted tile by tile: shares no code and no formula with the package.

Place = dict[str, int]
"""The number of something along m, k and n."""
OPERANDS = ("mk", "kn", "mn")


class Level:
    """A memory that holds one block of each operand: what it reads and writes while blocks are asked for, one place after another."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights, self.moved = dict(zip(OPERANDS, weights, strict=True)), 0.0
        self._held: dict[str, Any] = {}
        self._begun: set[Any] = set()

    def clear(self) -> None:
        """Forget which blocks are there; what was written stays written."""
        self._held.clear()

    def visit(self, place: Place, sizes: Place) -> None:
        """Have the blocks at `place`, of so many elements along each axis."""
        for operand in OPERANDS:
            block = tuple(place[axis] for axis in operand)
            if self._held.get(operand) == block:
                continue
            self._held[operand] = block
            size = self.weights[operand] * sizes[operand[0]] * sizes[operand[1]]
            is_result = operand == "mn"
            self.moved += size * 2 if is_result and block in self._begun else size
            if is_result:
                self._begun.add(block)


def moved_inside(sizes: Sequence[int], outer: Sequence[int], tile: Sequence[int], order: str, weights: Any) -> float:
    """Run all tiles and return the bytes between memory and array; the loops over outer tiles do not matter."""
    array = Level(weights)
    starts = [range(0, size, step) for size, step in zip(sizes, outer, strict=True)]
    for corner in product(*starts):
        lengths = [min(step, size - at) for step, size, at in zip(outer, sizes, corner, strict=True)]
        counts = {axis: -(-x // step) for axis, x, step in zip("mkn", lengths, tile, strict=True)}
        array.clear()
        for at in serpentine([counts[axis] for axis in order]):
            inside = dict(zip(order, at, strict=True))
            first = {a: c + inside[a] * step for a, c, step in zip("mkn", corner, tile, strict=True)}
            ends = {a: c + x for a, c, x in zip("mkn", corner, lengths, strict=True)}
            # A tile is told by its first element.
            each = {a: min(step, ends[a] - first[a]) for a, step in zip("mkn", tile, strict=True)}
            array.visit(first, each)
    return array.moved


SIZE = st.integers(1, 12)
STEPS = st.tuples(*[st.integers(1, 12)] * 3)
WEIGHTS = st.sampled_from([(4, 4, 4), (1, 1, 4), (12, 4, 12), (2, 0.5, 2)])


@draws(100, 400)
@given(sizes=st.tuples(SIZE, SIZE, SIZE), outer=STEPS, tile=STEPS, order=st.sampled_from(ORDERS), weights=WEIGHTS)
def test_the_tiles_inside_move_the_bytes_of_a_simulation(
    sizes: Any, outer: Any, tile: Any, order: str, weights: Any
) -> None:
    outer = [min(step, size) for step, size in zip(outer, sizes, strict=True)]
    expected = moved_inside(sizes, outer, tile, order, weights)
    assert Nest(sizes, tile, weights).moved(outer, order) == expected


def number_of_tiles(nest: Nest) -> Any:
    return lambda outer, _reads: np.prod(nest.counts(outer), axis=0)


@draws(20, 80)
@given(
    sizes=st.tuples(*[st.integers(1, 8)] * 3),
    tile=STEPS,
    memory=st.integers(12, 400),
    weights=st.sampled_from([(4, 4, 4), (1, 1, 4)]),
)
def test_the_choice_has_an_outer_tile_that_moves_the_fewest_bytes(
    sizes: Any, tile: Any, memory: int, weights: Any
) -> None:
    m, k, n = sizes
    work = Workload(k, n, (SlidingAxis(size=m, out=m),), 1, weights)
    nest = Nest.from_tile(work, tuple(map(min, tile, sizes)))
    choices = search.front_of_outer(work, memory, AxisBounds(), nest, number_of_tiles(nest))
    best = None
    for outer in product(*(range(1, size + 1) for size in sizes)):
        held = sum(w * outer[i] * outer[j] for w, i, j in zip(weights, (0, 1, 0), (1, 2, 2), strict=True))
        if held > memory:
            continue
        counts = {axis: -(-size // step) for axis, size, step in zip("mkn", sizes, outer, strict=True)}
        for order in ORDERS:
            slow = Level(weights)
            for at in serpentine([counts[axis] for axis in order]):
                place = dict(zip(order, at, strict=True))
                slow.visit(place, {a: min(s, x - place[a] * s) for a, s, x in zip("mkn", outer, sizes, strict=True)})
            best = slow.moved if best is None else min(best, slow.moved)
    assert (best is None) == (not choices)
    if choices:
        assert choices[-1].bytes_moved == best
        assert all(choice.held <= memory for choice in choices)


def test_of_equal_outer_tiles_the_largest_counts() -> None:
    work = Workload(72, 144, (SlidingAxis(size=65, out=65),))
    nest = Nest.from_tile(work, (64, 64, 64))
    (choice,) = search.front_of_outer(work, 2**18, AxisBounds(), nest, number_of_tiles(nest))
    assert choice.tile == (1, 65, 72, 144), "all of it fits"


# The tiles of a model: computed, marked and counted as the report says.


def tiles_of(tiled: Tiled) -> list[dict[str, Any]]:
    """Return the marks of the tiles, in their order in the graph."""
    marks = [json.loads(node.metadata_props[keys.TILE]) for node in tiled.nodes if keys.TILE in node.metadata_props]
    return [mark for mark in marks if mark["part"] == "tile"]


def require_levels(tiled: Tiled, site: TiledNode, memory: int) -> None:
    """Assert that the bytes of both levels are those of the tiles in the graph, and that the marks say where each tile lies."""
    assert site.chosen is not None
    report, (outer, inner) = site.to_dict(), site.chosen.to_dict()["levels"]
    assert (outer["level"], inner["level"]) == ("outer", "inner")
    assert outer["held"] <= memory and report["outer_grid"] is not None
    a, b, c = (4, 4, 4)
    sizes = dict(zip("mkn", (report["m"], report["k"], report["n"]), strict=True))
    around, inside = Level((a, b, c)), Level((a, b, c))
    steps = {name: dict(zip("mkn", level["tile"], strict=True)) for name, level in (("o", outer), ("i", inner))}
    covered, last = 0, None
    for mark in tiles_of(tiled):
        corner = {axis: mark["outer"][axis] * steps["o"][axis] for axis in "mkn"}
        first = {axis: corner[axis] + mark["inner"][axis] * steps["i"][axis] for axis in "mkn"}
        ends = {axis: min(corner[axis] + steps["o"][axis], sizes[axis]) for axis in "mkn"}
        each = {axis: min(steps["i"][axis], ends[axis] - first[axis]) for axis in "mkn"}
        if mark["outer"] != last:
            inside.clear()
            around.visit(mark["outer"], {axis: ends[axis] - corner[axis] for axis in "mkn"})
        last = mark["outer"]
        inside.visit(first, each)
        assert min(each.values()) > 0
        covered += each["m"] * each["k"] * each["n"]
    assert covered == sizes["m"] * sizes["k"] * sizes["n"]
    assert (outer["bytes_moved"], inner["bytes_moved"]) == (around.moved, inside.moved)
    for level in (outer, inner):
        assert level["ratio"] == level["bytes_moved"] / level["lower_bound"] >= 1
    require_grouped([mark["outer"] for mark in tiles_of(tiled)])


def require_grouped(outer: Sequence[Place]) -> None:
    """Assert that tiles follow one another where they are in one outer tile; `outer` says for each tile in which."""
    runs = [tuple(place.items()) for place, _ in groupby(outer)]
    assert len(runs) == len(set(runs)) > 0


BOUND = st.sampled_from([None, 2, 3, 4, 5])


@draws(12, 50)
@given(
    sizes=st.tuples(*[st.integers(1, 14)] * 3),
    bounds=st.tuples(BOUND, BOUND, BOUND),
    multiple=st.sampled_from([1, 1, 2]),
    memory=st.sampled_from([60, 150, 300, 700]),
    constants=st.sampled_from(["", "b", "a", "ab"]),
    trans=st.booleans(),
    accumulate=st.sampled_from(["sum", "chain", "tree", "gemm"]),
    opset=st.sampled_from([9, 11, 13, 21]),
)
def test_tiles_of_two_levels(
    bench: Bench, sizes: Any, bounds: Any, multiple: int, memory: int, constants: str, trans: bool, accumulate: str,
    opset: int,
) -> None:  # fmt: skip
    if bounds == (None, None, None):
        return
    m, k, n = sizes
    multiples = (1, multiple if bounds[1] is None or bounds[1] % multiple == 0 else 1, 1)
    limits = Limits(bounds[0], bounds[1], bounds[2], multiples, outer_memory=memory)
    case = bench.case(m=m, k=k, n=n, constants=constants, trans_a=trans, trans_b=trans, bias=(n,), opset=opset)
    tiled = bench.judge(case, limits, TilingPolicy(accumulate=accumulate))
    assert all(verdict.passed for verdict in tiled.verdicts()), tiled.verdicts()
    for site in tiled.result.tiled:
        assert site.chosen is not None
        assert len(site.emitted) <= min(bench.most_nodes(site), site.chosen.choice.nodes)
        require_levels(tiled, site, memory)


@draws(20, 80)
@given(
    sizes=st.tuples(*[st.integers(1, 11)] * 3),
    memory=st.sampled_from([200, 500]),
    constants=st.sampled_from(["", "b"]),
    accumulate=st.sampled_from(["sum", "chain", "tree"]),
)
def test_tiles_of_one_size_inside_outer_tiles(
    bench: Bench, sizes: Any, memory: int, constants: str, accumulate: str
) -> None:
    m, k, n = sizes
    limits = Limits(4, 2, 3, outer_memory=memory, pad=True)
    case = bench.case(m=m, k=k, n=n, constants=constants, bias=(n,))
    tiled = bench.judge(case, limits, TilingPolicy(accumulate=accumulate))
    assert all(verdict.passed for verdict in tiled.verdicts())
    for site in tiled.result.tiled:
        assert [set(axis.widths) for axis in (site.grid.rows, site.grid.k, site.grid.n)] == [{4}, {2}, {3}]


def test_partial_sums_are_added_inside_an_outer_tile_first(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=2, k=12, n=2, constants="b")
    # An outer tile has 6 of K: three tiles of 2.
    tiled = bench.judge(case, Limits(k=2, outer_memory=4 * (2 * 2 * 6 + 4)), TilingPolicy(accumulate="sum"))
    assert tiled.count("MatMul") == 6
    sums = [node for node in tiled.nodes if node.op_type == "Sum"]
    parts = [json.loads(node.metadata_props[keys.TILE])["part"] for node in sums]
    assert [len(node.inputs) for node in sums] == [3, 3, 2] and parts == ["sum", "sum", "outer_sum"]
    (site,) = tiled.result.tiled
    assert site.chosen is not None
    outer, inner = site.chosen.to_dict()["levels"]
    assert outer["tile"] == [2, 6, 2] and outer["limited_by"] == {"m": None, "k": "memory", "n": None}
    assert inner["tile"] == [2, 2, 2] and inner["limited_by"] == {"m": None, "k": "max", "n": None}


def test_partial_sums_of_16_bits_are_rounded_as_often_as_the_check_says(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=3, k=40, n=3, constants="b", dtype=np.float16)
    for way in ("chain", "tree", "sum"):
        tiled = bench.tile(case.model(), Limits(k=2, outer_memory=100), TilingPolicy(accumulate=way))
        assert all(verdict.passed for verdict in tiled.verdicts(3))
    wide = TilingPolicy(accumulate="chain", accumulate_type="float32")
    tiled = bench.tile(case.model(), Limits(k=2, outer_memory=100), wide)
    assert tiled.count("Cast") == tiled.count("MatMul") + 1
    assert all(verdict.passed for verdict in tiled.verdicts(3))


def test_the_arena_grows_by_one_outer_tile_at_most(bench: Bench) -> None:
    for constants in ("", "b"):
        source = bench.case(op="MatMul", m=64, k=48, n=48, constants=constants).model()
        tiled = api.tile(source, limits=Limits(16, 16, 16, outer_memory=8192))
        (site,) = tiled.result.tiled
        assert site.chosen is not None and tiled.arena.before is not None and tiled.arena.after is not None
        most = tiled.arena.before + site.chosen.choice.held
        assert tiled.arena.after <= most
        planned = api.plan(tiled.model, order="model").plan
        assert planned.arena_size <= most
        marks = {node.name: node.metadata_props.get(keys.TILE, "{}") for node in tiled.model.graph}
        places = [json.loads(marks[name]) for name in planned.schedule]
        require_grouped([place["outer"] for place in places if place.get("part") == "tile"])


FOLDER = Path(__file__).parent.parent / "golden" / "tile" / "levels"


def test_the_tiled_graph_is_the_golden_one(bench: Bench) -> None:
    tiled = bench.tile(before("levels/gemm_16x24x16"), Limits(8, 8, 8, outer_memory=3200))
    after = without_weights(tiled.model)
    file = FOLDER / "gemm_16x24x16.after.txt"
    if os.environ.get("REGENERATE_GOLDEN") == "1":
        file.write_text(printer.to_text(after) + "\n")
    assert meaning(after) == meaning(parser.parse_model(file.read_text()))


# Limits of two levels: the file, what is refused, and operators of one level.


def written(folder: Path, text: str) -> Path:
    path = folder / "chip.toml"
    path.write_text(text)
    return path


def test_the_file_that_ships() -> None:
    limits = find("64x64x64-in-256KiB")
    assert limits == Limits(64, 64, 64, (1, 64, 1), outer_memory=2**18)


def test_a_table_of_an_operator_has_the_outer_memory_of_the_file_or_its_own(tmp_path: Path) -> None:
    text = """
        m = 8
        outer = { memory = "4KiB" }
        [operator.Gemm]
        m = 4
        [operator.MatMul.outer]
        memory = 512
    """
    limits = find(written(tmp_path, text))
    assert limits.of_operator("MatMulInteger").outer_memory == 4096
    assert limits.of_operator("Gemm") == Limits(4, outer_memory=4096)
    assert limits.of_operator("MatMul") == Limits(8, outer_memory=512)
    assert Limits.of(memory=2048, base=limits).outer_memory == 2048, "the one memory of the file"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("m = 4\n[outer]\n", ":2: the field 'outer.memory' is missing"),
        ("m = 4\n[outer]\nm = 8", ":3: unknown key 'outer.m' (there is memory)"),
        ("m = 4\n[outer]\nmemory = 0", ":3: field 'outer.memory'"),
        ("m = 4\n[outer]\nmemory = 64\nk = 3", ":4: unknown key 'outer.k'"),
        ("m = 4\nmemory = 64\n[outer]\nmemory = 128", ":3: the tiles inside outer tiles are bounded by m, k and n"),
        ("m = 4\nlargest = { bytes = 9 }\n[outer]\nmemory = 128", ":3: the tiles inside outer tiles are bounded by"),
        ("[outer]\nmemory = 128", ":1: the tiles inside outer tiles have no bound: give m, k or n"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        find(path)
    assert str(error.value).startswith(f"{path}{where}")


def test_an_outer_tile_that_no_memory_holds_is_refused(bench: Bench) -> None:
    source = bench.case(op="MatMul", m=9, k=9, n=9).model()
    with pytest.raises(Infeasible, match="the smallest holds 12 bytes, and the memory is 11"):
        bench.tile(source, Limits(4, outer_memory=11), TilingPolicy(strict=True))


def test_convolutions_have_one_level_within_both_limits() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 17]> g (float[1, 4, 6, 6] x, float[8, 4, 3, 3] w) => (float[1, 8, 4, 4] y) '
        "{ y = Conv(x, w) }"
    )
    models = [
        api.tile(parser.parse_model(text), limits=limits, conv=True, verify=False)
        for limits in (Limits(8, 36, 4, outer_memory=1200), Limits(8, 36, 4, memory=1200))
    ]
    two, one = (tiled.to_dict() for tiled in models)
    assert two["tiled"] == one["tiled"] and "levels" not in two["tiled"][0]["choice"]
    assert one["warnings"] == []
    assert two["warnings"] == [
        "convolutions have one level: each of their tiles is within all limits, the outer memory too"
    ]
