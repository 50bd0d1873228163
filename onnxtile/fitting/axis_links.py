"""The facts of a node that rules for cutting read, and the link from an axis of its result to an axis of an operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.fitting.source_rows import SourceRows
from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.tiling.sliding import InputWindow, SlidingAxis


class Uncut(Exception):
    """The reason why an operator is not cut along an axis; one line for the user."""


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


@dataclass(frozen=True)
class OperatorFacts:
    """A node with the sizes of its operands and results, all known."""

    node: ir.Node
    shapes: Shapes
    constants: Constants
    opset: int

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The operands by their places."""
        return self.node.inputs

    def sizes(self, place: int) -> tuple[int, ...] | None:
        """Return the sizes of the operand at `place`; None where it is not given or its sizes are not known."""
        value = self.inputs[place] if place < len(self.inputs) else None
        return None if value is None else self.shapes.sizes(value)

    @property
    def result(self) -> tuple[int, ...]:
        """The sizes of the first result. Raises Uncut where they are not known."""
        sizes = self.shapes.sizes(self.node.outputs[0])
        if sizes is None:
            raise Uncut("the sizes of its result are not known")
        return sizes

    def operand(self, place: int) -> tuple[int, ...]:
        """Return the sizes of the operand at `place`. Raises Uncut where they are not known."""
        sizes = self.sizes(place)
        if sizes is None:
            raise Uncut("the sizes of an operand are not known")
        return sizes

    def ints(self, name: str, default: Sequence[int]) -> list[int]:
        """Return an attribute with whole numbers."""
        return list(self.node.attributes.get_ints(name, list(default)) or default)

    def integer(self, name: str, default: int) -> int:
        """Return an attribute with one whole number."""
        return self.node.attributes.get_int(name, default)

    def numbers(self, place: int) -> list[float] | None:
        """Return the elements of the constant operand at `place`; None where it is not given. Raises Uncut for one that is computed."""
        value = self.inputs[place] if place < len(self.inputs) else None
        if value is None:
            return None
        if value not in self.constants:
            raise Uncut("an operand that sets its sizes is computed at run time")
        found = self.constants.array(value).ravel()
        # The largest whole number, the end of many slices, is no float.
        return list(map(int if found.dtype.kind in "iu" else float, found))
