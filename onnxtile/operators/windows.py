"""The windows of a kernel along one axis of the result, and the elements that they read. A matrix product has a kernel of 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from onnxtile.operators.node_view import NotApplicable

AxisSize = int | str | None
"""A size in elements, the symbols of a size known only when the model runs, or None where nothing is known."""


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
    """

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0
    output_padding: int = 0
    auto: str = "NOTSET"
    wanted: int | None = None
    """The size in ConvTranspose's output_shape."""
    transposed: bool = False
    size: AxisSize = None
    out: AxisSize = None

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

    def over(self, size: AxisSize) -> SlidingAxis:
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
