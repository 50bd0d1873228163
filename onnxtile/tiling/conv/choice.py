"""The tile of a convolution that moves the fewest bytes.

The model is that of products (onnxtile.tiling.choice): a tile reads a window of the input (`channels` × its rows × its columns), the
weights from those channels to `filters` output channels, and adds to a block of the output; all three lie in fast memory together,

    batch·groups·(channels·window·a + filters·pixels·c) + groups·filters·(channels·kernel·b + bias) <= memory

and a block that the tile before has used is still there. Windows overlap by the halo: n neighbouring outputs read (n - 1)·stride +
reach inputs, reach the elements from the kernel's first to its last, so an axis of O outputs in t stretches reads stride·(O - t) + t·reach
of them. Padding counts as if it lay in memory. Where neither rows nor columns are cut the whole input is read, also what no kernel
touches. With windows(t) that number for all rows and columns together, one group moves

    a·channels·windows(t)·turns(n) + b·filters·channels·kernel·turns(m) + c·filters·pixels·(2·turns(k) - 1)

times the batch for input and output. Groups come one set after another. No schedule moves less than input, weights and output once each.

The search is exact: bytes depend on the number of stretches alone, so of all steps that give as many only the shortest counts, and for
each rows, columns and filters the longest channels that fit are the best in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from onnxtile.tiling.choice import Choice, Counts, NodeCount, best_of, shortest_steps, turns
from onnxtile.tiling.conv.slide import Slide
from onnxtile.tiling.grid import ORDERS
from onnxtile.tiling.limits import Limits, Window


@dataclass(frozen=True)
class ConvWork:
    """A convolution to cut: groups, input and output channels of each, how the kernel slides, the images in the batch.

    `bytes` are those of an element of the input, the weights and the output; `bias` those of what each output channel needs besides.
    """

    groups: int
    channels: int
    filters: int
    slides: tuple[Slide, ...]
    batch: int = 1
    bytes: tuple[int, int, int] = (4, 4, 4)
    bias: int = 0

    @property
    def outs(self) -> tuple[int, ...]:
        """Rows and columns of the output, or columns only."""
        return tuple(slide.out for slide in self.slides if isinstance(slide.out, int))

    @property
    def kernel(self) -> int:
        """The elements of the kernel."""
        return prod(slide.kernel for slide in self.slides)

    @property
    def lower_bound(self) -> float:
        """The bytes of input, weights and output, each moved once; neither padding nor what no kernel touches is."""
        a, b, c = self.bytes
        window = prod(_touched(slide, out) for slide, out in zip(self.slides, self.outs, strict=True))
        weights = self.filters * self.channels * self.kernel
        output = self.filters * prod(self.outs)
        return float(self.groups * (a * self.batch * self.channels * window + b * weights + c * self.batch * output))

    def blocks(self, groups: Any, steps: Sequence[Any], channels: Any, filters: Any) -> tuple[Any, Any, Any]:
        """Return the elements of window, weights and output block of a tile; numbers or arrays."""
        window: Any = self.batch * groups * channels
        pixels: Any = self.batch * groups * filters
        whole: Any = window
        is_cut: Any = False
        for slide, out, step in zip(self.slides, self.outs, steps, strict=True):
            window, pixels = window * slide.longest(step), pixels * step
            whole, is_cut = whole * _size(slide), is_cut | np.less(step, out)
        window = np.where(is_cut, window, np.maximum(window, whole))
        return window if np.ndim(window) else int(window), groups * filters * channels * self.kernel, pixels

    def held(self, groups: Any, steps: Sequence[Any], channels: Any, filters: Any) -> Any:
        """Return the bytes that a full tile holds at once."""
        blocks = zip(self.blocks(groups, steps, channels, filters), self.bytes, strict=True)
        return sum(elements * size for elements, size in blocks) + groups * filters * self.bias

    def moved(self, counts: tuple[Sequence[Any], Any, Any], order: str) -> Any:
        """Return the bytes that all tiles move, cut into so many stretches along each spatial axis, K and N."""
        spatial, k, n = counts
        m: Any = 1
        window: Any = self.batch * self.channels
        for slide, out, count in zip(self.slides, self.outs, spatial, strict=True):
            m, window = m * count, window * _windows(slide, out, count)
        whole = self.batch * self.channels * prod(_size(slide) for slide in self.slides)
        window = np.where(np.equal(m, 1), np.maximum(window, whole), window)
        each = {"m": m, "k": k, "n": n}
        a, b, c = self.bytes
        return self.groups * (
            a * window * turns("n", order, each)
            + b * self.filters * self.channels * self.kernel * turns("m", order, each)
            + c * self.batch * self.filters * prod(self.outs) * (2 * turns("k", order, each) - 1)
        )


def _windows(slide: Slide, out: int, count: Any) -> Any:
    """Return the input elements that the windows of one axis have in all, where `out` outputs are cut into `count` stretches."""
    if slide.transposed:
        return -(-(out + count * (max(slide.reach, slide.stride) - 2)) // slide.stride) + count
    return slide.stride * (out - count) + count * slide.reach


def _touched(slide: Slide, out: int) -> int:
    """Return how many input elements of one axis a kernel touches."""
    touched = min(_windows(slide, out, 1), _windows(slide, out, out))
    return int(min(touched, slide.size) if isinstance(slide.size, int) else touched)


def _size(slide: Slide) -> int:
    """Return the size of the input along one axis; 0 where it is not known, and so not cut."""
    return slide.size if isinstance(slide.size, int) else 0


@dataclass(frozen=True)
class Bounds:
    """The limits of a convolution, axis by axis."""

    pixels: int | None
    spatial: tuple[int | None, ...]
    channels: int | None
    filters: int | None
    channel_multiple: int
    filter_multiple: int
    channels_in_all: int | None
    filters_in_all: int | None

    @classmethod
    def of(cls, limits: Limits, kernel: int, rank: int) -> Bounds:
        """Return the limits for a kernel of so many elements in `rank` spatial axes. A K too small for the kernel leaves no channel."""
        window = limits.window or Window()
        _, k_multiple, n_multiple = limits.multiples
        channels = None if limits.k is None else limits.k // kernel
        return cls(
            pixels=limits.m,
            spatial=(window.rows, window.columns)[-rank:],
            channels=_lesser(channels, window.channels),
            filters=_lesser(limits.n, window.filters),
            channel_multiple=k_multiple // gcd(k_multiple, kernel),
            filter_multiple=n_multiple,
            channels_in_all=window.channels,
            filters_in_all=window.filters,
        )

    def groups(self, work: ConvWork) -> int:
        """Return how many groups one tile may have; 1 where a group is cut."""
        pairs = [(self.channels, work.channels), (self.filters, work.filters)]
        if any(bound is not None and bound < size for bound, size in pairs):
            return 1
        most = [work.groups]
        most += [] if self.channels_in_all is None else [self.channels_in_all // work.channels]
        most += [] if self.filters_in_all is None else [self.filters_in_all // work.filters]
        return min(most)


def _lesser(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def front(work: ConvWork, limits: Limits, nodes: NodeCount) -> tuple[Choice, ...]:
    """Return the choices within `limits` that no other beats in both nodes and bytes, from the fewest nodes to the fewest bytes.

    A tile is (groups, rows, columns, channels, filters), without the rows where there is one spatial axis.
    `nodes` tells how many nodes stand for the numbers of stretches along (groups, rows, columns, channels, filters).
    """
    bounds = Bounds.of(limits, work.kernel, len(work.slides))
    tiles = np.concatenate([_single(work, limits, bounds), _sets(work, limits, bounds)], axis=1)
    if not tiles.shape[1]:
        return ()
    groups, *steps, channels, filters = tiles
    sizes = (work.groups, *work.outs, work.channels, work.filters)
    counts = [-(-size // step) for size, step in zip(sizes, tiles, strict=True)]
    alone = np.prod(counts, axis=0) == 1
    moved = [work.moved((counts[1:-2], counts[-2], counts[-1]), order) for order in ORDERS]
    number = [np.where(alone, 1, nodes(*counts, order)) for order in ORDERS]
    held = work.held(groups, steps, channels, filters)
    return best_of(tuple(tiles), np.asarray(held), number, moved)


def _spatial(work: ConvWork, bounds: Bounds) -> list[Counts]:
    steps = [shortest_steps(out, bound) for out, bound in zip(work.outs, bounds.spatial, strict=True)]
    return [axis.ravel() for axis in np.meshgrid(*steps, indexing="ij")]


def _beside(pixels: list[Counts], others: Counts) -> tuple[list[Counts], Counts]:
    """Return each of `pixels` with each of `others`."""
    at, other = (axis.ravel() for axis in np.meshgrid(np.arange(len(pixels[0])), others, indexing="ij"))
    return [axis[at] for axis in pixels], other


def _single(work: ConvWork, limits: Limits, bounds: Bounds) -> Counts:
    """Return tiles of one group each, with the longest channels that fit, as rows of steps."""
    filters = np.minimum(shortest_steps(work.filters, bounds.filters, bounds.filter_multiple), work.filters)
    steps, n = _beside(_spatial(work, bounds), filters)
    most = np.full(n.shape, work.channels if bounds.channels is None else bounds.channels, np.int64)
    one_window, one_weight, output = (np.asarray(x) for x in work.blocks(1, steps, 1, n))
    a, b, c = work.bytes
    for limit, (x, w, y) in ((limits.largest_elements, (1, 1, 1)), (limits.largest_bytes, work.bytes)):
        if limit is not None:
            most = np.minimum(most, np.minimum(limit // (one_window * x), limit // (one_weight * w)))
            most = np.where(output * y <= limit, most, 0)
    if limits.memory is not None:
        left = limits.memory - output * c - n * work.bias
        most = np.minimum(most, left // (one_window * a + one_weight * b))
    if bounds.pixels is not None:
        most = np.where(np.prod(steps, axis=0) <= bounds.pixels, most, 0)
    k = _shortest_of_longest(most, work.channels, bounds.channel_multiple)
    return np.stack([np.ones_like(n), *steps, k, n])[:, k > 0]


def _shortest_of_longest(most: Counts, size: int, multiple: int) -> Counts:
    """Return the shortest step that cuts `size` into as few stretches as a step up to `most` does; 0 where there is none."""
    units = -(-size // multiple)
    longest = np.where(most >= size, units, np.minimum(np.maximum(most, 0) // multiple, units))
    stretches = -(-units // np.maximum(longest, 1))
    return np.where(longest > 0, np.minimum(-(-units // stretches) * multiple, size), 0)


def _sets(work: ConvWork, limits: Limits, bounds: Bounds) -> Counts:
    """Return tiles of two or more whole groups, as rows of steps."""
    together = shortest_steps(work.groups, max(bounds.groups(work), 1))
    together = together[together > 1]
    steps, groups = _beside(_spatial(work, bounds), together)
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
