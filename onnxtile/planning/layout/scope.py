"""The graph that is planned, and the place of its inputs and outputs: in the arena or outside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from onnxtile.errors import UsageError
from onnxtile.planning.states.state_pair import StatePair

PLACINGS = ("outputs", "inside", "outside")
"""The part of the interface that lies in the arena: outputs, both inputs and outputs (inside), or neither (outside)."""


@dataclass(frozen=True)
class PlanScope:
    """A graph, with `io` for the place of its inputs and outputs.

    Outputs are live to the end of the run. So are inputs, unless `overwrite_inputs` frees their bytes after the last step that reads them.
    `borrows` marks the body of a function: views and parts of its operands stay in place, because the caller keeps the operands until the
    function ends. Tensors of the graph named in `alone` share bytes with nothing: they are live in the whole run. Input and output of each
    of `states` lie in the arena, whatever `io` says, and the input may be overwritten. Of a body that `repeats`, a state
    whose input and output cannot have one address is no state, but an input and an output. Raises UsageError for an invalid `io`, and
    for `overwrite_inputs` with inputs outside the arena.
    """

    graph: ir.Graph
    io: str = "outputs"
    overwrite_inputs: bool = False
    borrows: bool = False
    alone: frozenset[str] = frozenset()
    states: tuple[StatePair, ...] = ()
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.io not in PLACINGS:
            raise UsageError(f"invalid io {self.io!r} (choose {', '.join(PLACINGS)})")
        if self.overwrite_inputs and self.io != "inside":
            raise UsageError("inputs outside the arena cannot be overwritten", hint="add --io inside")

    @cached_property
    def kept(self) -> frozenset[ir.Value]:
        """The values that must outlive the run in the arena."""
        after = tuple(pair.output for pair in self.states)
        outputs = after if self.io == "outside" else self.graph.outputs
        before = {pair.input for pair in self.states}
        given = () if self.overwrite_inputs else (value for value in self.given if value not in before)
        return frozenset((*outputs, *given, *self.apart))

    @cached_property
    def apart(self) -> frozenset[ir.Value]:
        """The values that share bytes with nothing."""
        made = (value for node in self.graph for value in node.outputs) if self.alone else ()
        return frozenset(value for value in (*self.given, *made) if value.name in self.alone)

    @cached_property
    def given(self) -> tuple[ir.Value, ...]:
        """The inputs in the arena; they are there before the first step."""
        return tuple(self.graph.inputs) if self.io == "inside" else tuple(pair.input for pair in self.states)

    def outside(self) -> Iterator[tuple[ir.Value, str]]:
        """Yield the inputs and outputs outside the arena, each with the reason."""
        ends = {value for pair in self.states for value in (pair.input, pair.output)}
        if self.io != "inside":
            yield from ((value, "a graph input") for value in self.graph.inputs if value not in ends)
        if self.io == "outside":
            made = (value for value in self.graph.outputs if value.producer() is not None and value not in ends)
            yield from ((value, "a graph output") for value in made)
