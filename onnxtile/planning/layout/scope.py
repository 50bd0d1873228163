"""Which graph is planned, and what of its inputs and outputs lies in the arena."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from onnxtile.errors import UsageError

PLACINGS = ("outputs", "inside", "outside")
"""What lies in the arena: the graph's outputs, its inputs and outputs, or neither."""


@dataclass(frozen=True)
class PlanScope:
    """A graph whose outputs, and inputs, lie in the arena, as `io` says.

    What the caller reads lives to the end of the run. So do inputs, unless `overwrite_inputs` gives their bytes away after the last step
    that reads them. With `borrows`, it is the body of a function, which sees views and parts of its operands where these lie: the caller
    keeps them until the function ends. Raises UsageError for an `io` that is none, and for inputs outside that are to be overwritten.
    """

    graph: ir.Graph
    io: str = "outputs"
    overwrite_inputs: bool = False
    borrows: bool = False

    def __post_init__(self) -> None:
        if self.io not in PLACINGS:
            raise UsageError(
                f"there is no placing {self.io!r} of inputs and outputs", hint=f"there are {', '.join(PLACINGS)}"
            )
        if self.overwrite_inputs and self.io != "inside":
            raise UsageError("inputs outside of the arena cannot be overwritten", hint="add --io inside")

    @cached_property
    def kept(self) -> frozenset[ir.Value]:
        """What must outlive the run in the arena."""
        outputs = () if self.io == "outside" else self.graph.outputs
        return frozenset((*outputs, *(() if self.overwrite_inputs else self.given)))

    @cached_property
    def given(self) -> tuple[ir.Value, ...]:
        """The inputs that may lie in the arena, where they are before the first step."""
        return tuple(self.graph.inputs) if self.io == "inside" else ()

    def outside(self) -> Iterator[tuple[ir.Value, str]]:
        """Yield the inputs and outputs that lie outside, and why."""
        if self.io != "inside":
            yield from ((value, "a graph input") for value in self.graph.inputs)
        if self.io == "outside":
            yield from ((value, "a graph output") for value in self.graph.outputs if value.producer() is not None)
