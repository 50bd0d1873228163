"""The elements of each operand that a range of a result reads, axis by axis: the types of rules, and the rules that many share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.windows import InputWindow, SlidingAxis
from onnxtile.system.runtime import Array


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The elements of an operand of `size` that each element of a result reads along one axis.

    `places` has for each element of the result the place of the operand that it is a copy of. Otherwise `weights` has a row for each
    element of the result, with the weight of each element of the operand.
    """

    size: int
    places: Array | None = None
    weights: Array | None = None

    @property
    def out(self) -> int:
        """The number of elements of the result."""
        return len(self.starts)

    @cached_property
    def starts(self) -> Array:
        """The first element that each element of the result reads."""
        if self.places is not None:
            return self.places
        assert self.weights is not None
        found: Array = np.argmax(self.weights != 0, axis=1)
        return found

    @cached_property
    def stops(self) -> Array:
        """One past the last element that each element of the result reads."""
        if self.places is not None:
            return self.places + 1
        assert self.weights is not None
        found: Array = self.size - np.argmax(self.weights[:, ::-1] != 0, axis=1)
        return found

    @cached_property
    def overlap(self) -> int:
        """The elements that two neighbouring elements of the result both read, at most."""
        return int(np.max(np.maximum(self.stops[:-1] - self.starts[1:], 0), initial=0))

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of the elements that the results from `start` to `stop` read."""
        return int(self.starts[start:stop].min()), int(self.stops[start:stop].max())

    @cached_property
    def _needs(self) -> Array:
        """The elements of the operand that the results up to each one need."""
        return np.maximum.accumulate(self.stops).astype(np.float64)

    def results(self, available: Array) -> Array:
        """Return the number of results that operands up to `available` allow, beyond the ends as if the operand went on."""
        ratio = self.out / self.size
        within = np.searchsorted(self._needs, np.clip(available, 0, self.size), side="right")
        beyond = np.where(available > self.size, self.out + (available - self.size) * ratio, within)
        return np.where(available < 0, available * ratio, beyond)

    def operands(self, results: Array) -> Array:
        """Return the number of operands that results up to `results` need, beyond the ends as if the operand went on."""
        ratio = self.size / self.out
        places = np.clip(np.ceil(np.clip(results, 0, self.out)) - 1, 0, self.out - 1).astype(np.int64)
        beyond = np.where(results > self.out, self.size + (results - self.out) * ratio, self._needs[places])
        return np.where(results <= 0, results * ratio, beyond)


@dataclass(frozen=True)
class AxisLink:
    """The axis of an operand that an axis of the output depends on, and how.

    Without `window`, element i reads element i. With `factor` n, the elements i·n to i·n + n - 1 read element i. With `sources`, they say
    what each element reads.
    """

    axis: int
    window: SlidingAxis | None = None
    factor: int = 1
    sources: SourceRows | None = None

    def reads(self, start: int, stop: int) -> InputWindow:
        """Return the elements of the operand that the outputs from `start` to `stop` read, and the padding around them."""
        if self.window is not None:
            return self.window.window(slice(start, stop))
        if self.sources is not None:
            return InputWindow(*self.sources.reads(start, stop), 0, 0)
        return InputWindow(start // self.factor, -(-stop // self.factor), 0, 0)

    @property
    def sums(self) -> bool:
        """Whether elements of the result are weighted sums, which pieces compute as a matrix product."""
        return self.sources is not None and self.sources.weights is not None

    @property
    def overlap(self) -> int:
        """The elements that neighbouring elements of the result both read; 0 for an operator without windows."""
        if self.window is not None:
            return max(self.window.reach - self.window.stride, 0)
        return 0 if self.sources is None else self.sources.overlap


AxisLinks = tuple[AxisLink | None, ...]
"""One link for each operand of a node; None for an operand that is read whole."""

AxisRule: TypeAlias = Callable[[NodeView, int], AxisLinks]
"""Returns the link of each operand along an axis of the first result. Raises NotApplicable with the reason where it cannot be cut."""


def links_of(view: NodeView, *links: AxisLink | None) -> AxisLinks:
    """Return `links` of the first operands; the others are read whole."""
    return (*links, *(None for _ in range(len(view.inputs) - len(links))))


def same_place(view: NodeView, axis: int) -> AxisLinks:
    """Each element of the result reads the same element of the first operand."""
    if view.has_several_results:
        raise NotApplicable("it has several results")
    return links_of(view, AxisLink(axis))


def broadcast(view: NodeView, axis: int) -> AxisLinks:
    """Each operand is aligned at its last axis; an operand of size 1 along an axis is read whole."""
    rank, size = len(view.result), view.result[axis]
    found: list[AxisLink | None] = []
    for place in range(len(view.inputs)):
        sizes = () if view.inputs[place] is None else view.operand(place)
        own = axis - rank + len(sizes)
        found.append(AxisLink(own) if own >= 0 and sizes[own] == size and size > 1 else None)
    return tuple(found)


def sliding(view: NodeView, axis: int, kernel: Sequence[int], *, transposed: bool = False) -> SlidingAxis:
    """Return the windows along the spatial `axis`, for an operand of known sizes."""
    rank, at = len(kernel), axis - 2
    pads, strides = view.ints("pads", [0] * 2 * rank), view.ints("strides", [1] * rank)
    dilations, extra = view.ints("dilations", [1] * rank), view.ints("output_padding", [0] * rank)
    if len(pads) != 2 * rank or len(strides) != rank or min(pads) < 0:
        raise NotApplicable("its pads or strides do not fit its rank")
    wanted = view.ints("output_shape", [0] * rank)[-rank:] if "output_shape" in view.node.attributes else None
    slide = SlidingAxis(
        kernel=kernel[at],
        stride=strides[at],
        dilation=dilations[at],
        before=pads[at],
        after=pads[rank + at],
        output_padding=extra[at],
        auto=view.node.attributes.get_string("auto_pad", "NOTSET"),
        wanted=None if wanted is None else wanted[at],
        transposed=transposed,
    )
    # With ceil_mode the last window may reach over the padding.
    return replace(slide.over(view.operand(0)[axis]), out=view.result[axis])
