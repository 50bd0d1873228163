"""The windows of a kernel along one axis of the result, and the elements that they read. A matrix product has a kernel of 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.operators.node_view import Dim, NodeView, NotApplicable
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array


@dataclass(frozen=True)
class InputWindow:
    """The inputs that one stretch of the output reads: elements from `start` to `stop` with `before` and `after` of padding.

    `extra` is ConvTranspose's output_padding: elements at the end of the output that no input reaches.
    """

    start: int
    stop: int
    before: int
    after: int
    extra: int = 0

    @property
    def width(self) -> int:
        """The number of input elements."""
        return self.stop - self.start


@dataclass(frozen=True)
class SlidingAxis:
    """One axis of the output: sizes of input and output in elements, where they are known, kernel, stride, dilation and padding.

    The defaults are the rows of a matrix product: a kernel of 1, which reads as many inputs as there are outputs.
    Conv (https://onnx.ai/onnx/operators/onnx__Conv.html): output o reads inputs o·stride - before + j·dilation, j < kernel.
    ConvTranspose (https://onnx.ai/onnx/operators/onnx__ConvTranspose.html): input i adds to outputs i·stride - before + j·dilation.

    `kernel`, `stride`, `dilation` and `output_padding` are in elements, as in ONNX; `before` and `after` are the padding. `auto` is the
    attribute auto_pad, `wanted` the size in ConvTranspose's output_shape. `transposed` says that it is a ConvTranspose. `size` is that of
    the input, `out` that of the output.
    """

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    output_padding: int = 0
    auto: str = "NOTSET"
    wanted: int | None = None
    transposed: bool = False
    size: Dim = None
    out: Dim = None

    @property
    def reach(self) -> int:
        """How many elements lie under the kernel, from the first that it touches to the last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def is_plain(self) -> bool:
        """Whether output i reads input i and no other, as in a matrix product."""
        return (self.kernel, self.stride) == (1, 1) and self.size == self.out

    @property
    def is_known(self) -> bool:
        """Whether both sizes are numbers, without which the axis cannot be cut."""
        return isinstance(self.size, int) and isinstance(self.out, int)

    def over(self, size: Dim) -> SlidingAxis:
        """Return the same over an input of `size`, with the padding and the size of the output that follow where that is a number.

        Raises NotApplicable where output_shape is larger than the input reaches.
        """
        if not isinstance(size, int):
            return replace(self, size=size, out=self.wanted)
        return self._transposed_over(size) if self.transposed else self._over(size)

    def _over(self, size: int) -> SlidingAxis:
        before, after = (0, 0) if self.auto == "VALID" else (self.before, self.after)
        if self.auto.startswith("SAME"):
            total = max((-(-size // self.stride) - 1) * self.stride + self.reach - size, 0)
            before, after = self._halves(total, small_first=self.auto == "SAME_UPPER")
        out = (size + before + after - self.reach) // self.stride + 1
        return replace(self, size=size, out=out, before=before, after=after)

    def _transposed_over(self, size: int) -> SlidingAxis:
        full = (size - 1) * self.stride + self.reach + self.output_padding
        before, after = (0, 0) if self.auto == "VALID" else (self.before, self.after)
        wanted = size * self.stride if self.wanted is None and self.auto.startswith("SAME") else self.wanted
        if self.wanted is not None and self.wanted > full:
            raise NotApplicable(f"its output_shape asks for {self.wanted} elements where its input reaches {full}")
        if wanted is not None:
            before, after = self._halves(max(full - wanted, 0), small_first=self.auto == "SAME_UPPER")
        return replace(self, size=size, out=full - before - after, before=before, after=after)

    @staticmethod
    def _halves(total: int, *, small_first: bool) -> tuple[int, int]:
        small, large = total // 2, total - total // 2
        return (small, large) if small_first else (large, small)

    def longest(self, outputs: int) -> int:
        """Return the input elements that so many neighbouring outputs need at most, padding included."""
        if self.transposed:
            # Where strides leave gaps, the input before a gap is read too.
            return (outputs + max(self.reach, self.stride) - 2) // self.stride + 1
        return (outputs - 1) * self.stride + self.reach

    def window(self, stretch: slice) -> InputWindow:
        """Return the inputs that the outputs of a stretch read. Both sizes must be known."""
        assert isinstance(self.size, int)
        return self._scattered(stretch, self.size) if self.transposed else self._gathered(stretch, self.size)

    def _gathered(self, stretch: slice, size: int) -> InputWindow:
        start = stretch.start * self.stride - self.before
        stop = (stretch.stop - 1) * self.stride - self.before + self.reach
        return InputWindow(max(start, 0), min(stop, size), max(-start, 0), max(stop - size, 0))

    def _scattered(self, stretch: slice, size: int) -> InputWindow:
        # Counted from the first element that input 0 adds to; where strides leave gaps, the input before a gap is read too.
        first, last = stretch.start + self.before, stretch.stop - 1 + self.before
        start = min(-(-(first - self.reach + 1) // self.stride), first // self.stride)
        start = min(max(start, 0), size - 1)
        stop = max(min(last // self.stride + 1, size), start + 1)
        spare = (stop - 1) * self.stride + self.reach - 1 - last
        return InputWindow(start, stop, first - start * self.stride, max(spare, 0), max(-spare, 0))

    def require_reachable(self) -> None:
        """Raise NotApplicable where a stretch of the output could read padding only."""
        if not self.transposed and max(self.before, self.after) >= self.reach:
            raise NotApplicable(
                f"a tile could read padding only: its padding is {max(self.before, self.after)}, its kernel reaches over {self.reach}"
            )

    def require_input(self, stretches: Iterable[slice]) -> None:
        """Raise NotApplicable where one of these stretches of the output reads padding only."""
        if any(self.window(stretch).width < 1 for stretch in stretches):
            self.require_reachable()


# The elements of each operand that a range of a result reads, axis by axis: the types of rules, and the rules that many share.


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The elements of an operand of `size` that each element of a result reads along one axis.

    `places` has for each element of the result the place of the operand that it is a copy of. With a `scale`, it lies between this place
    and the next, and any range of the operand is resized to so many times its elements as in the whole. Otherwise `weights` has a row for
    each element of the result, with the weight of each element of the operand.
    """

    size: int
    places: Array | None = None
    weights: Array | None = None
    scale: int = 0

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
        starts: Array = np.argmax(self.weights != 0, axis=1)
        return starts

    @cached_property
    def stops(self) -> Array:
        """One past the last element that each element of the result reads."""
        if self.places is not None:
            ends: Array = np.minimum(self.places + (2 if self.scale else 1), self.size)
            return ends
        assert self.weights is not None
        stops: Array = self.size - np.argmax(self.weights[:, ::-1] != 0, axis=1)
        return stops

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


FoldRule: TypeAlias = Callable[[NodeView, int, int], AxisLinks]
"""Returns the link of each operand along an axis, of the operand at a place, that is reduced. Raises NotApplicable where it is not."""


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
    links: list[AxisLink | None] = []
    for index in range(len(view.inputs)):
        sizes = () if view.inputs[index] is None else view.operand(index)
        operand_axis = axis - rank + len(sizes)
        links.append(AxisLink(operand_axis) if operand_axis >= 0 and sizes[operand_axis] == size and size > 1 else None)
    return tuple(links)


def kernel_axes(node: ir.Node, kernel: Sequence[int], *, transposed: bool = False) -> list[SlidingAxis]:
    """Return the windows of a `kernel` along each spatial axis, over an input of any size.

    Raises NotApplicable where the attributes of `node` are for another rank, or its padding is negative.
    """
    rank = len(kernel)

    def ints(name: str, default: int, count: int = rank) -> list[int]:
        return list(node.attributes.get_ints(name, [default] * count) or [])

    pads = ints("pads", 0, 2 * rank)
    strides, dilations, extra = ints("strides", 1), ints("dilations", 1), ints("output_padding", 0)
    wanted = ints("output_shape", 0)[-rank:] if "output_shape" in node.attributes else [None] * rank
    if any(len(each) != size for each, size in ((pads, 2 * rank), (strides, rank), (dilations, rank), (extra, rank))):
        raise NotApplicable(f"its attributes are not for {rank} spatial axes")
    if min(pads) < 0:
        raise NotApplicable("its padding is negative")
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    return [
        SlidingAxis(
            kernel=kernel[i],
            stride=strides[i],
            dilation=dilations[i],
            before=pads[i],
            after=pads[rank + i],
            output_padding=extra[i],
            auto=auto,
            wanted=wanted[i],
            transposed=transposed,
        )
        for i in range(rank)
    ]


def sliding(view: NodeView, axis: int, kernel: Sequence[int], *, transposed: bool = False) -> SlidingAxis:
    """Return the windows along the spatial `axis`, for an operand of known sizes."""
    slide = kernel_axes(view.node, kernel, transposed=transposed)[axis - 2]
    # With ceil_mode the last window may reach over the padding.
    return replace(slide.over(view.operand(0)[axis]), out=view.result[axis])
