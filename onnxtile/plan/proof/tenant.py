"""What the check of a plan is told: each tensor with an address, and how it came to be; and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

BEFORE = -1
"""The step at which inputs are written: before the first."""


@dataclass(frozen=True)
class Operand:
    """What a node reads: its name, and its shape where it is known; with `bound`, that may be smaller in a run, but not larger."""

    name: str
    shape: tuple[int, ...] | None
    bound: bool = False


@dataclass(frozen=True)
class Made:
    """The operator that makes a tensor, and of what; one that the ONNX specification does not know has its domain before its name.

    `over` are the places of the operands that such an operator declares its results may be written over.
    `starts` says, for a result of Split or Slice, where it begins on each axis of operand 0; `axis` is that of a Concat.
    """

    operator: str
    operands: tuple[Operand | None, ...]
    starts: tuple[int, ...] = ()
    axis: int = 0
    over: tuple[int, ...] = ()


@dataclass(frozen=True)
class Take:
    """A tensor shares bytes with the tensor `source` by the rule `rule`."""

    source: str
    rule: str


@dataclass(frozen=True)
class Tenant:
    """A tensor with an address: `size` bytes at `offset` of the arena, inside the buffer `owner`.

    `steps` are those at which a node writes or reads it, in any order, with the last step of all for what must outlive the
    run, which is `kept`. `element` is its element type by name, and `granule` the bytes that its address must be a multiple of.
    With `bound`, its shape may be smaller in a run. `crowded` are the steps at which more than one node reads it. `takes` are the
    operands of the node that makes it with which it shares bytes.
    """

    name: str
    owner: str
    offset: int
    size: int
    steps: tuple[int, ...]
    element: str
    granule: int = 1
    shape: tuple[int, ...] = ()
    kept: bool = False
    crowded: tuple[int, ...] = ()
    takes: tuple[Take, ...] = ()
    made: Made | None = None
    bound: bool = False


@dataclass(frozen=True)
class Failure:
    """What is wrong with a plan: the buffers or tensors concerned, and the step at which it shows (None: at all steps)."""

    reason: str
    names: tuple[str, ...]
    step: int | None = None

    def __str__(self) -> str:
        return self.reason if self.step is None else f"{self.reason} (step {self.step})"
