"""Lower bounds on the bytes copied that hold for more than whole tensors in one order.

Both count the bytes of outputs, of weights, and of inputs as far as kernels read them, once each. The bound for parts adds what must leave
the fast memory between two uses if any bytes of a tensor may stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import sliced
from onnxtile.planning.movement.gaps import MovementProblem
from onnxtile.planning.movement.relaxation import least_bytes
from onnxtile.planning.movement.uses import TensorUses

ElementBox: TypeAlias = "tuple[tuple[int, int], ...]"
"""The elements of a tensor from a start to an end on each axis."""
_MOST_CELLS = 1 << 16


@dataclass(frozen=True)
class WideBounds:
    """The bounds for the order of `uses` and a fast memory of `capacity` bytes, and for any order."""

    uses: TensorUses
    capacity: int

    @cached_property
    def any_order(self) -> int:
        """The bytes that every plan of every order copies."""
        uses = replace(self.uses, cuts_inputs=True)
        read = [value for value in (*uses.inputs, *uses.weights) if value in uses.reads]
        sliced_inputs: dict[ir.Value, list[ir.Node]] = {}
        for node in uses.part_copies:
            source = node.inputs[0]
            assert source is not None
            sliced_inputs.setdefault(source, []).append(node)
        parts = (self._bytes_read(value, nodes) for value, nodes in sliced_inputs.items())
        return sum(map(uses.bytes, (*read, *uses.outputs))) + sum(parts)

    @cached_property
    def parts(self) -> int:
        """The bytes that every plan of this order copies, also where any bytes of a tensor stay and the others leave."""
        # An input that is cut needs no bytes of its own, so the bound holds for inputs as a whole, too.
        problem = replace(self.uses, cuts_inputs=True).problem(self.capacity)
        gaps = tuple(replace(gap, size=gap.loaded) for gap in problem.gaps if gap.loaded)
        return (
            self.any_order + self.uses.placed + (least_bytes(MovementProblem(problem.free, gaps, problem.stores)) or 0)
        )

    def _bytes_read(self, value: ir.Value, nodes: Iterable[ir.Node]) -> int:
        """Return the bytes of the input `value` that the Slices `nodes` read, at least."""
        sizes, nodes = self.uses.facts.shapes.sizes(value), list(nodes)
        boxes = [box for node in nodes if (box := self._box(node)) is not None]
        if sizes is None or len(boxes) < len(nodes):
            return max(self.uses.bytes(node.outputs[0]) for node in nodes)
        total = math.prod(sizes)
        return self.uses.bytes(value) * covered(boxes) // total if total else 0

    def _box(self, node: ir.Node) -> ElementBox | None:
        """Return the elements that a Slice reads; None where its steps are not all 1, or its bounds not known."""
        facts = self.uses.facts
        for result, starts in sliced(node, facts):
            lengths = facts.shapes.sizes(result)
            if lengths is not None:
                return tuple((start, start + length) for start, length in zip(starts, lengths, strict=True))
        return None


def covered(boxes: Sequence[ElementBox]) -> int:
    """Return the elements that are in at least one of `boxes`; those of the largest box where the boxes are too many."""
    cuts = [sorted({end for box in boxes for end in box[axis]}) for axis in range(len(boxes[0]))]
    if math.prod(len(ends) for ends in cuts) * len(boxes) > _MOST_CELLS:
        return max(math.prod(high - low for low, high in box) for box in boxes)
    cells = product(*(tuple(pairwise(ends)) for ends in cuts))
    return sum(math.prod(high - low for low, high in cell) for cell in cells if any(_holds(box, cell) for box in boxes))


def _holds(box: ElementBox, cell: Sequence[tuple[int, int]]) -> bool:
    return all(low <= first and last <= high for (low, high), (first, last) in zip(box, cell, strict=True))
