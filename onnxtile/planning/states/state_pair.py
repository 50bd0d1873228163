"""An input and an output of a graph that are one state: the value before a run and the value after it."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

GIVEN = "given"
NAMES = "names"
STRUCTURE = "operator"


@dataclass(frozen=True)
class StatePair:
    """The state that a run reads as `input` and writes as `output`: the output of one run is the input of the next.

    `axis` is the axis along which the output is longer; None where both have one shape. `source` says how the pair is known: "given" by
    the user, by the "names" of both, or by the "operator" that makes the output of the input.
    """

    input: ir.Value
    output: ir.Value
    axis: int | None = None
    source: str = GIVEN
