"""The copies between memories in a published plan, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOVEMENTS = ("none", "activations", "weights")
"""The tensors that are copied between two memories: none, activations, or weights too."""
OUTSIDE, CONSTANTS = "outside", "constants"
"""Where a copy may read or write beside the arenas: memory of the caller, and the block of constants."""


@dataclass(frozen=True)
class MemoryCopy:
    """The node `node` copies `bytes` bytes of `tensor` in its `step`, before the kernel of the step `before` reads them (None: no kernel).

    It reads `source`, which is at `source_offset` of the memory `source_memory`, and makes `result`, at `offset` of `memory`. A memory is
    the name of an arena, "constants", or "outside", where offsets are None.

    Copies are made in the order of the schedule, one at a time, beside the kernels. This one may write its target from the step
    `target_free` on: only kernels of earlier steps use what was there. Kernels of steps before `source_ready` make its source. The kernel
    of the step `before` waits for it. The one after the step `source_until` does, too (None: none), because it writes over its source.
    """

    node: str
    tensor: str
    source: str
    source_memory: str
    source_offset: int | None
    result: str
    memory: str
    offset: int | None
    bytes: int
    step: int
    before: int | None
    target_free: int = 0
    source_ready: int = 0
    source_until: int | None = None


@dataclass(frozen=True)
class TransferTime:
    """Times in seconds that follow from the given bandwidth of the slow memory, and from the given MACs per second.

    `copying` is the time of all copies one after the other. `computing` is that of the MACs, `without_overlap` the sum, and `with_overlap`
    the time until all is done where copies run beside kernels, one at a time, as early as the bytes that they read and write allow. Then
    the nodes of the schedule start and end at `starts` and `ends`. The last five are None where no speed of the kernels is given.
    """

    bandwidth: int
    copying: float
    macs_per_second: int | None = None
    computing: float | None = None
    without_overlap: float | None = None
    with_overlap: float | None = None
    starts: tuple[float, ...] | None = None
    ends: tuple[float, ...] | None = None


@dataclass(frozen=True)
class PlannedMovement:
    """The copies of a plan between the memory `fast` and the memory `slow`.

    They move `bytes` bytes, of which `forced` are the first copies of inputs and weights, and the only ones of outputs. No choice of whole
    tensors moves fewer than `lower_bound` bytes in this order of the kernels, each tensor with bytes of its own but for the
    views, overwritten operands and parts of Concats of this plan. `bound` says whether an exact "search" or a "relaxation" (parts of
    tensors may stay) proves this. With the same order, the same shared bytes, and any bytes of a tensor that stay, at least `parts_bound`
    bytes are copied.
    Every order copies at least `any_order_bound` bytes: those of inputs and weights that kernels read, and of outputs.
    """

    fast: str
    slow: str
    weights: bool
    bytes: int
    forced: int
    lower_bound: int
    bound: str
    parts_bound: int
    any_order_bound: int
    copies: tuple[MemoryCopy, ...]
    time: TransferTime | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the movement as the schema describes it."""
        rows: list[Mapping[str, Any]] = [dict(vars(copy)) for copy in self.copies]
        return {**vars(self), "copies": rows, "time": None if self.time is None else dict(vars(self.time))}
