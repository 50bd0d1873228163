"""Nodes that are prepared to run in the arena and outside of it, and the values of both runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import Alias
from onnxtile.planning.layout.byte_span import ByteSpan
from onnxtile.planning.proof.kernel import Kernel
from onnxtile.planning.proof.memory import TensorMemory, same

ValueTable: TypeAlias = dict[ir.Value, Any]
"""The TensorMemory of each value; a Python value where it has no fixed bytes."""


@dataclass(frozen=True)
class Corruption:
    """A tensor whose bytes differ from the reference run.

    `step` is the step of the node that reads it, or that has just written it; None after the last one.
    """

    name: str
    step: int | None


@dataclass(frozen=True)
class PairedValues:
    """The values of both runs: in the `arena`, and of the `reference` run."""

    arena: ValueTable
    reference: ValueTable

    def agree(self, value: ir.Value, spans: Sequence[ByteSpan] | None = None) -> bool:
        """Return whether `value`, or its bytes `spans`, are the same bits in both runs; one that is not made yet has none."""
        if value not in self.reference:
            return False
        found, expected = self.arena[value], self.reference[value]
        if found is expected:
            return True
        if spans is None or not (isinstance(found, TensorMemory) and isinstance(expected, TensorMemory)):
            return same(found, expected)
        return all(np.array_equal(found.data[start:end], expected.data[start:end]) for start, end in spans)


class Controlled(Protocol):
    """A node whose bodies are run node by node."""

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values of the graph around it that the node and its bodies read."""
        ...

    def run(self, paired: PairedValues) -> Corruption | None:
        """Run once; return the first corruption in a body."""
        ...


@dataclass(frozen=True)
class View:
    """A node that does not run in the arena: each output is an input with another shape, or a part of it.

    In the reference run its kernel runs, which proves that.
    """

    kernel: Kernel
    aliases: tuple[Alias, ...]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it reads."""
        return self.kernel.reads


@dataclass(frozen=True)
class Moves:
    """A node that moves bytes, some of which are in place: in the arena only the others are copied.

    `there` has the ranges of bytes in place, from start to end, by output.
    """

    kernel: Kernel
    there: Mapping[ir.Value, tuple[tuple[int, int], ...]]

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it reads."""
        return self.kernel.reads

    def is_needless(self, sites: Mapping[ir.Value, TensorMemory]) -> bool:
        """Return whether every byte is in place."""
        return all(
            not missing_ranges(self.there.get(v, ()), len(sites[v].data)) for _, v in self.kernel.outputs if v in sites
        )


@dataclass(frozen=True)
class Draws:
    """A node with random results: it runs once, in the reference run, and its results are copied into the arena."""

    kernel: Kernel

    @property
    def reads(self) -> tuple[ir.Value, ...]:
        """The values that it reads."""
        return self.kernel.reads


SpansRead: TypeAlias = Mapping[ir.Value, Sequence[ByteSpan]]
"""The bytes that a node reads, of operands of which it reads only some."""
PreparedNode: TypeAlias = Kernel | View | Moves | Draws | Controlled


def missing_ranges(there: Iterable[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the ranges of `size` bytes that are not in `there`."""
    found, at = [], 0
    for start, end in (*sorted(there), (size, size)):
        if at < start:
            found.append((at, start))
        at = max(at, end)
    return found
