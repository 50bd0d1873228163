"""Products in zones: the choice as good as trying everything, near the bound that nothing beats, and the products as exact as before."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtile.tiling.choice import Choice, Counts, Work, front
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.options import Options
from onnxtile.tiling.zone_choice import MOST_APART, PIECES, with_zones, zoned_grid
from onnxtile.tiling.zoned import Zone, ZonedGrid

if TYPE_CHECKING:
    from tests.tiling.conftest import Bench


def tiles(m: Counts, k: Counts, n: Counts, order: str) -> Counts:  # noqa: ARG001 - any order has as many
    return m * k * n


def best(work: Work, limits: Limits) -> Choice:
    return with_zones(work, limits, front(work, limits, tiles), lambda grid: grid.matmuls)[-1]


def simulated(work: Work, grid: ZonedGrid, memory: int) -> int:
    """Run all tiles, count what moves, and see that it fits: shares no formula with the choice."""
    a, b, c = work.weights
    moved = 0
    resident: dict[str, tuple[Any, int]] = {}
    for zone, row, pieces in grid.blocks():
        height = grid.rows[zone].width(row)
        result = {n: height * grid.n.width(n) * c for n in pieces}
        moved += sum(result.values())
        columns = sum(grid.n.width(n) for n in pieces) * work.column
        for k, n in product(range(grid.k.count), pieces):
            deep = grid.k.width(k)
            for name, place, size in (
                ("a", (zone, row, k), height * deep * a),
                ("b", (k, n), deep * grid.n.width(n) * b),
            ):
                if resident.get(name, (None, 0))[0] != place:
                    moved += size
                    resident[name] = (place, size)
            assert sum(result.values()) + sum(size for _, size in resident.values()) + columns <= memory
            # What is next read takes the place of what was there: only the present blocks count.
            resident["b"] = (resident["b"][0], 0)
    return moved


def exhaustive(work: Work, memory: int) -> int:
    """Return the fewest bytes of all zones, cut in all ways that the choice looks at."""
    m, k, n = work.sizes
    found: list[int] = []
    heights = sorted({-(-m // rows) for rows in range(1, m + 1)}, reverse=True)
    for width, pieces in product(range(1, n + 1), PIECES):
        for first, second in product(heights, heights):
            apart = -(-m // second) - -(-m // first)
            if (width < n and not 0 < apart <= MOST_APART) or (width == n and first != second):
                continue
            parts = [(first, width)] + ([(second, n - width)] if width < n else [])
            for columns in product(*(range(1, size + 1) for _, size in parts)):
                zones = tuple(Zone(h, w, many, pieces) for (h, w), many in zip(parts, columns, strict=True))
                fitting = (s for s in (1, 2, 4, 8) if s < k and all(held(work, zone, s) <= memory for zone in zones))
                choices = (Choice((0, step, 0), "mnk", 0, 0, 0, zones) for step in fitting)
                found.extend(simulated(work, zoned_grid(work, choice), memory) for choice in choices)
    return min(found, default=10**9)


def held(work: Work, zone: Zone, k: int) -> int:
    a, b, c = work.weights
    wide, piece = max(map(sum, zone.widths)), max(map(max, zone.widths))
    return zone.m * wide * c + zone.m * k * a + k * piece * b + wide * work.column + zone.m * work.row


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 6)), st.integers(8, 160),
    st.sampled_from([((4, 4, 4), (1, 1, 1)), ((1, 1, 4), (1, 1, 1)), ((2, 2, 2), (2, 1, 2))]), st.sampled_from([(0, 0), (1, 0), (4, 2)]),
)  # fmt: skip
def test_it_is_as_good_as_trying_everything(sizes: Any, memory: int, kinds: Any, besides: tuple[int, int]) -> None:
    work, limits = Work(sizes, kinds[0], kinds[1], *besides), Limits(memory=memory)
    equal = front(work, limits, tiles)
    choices = with_zones(work, limits, equal, lambda grid: grid.matmuls)
    least = min([exhaustive(work, memory), *(choice.bytes_moved for choice in equal)])
    assert not choices or choices[-1].bytes_moved == least
    assert choices or least == 10**9
    for choice in choices:
        if choice.zones:
            assert choice.held <= memory
            assert simulated(work, zoned_grid(work, choice), memory) == choice.bytes_moved


@pytest.mark.parametrize(
    "sizes",
    [(1024, 1024, 1024), (1024, 4096, 1024), (1088, 1024, 1088), (1152, 1152, 1152), (1050, 1642, 1065), (1500, 1024, 3000),
     (2048, 2048, 2048), (4096, 4096, 4096), (4096, 4096, 11008), (1031, 1033, 1039), (5893, 1972, 5990)],
)  # fmt: skip
def test_it_is_within_five_percent_of_the_bound(sizes: tuple[int, int, int]) -> None:
    work, memory = Work(sizes, (4, 4, 4)), 4 * 2**16
    assert work.lower_bound(memory) == 4 * (2 * np.prod(sizes) / 2**8 + sizes[0] * sizes[2])
    choice = best(work, Limits(multiples=(1, 8, 1), memory=memory))
    assert 1 <= choice.bytes_moved / work.lower_bound(memory) < 1.05


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(4, 12), k=st.integers(2, 9), n=st.integers(4, 12), first=st.integers(1, 12), second=st.integers(1, 12),
    width=st.integers(1, 11), columns=st.tuples(st.integers(1, 4), st.integers(1, 4)), pieces=st.sampled_from([1, 2]),
    step=st.integers(1, 4), constants=st.sampled_from(["", "a", "b", "abc"]), op=st.sampled_from(["Gemm", "MatMul"]),
    alpha=st.sampled_from([1.0, 0.5]), how=st.sampled_from(["sum", "chain", "tree", "gemm"]), opset=st.sampled_from([7, 13]),
    wrap=st.booleans(),
)  # fmt: skip
def test_zones_compute_the_same(
    bench: Bench, m: int, k: int, n: int, first: int, second: int, width: int, columns: Any, pieces: int, step: int,
    constants: str, op: str, alpha: float, how: str, opset: int, wrap: bool,
) -> None:  # fmt: skip
    zones: tuple[Zone, ...] = (Zone(min(first, m), min(width, n), columns[0], pieces),)
    if width < n:
        zones += (Zone(min(second, m), n - width, columns[1], pieces),)
    bias = (n,) if op == "Gemm" else None
    case = bench.case(
        m=m, k=k, n=n, op=op, constants=constants, alpha=alpha if op == "Gemm" else 1.0, bias=bias, opset=opset
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxtile.tiling.sites.with_zones", lambda *_: (Choice((m, step, n), "mnk", 9, 9, 9, zones),))
        tiled = bench.judge(case, Limits(memory=10**6), Options.of(accumulate=how, wrap=wrap))
    (site,) = tiled.result.tiled
    assert all(verdict.passed for verdict in tiled.verdicts())
    assert len(site.emitted) <= bench.most_nodes(site)


def test_a_layer_whose_choice_has_zones(bench: Bench) -> None:
    case = bench.case(op="MatMul", m=24, k=16, n=24, constants="b")
    tiled = bench.judge(case, Limits(multiples=(1, 4, 1), memory=400))
    (site,) = tiled.result.tiled
    assert isinstance(site.grid, ZonedGrid) and site.chosen is not None
    content = site.to_dict()
    assert content["choice"]["zones"] and content["matmuls"] == tiled.count("MatMul") == site.grid.matmuls
    assert len(site.emitted) <= site.chosen.choice.nodes
    names = [node.name for node in tiled.nodes if "/tile_" in (node.name or "")]
    assert names[0] == "fc/tile_z0_m0_k0_n0" and str(names[-1]).startswith("fc/tile_z1_")
