"""The table of bytes that loops over tiles move, beside the fewest of any grid and order that a simulation tries.

Products of N x N by N x N in float32, K in steps of 1. The simulation walks every grid of at most so many tiles that fill three quarters of
the memory, in each of the six orders of loops, and counts the blocks that move: once with loops that all run upwards, once as a
serpentine. It shares no formula with `onnxtile.tiling.grid`. "chosen" are the fewest bytes that the search of `tile` finds in all grids.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import prod

from onnxtile.operators.reads import SlidingAxis
from onnxtile.tiling.choose import front
from onnxtile.tiling.grid import Workload
from onnxtile.tiling.limits import AxisBounds, Limits
from tests.bench.tables import Rows, Table, numbers

BYTES = 4


def loop_orders(given: Namespace) -> Rows:
    """Yield the bytes that move, for each size with a memory."""
    for n, memory in zip(numbers(given.sizes), numbers(given.memories), strict=True):
        upwards, turning = (fewest(n, memory * 1024, given.tiles, is_turning=turns) for turns in (False, True))
        yield f"{n}³", f"{memory} KiB", upwards, turning, chosen(n, memory * 1024)


def chosen(n: int, memory: int) -> int:
    """Return the fewest bytes that the search of `tile` finds."""
    limits = Limits.of(memory=memory)
    work = Workload(n, n, (SlidingAxis(size=n, out=n),))
    bounds = AxisBounds.from_limits(limits, kernel=1, rank=1, windows=False)
    return front(work, limits, bounds, lambda *counts: prod(counts[:-1]))[-1].bytes_moved


def fewest(n: int, memory: int, tiles: int, *, is_turning: bool) -> int:
    """Return the fewest bytes of all grids of at most so many tiles, in all orders."""
    steps = sorted({-(-n // count) for count in range(1, n + 1)})
    found = []
    for m, k, columns in product(steps, repeat=3):
        cuts = [pieces(n, step) for step in (m, k, columns)]
        held = (m * k + k * columns + m * columns) * BYTES
        if 3 * memory <= 4 * held <= 4 * memory and prod(map(len, cuts)) <= tiles:
            found += [moved(cuts, order, is_turning=is_turning) for order in permutations(range(3))]
    return min(found)


def pieces(size: int, step: int) -> list[int]:
    """Return the lengths of the stretches of an axis."""
    return [min(step, size - start) for start in range(0, size, step)]


def moved(cuts: Sequence[Sequence[int]], order: Sequence[int], *, is_turning: bool) -> int:
    """Return the bytes that move: blocks of A (axes 0, 1), of B (1, 2) and of the result (0, 2), read again unless new."""
    at_hand: dict[tuple[int, int], tuple[int, int]] = {}
    begun: set[tuple[int, int]] = set()
    total = 0
    for place in places([len(cuts[axis]) for axis in order], is_turning=is_turning):
        at = dict(zip(order, place, strict=True))
        for operand in ((0, 1), (1, 2), (0, 2)):
            block = (at[operand[0]], at[operand[1]])
            if at_hand.get(operand) == block:
                continue
            at_hand[operand] = block
            size = cuts[operand[0]][block[0]] * cuts[operand[1]][block[1]] * BYTES
            total += size * (2 if operand == (0, 2) and block in begun else 1)
            if operand == (0, 2):
                begun.add(block)
    return total


def places(counts: Sequence[int], *, is_turning: bool) -> Iterator[tuple[int, int, int]]:
    """Yield the places of three nested loops, outermost first; each turns back where it ended, or begins anew."""
    outer, middle, inner = counts
    for step in range(outer * middle * inner):
        row, third = divmod(step, inner)
        first, second = divmod(row, middle)
        if is_turning:
            second = middle - 1 - second if first % 2 else second
            third = inner - 1 - third if row % 2 else third
        yield first, second, third


TABLES = {
    "loop-orders": Table(
        "bytes that loops over tiles move",
        ("product", "memory", "all loops upwards", "serpentine", "chosen"),
        loop_orders,
        models=False,
        options={
            "--sizes": {"default": "256,512"},
            "--memories": {"default": "128,256", "help": "in KiB"},
            "--tiles": {"type": int, "default": 1024, "help": "of a grid, at most"},
        },
    )
}
