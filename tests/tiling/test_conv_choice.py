"""The choice of a convolution's tile: as good as trying everything."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtile.operators.reads import SlidingAxis
from onnxtile.tiling.choose import front
from onnxtile.tiling.grid import ORDERS, Workload
from onnxtile.tiling.limits import AxisBounds, Limits, WindowBounds
from tests.tiling.test_choice import serpentine

SIZE = st.integers(1, 5)
BOUND = st.one_of(st.none(), st.integers(1, 5))


def tiles(*counts: Any) -> Any:
    return np.prod(np.broadcast_arrays(*counts[:-1]), axis=0)


def pieces(size: int, step: int) -> list[int]:
    return [min(step, size - start) for start in range(0, size, step)]


def simulated(work: Workload, tile: tuple[int, ...], order: str) -> int:
    """Run all tiles and count what moves, block by block; shares no formula with the other."""
    groups, rows, columns, channels, filters = tile
    pixels = list(product(pieces(work.outs[0], rows), pieces(work.outs[1], columns)))
    axes: dict[str, Any] = {"m": pixels, "k": pieces(work.channels, channels), "n": pieces(work.filters, filters)}
    moved = 0
    for together in pieces(work.groups, groups):
        resident: dict[str, Any] = {}
        begun: set[Any] = set()
        for at in serpentine([len(axes[axis]) for axis in order]):
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


def allowed(work: Workload, limits: Limits, tile: tuple[int, ...]) -> bool:
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


@settings(max_examples=80, deadline=None)
@given(
    outs=st.tuples(SIZE, SIZE), channels=SIZE, filters=SIZE, groups=st.integers(1, 4), batch=st.integers(1, 2),
    kernels=st.tuples(st.integers(1, 3), st.integers(1, 3)), strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    memory=st.one_of(st.none(), st.integers(20, 800)), m=st.one_of(st.none(), st.integers(1, 12)), n=BOUND,
    window=st.builds(WindowBounds, BOUND, BOUND, BOUND, BOUND),
    kinds=st.sampled_from([(4, 4, 4), (1, 1, 4)]), bias=st.sampled_from([0, 4]),
)  # fmt: skip
def test_it_is_as_good_as_trying_everything(
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
        if not allowed(work, limits, tile):
            continue
        number = int(np.prod([-(-s // t) for s, t in zip((groups, *outs, channels, filters), tile, strict=True)]))
        moved = min(simulated(work, tile, order) for order in ORDERS)
        best[number] = min(moved, best.get(number, moved))
    expected = {n: b for n, b in best.items() if all(b < other for number, other in best.items() if number < n)}
    bounds = AxisBounds.of(limits, kernel=work.kernel, rank=2, windows=True)
    choices = front(work, limits, bounds, tiles)
    assert {choice.nodes: choice.bytes_moved for choice in choices} == expected
    for choice in choices:
        assert allowed(work, limits, choice.tile)
        assert choice.held == held(work, choice.tile)
        assert choice.bytes_moved >= work.lower_bound(memory or 2**40)
