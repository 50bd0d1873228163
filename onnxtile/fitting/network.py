"""A model as fit sees it: kernels in the order in which they run, and the tensors between them, without ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from math import prod
from typing import Any

from onnxtile.kernels.aliases import MOST_RUNS
from onnxtile.operators.reads import AxisLink, AxisLinks
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class FitTensor:
    """A tensor made at run time. `axis` is that of its rows, None where it has none.

    `is_outside` says that its bytes are not in the arena, `is_kept` that it lives to the end (a graph output).
    """

    name: str
    dims: tuple[int, ...]
    item: int
    axis: int | None
    is_outside: bool = False
    is_kept: bool = False
    is_inside: bool = False
    """Whether it is made and read inside of one kernel that several nodes run as, so that it takes no bytes."""
    is_given: bool = False
    """Whether it is a graph input in the arena: there from the start, and free after its last read."""
    is_quantised: bool = False
    """Whether it is floats that a QuantizeLinear reads. Its Slices run in the island of this node, which reads all of it to the plan."""
    dtype: Any = field(default=None, compare=False, repr=False)
    """The element type, for the writer."""
    folds: int = 0
    """The elements of the axis that it is reduced from, part by part, which count as its rows; 0 for any other tensor.

    Each part makes all its elements, and `joined_by` is the operator that puts those of two parts together.
    """
    joined_by: str = ""
    is_streamed: bool = False
    """Whether it is a graph input that comes row by row: each row is read once, in order, and lives in what reads it."""

    @cached_property
    def rows(self) -> int:
        """The number of rows; 1 without such an axis."""
        if self.folds:
            return self.folds
        return 1 if self.axis is None else self.dims[self.axis]

    @cached_property
    def row_bytes(self) -> int:
        """The bytes of one row: of all elements of the other axes."""
        return self.item * prod(length for axis, length in enumerate(self.dims) if axis != self.axis)

    @cached_property
    def size(self) -> int:
        """The bytes of the whole tensor in the arena."""
        return 0 if self.is_outside else self.bytes_of(self.rows)

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of a number of rows."""
        return self.row_bytes * (min(rows, 1) if self.folds else rows)

    @cached_property
    def has_contiguous_rows(self) -> bool:
        """Whether ranges of rows of the tensor have consecutive bytes."""
        return self.axis is None or all(length == 1 for length in self.dims[: self.axis])

    @property
    def planes(self) -> int:
        """The number of runs of bytes that a range of rows is."""
        return prod(self.dims[: self.axis]) if self.axis is not None else 1

    @property
    def has_few_planes(self) -> bool:
        """Whether the plan frees rows that no later Slice reads, while others are still read."""
        return not self.is_quantised and self.axis is not None and self.planes <= MOST_RUNS

    @property
    def dies_by_rows(self) -> bool:
        """Whether the search counts that the plan frees rows: those of graph inputs in the arena."""
        return self.is_given and self.has_few_planes


@dataclass(frozen=True)
class FitKernel:
    """What runs as one: its operands that are made at run time, its results, and how their rows depend on each other.

    `links` has one link for each operand in `reads`; None where the kernel is not cut into rows. `macs` counts the whole kernel.
    `overwrites` are the places in `reads` that the first result may be written over; `is_view` says that the result has the bytes of its
    first operand, `is_join` that the operands are consecutive bytes of the result, `is_split` that the results are consecutive bytes of
    the first operand. `source` is for the writer.
    """

    name: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    links: AxisLinks | None
    macs: int = 0
    overwrites: frozenset[int] = frozenset()
    is_view: bool = False
    is_join: bool = False
    is_split: bool = False
    source: Any = field(default=None, compare=False, repr=False)
    reason: str = ""
    """Why it is not cut into rows; empty where it is."""
    is_random: bool = False
    """Whether it draws random numbers."""
    parts: tuple[FitKernel, ...] = ()
    """The kernels of the single nodes of a quantised island, which it runs as one; the tensors between them take no bytes."""

    @property
    def members(self) -> tuple[FitKernel, ...]:
        """The kernels of single nodes: its parts, or itself."""
        return self.parts or (self,)

    @cached_property
    def factor(self) -> int:
        """The number of rows that are computed together at least."""
        return max((link.factor for link in self.links or () if link is not None), default=1)

    def axis_link(self, index: int) -> AxisLink | None:
        """Return the link of one operand; None for one that is read whole."""
        return None if self.links is None else self.links[index]


@dataclass(frozen=True)
class Network:
    """Kernels in order and tensors by number."""

    tensors: Sequence[FitTensor]
    kernels: Sequence[FitKernel]

    def placed(self, io: str) -> Network:
        """Return the same with graph inputs and outputs in the arena or outside, as `io` of a plan says."""
        results = {result for kernel in self.kernels for part in kernel.members for result in part.makes}

        def at(tensor: int, about: FitTensor) -> FitTensor:
            is_input = tensor not in results
            is_outside = io != "inside" if is_input else about.is_kept and io == "outside"
            is_outside |= about.is_streamed
            return replace(about, is_outside=is_outside, is_given=is_input and not is_outside)

        return replace(self, tensors=[at(tensor, about) for tensor, about in enumerate(self.tensors)])

    @cached_property
    def given(self) -> list[int]:
        """The graph inputs in the arena."""
        return [tensor for tensor, about in enumerate(self.tensors) if about.is_given]

    @cached_property
    def last_reads(self) -> list[int]:
        """The place of the last kernel that reads each tensor; -1 for none, the number of kernels for graph outputs."""
        lasts = [-1] * len(self.tensors)
        for index, kernel in enumerate(self.kernels):
            for tensor in kernel.reads:
                lasts[tensor] = index
        return [len(self.kernels) if about.is_kept else last for about, last in zip(self.tensors, lasts, strict=True)]

    @cached_property
    def macs(self) -> int:
        """The multiply-accumulates of all kernels."""
        return sum(kernel.macs for kernel in self.kernels)
