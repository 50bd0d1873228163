"""An exact search for the tiles that move the fewest bytes with so many nodes (the cost model: onnxtile.tiling.cost).

Bytes depend only on the number of stretches, so of all steps that give as many only the shortest counts; for each step along the
sliding axes and N the longest K that fits is the best in any order. That leaves about 4·√(M·N) pairs times six orders for a matrix
product. Tiles of several whole groups are searched beside tiles of one group.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, prod
from typing import Any

import numpy as np

from onnxtile.tiling.axis_bounds import AxisBounds
from onnxtile.tiling.choice import Counts, TileChoice, best_of
from onnxtile.tiling.cost import Workload
from onnxtile.tiling.grid import ORDERS
from onnxtile.tiling.limits import Limits

NodeCount = Callable[..., Any]
"""The number of nodes for so many stretches along groups, each sliding axis, K and N (arrays), in an order of loops (the last argument)."""


def front(workload: Workload, limits: Limits, bounds: AxisBounds, nodes: NodeCount) -> tuple[TileChoice, ...]:
    """Return the choices within `limits` that no other beats in both nodes and bytes, from the fewest nodes to the fewest bytes.

    It is empty where nothing fits. Of equal choices the first order of `ORDERS` counts, then the tile that holds less.
    """
    work = workload.filled(bounds.quanta)
    tiles = np.concatenate([_of_one_group(work, limits, bounds), _of_groups(work, limits, bounds)], axis=1)
    if not tiles.shape[1]:
        return ()
    groups, *steps, channels, filters = tiles
    counts = [-(-size // step) for size, step in zip(work.sizes, tiles, strict=True)]
    single = (np.prod(counts, axis=0) == 1) & (not bounds.fills)
    moved = [work.moved((steps, channels, filters), order) for order in ORDERS]
    number = [np.where(single, 1, nodes(*counts, order)) for order in ORDERS]
    return best_of(tuple(tiles), np.asarray(work.held(groups, steps, channels, filters)), number, moved)


def smallest(workload: Workload, bounds: AxisBounds) -> tuple[int, int]:
    """Return the bytes of the smallest tile that bounds and multiples allow, and the elements of its largest block."""
    work = workload.filled(bounds.quanta)
    m, k, n = bounds.multiples
    tile = 1, [min(m, out) for out in work.outs], min(k, work.channels), min(n, work.filters)
    return int(work.held(*tile)), int(max(work.blocks(*tile)))


def shortest_steps(size: int, bound: int | None = None, multiple: int = 1) -> Counts:
    """Return the shortest step, a multiple, for each possible number of stretches of an axis, up to `bound`."""
    units = -(-size // multiple)
    few = np.arange(1, min(isqrt(units) + 1, units) + 1, dtype=np.int64)
    steps: Counts = np.minimum(np.unique(np.concatenate([few, -(-units // few)])) * multiple, size)
    return steps if bound is None else steps[steps <= bound]


def pairs_at_most(workload: Workload, bounds: AxisBounds) -> int:
    """Return how many steps along the sliding axes and N the search compares at most, in all combinations."""
    first, _, last = bounds.multiples
    axes = [*((out, bound, first) for out, bound in zip(workload.outs, bounds.sliding, strict=True))]
    axes += [(workload.filters, bounds.filters, last)]
    counts = (
        min(2 * isqrt(-(-size // multiple)) + 2, size if bound is None else bound) for size, bound, multiple in axes
    )
    return prod(counts)


def _along(work: Workload, bounds: AxisBounds) -> list[Counts]:
    """Return the steps along each sliding axis, all combinations."""
    multiple = bounds.multiples[0]
    steps = [shortest_steps(out, bound, multiple) for out, bound in zip(work.outs, bounds.sliding, strict=True)]
    return [axis.ravel() for axis in np.meshgrid(*steps, indexing="ij")]


def _beside(along: list[Counts], others: Counts) -> tuple[list[Counts], Counts]:
    """Return each of `along` with each of `others`."""
    at, other = (axis.ravel() for axis in np.meshgrid(np.arange(len(along[0])), others, indexing="ij"))
    return [axis[at] for axis in along], other


def _of_one_group(work: Workload, limits: Limits, bounds: AxisBounds) -> Counts:
    """Return tiles of one group each, with the longest channels that fit, as rows of steps."""
    steps, n = _beside(_along(work, bounds), shortest_steps(work.filters, bounds.filters, bounds.multiples[2]))
    most = np.full(n.shape, work.channels if bounds.channels is None else bounds.channels, np.int64)
    window, weight, output = (np.asarray(x) for x in work.blocks(1, steps, 1, n))
    a, b, c = work.bytes
    for limit, (x, w, y) in ((limits.largest_elements, (1, 1, 1)), (limits.largest_bytes, work.bytes)):
        if limit is not None:
            most = np.minimum(most, np.minimum(limit // (window * x), limit // (weight * w)))
            most = np.where(output * y <= limit, most, 0)
    if limits.memory is not None:
        left = limits.memory - output * c - n * work.column - np.prod(steps, axis=0) * work.row
        most = np.minimum(most, left // (window * a + weight * b))
    if bounds.pixels is not None:
        most = np.where(np.prod(steps, axis=0) <= bounds.pixels, most, 0)
    k = _shortest_of_longest(most, work.channels, bounds.multiples[1])
    return np.stack([np.ones_like(n), *steps, k, n])[:, k > 0]


def _shortest_of_longest(most: Counts, size: int, multiple: int) -> Counts:
    """Return the shortest step that cuts `size` into as few stretches as a step up to `most` does; 0 where there is none."""
    units = -(-size // multiple)
    longest = np.where(most >= size, units, np.minimum(np.maximum(most, 0) // multiple, units))
    stretches = -(-units // np.maximum(longest, 1))
    return np.where(longest > 0, np.minimum(-(-units // stretches) * multiple, size), 0).astype(np.int64)


def _of_groups(work: Workload, limits: Limits, bounds: AxisBounds) -> Counts:
    """Return tiles of two or more whole groups, as rows of steps."""
    together = shortest_steps(work.groups, bounds.groups(work.groups, work.channels, work.filters))
    steps, groups = _beside(_along(work, bounds), together[together > 1])
    k, n = np.full_like(groups, work.channels), np.full_like(groups, work.filters)
    fits = np.ones(groups.shape, bool)
    blocks = [np.asarray(block) for block in work.blocks(groups, steps, k, n)]
    for block, size in zip(blocks, work.bytes, strict=True):
        fits &= limits.largest_elements is None or block <= limits.largest_elements
        fits &= limits.largest_bytes is None or block * size <= limits.largest_bytes
    if limits.memory is not None:
        fits &= work.held(groups, steps, k, n) <= limits.memory
    if bounds.pixels is not None:
        fits &= np.prod(steps, axis=0) <= bounds.pixels
    return np.stack([groups, *steps, k, n])[:, fits]
