"""Live ranges: the steps in which bytes of a tensor must be kept, and the live bytes of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from onnxtile.kernels.kernel_graph import ByteSpan, KernelGraph, Schedule

Ints = npt.NDArray[np.int64]

LiveRange = tuple[int, int]
"""Half-open, in steps."""


def merged(first: LiveRange, second: LiveRange) -> LiveRange:
    """Return the live range of bytes that two tensors share."""
    return min(first[0], second[0]), max(first[1], second[1])


# Bytes with live ranges of their own.


class LivePart(NamedTuple):
    """The bytes [start, end) of a buffer, counted from its start, are live in the steps [lower, upper)."""

    start: int
    end: int
    lower: int
    upper: int


def union(parts: Iterable[LivePart]) -> tuple[LivePart, ...]:
    """Return disjoint parts of the same bytes and steps, ordered by bytes, then by steps: the same for every way to cut them.

    Neighbouring bytes with equal live ranges are one part. Parts without bytes or steps are left out.
    """
    given = sorted(part for part in parts if part.start < part.end and part.lower < part.upper)
    cuts = sorted({byte for part in given for byte in (part.start, part.end)})
    disjoint: list[LivePart] = []
    # The live ranges of the bytes before the present ones, and the place of their first part in `found`.
    before: tuple[tuple[int, int], ...] = ()
    begin, taken = 0, 0
    active: list[LivePart] = []
    for start, end in pairwise(cuts):
        while taken < len(given) and given[taken].start <= start:
            active.append(given[taken])
            taken += 1
        active = [part for part in active if part.end > start]
        live = joined_ranges((part.lower, part.upper) for part in active)
        if live == before and disjoint and disjoint[-1].end == start:
            disjoint[begin:] = [part._replace(end=end) for part in disjoint[begin:]]
            continue
        before, begin = live, len(disjoint)
        disjoint += (LivePart(start, end, lower, upper) for lower, upper in live)
    return tuple(disjoint)


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the steps of `ranges` as ordered ranges with steps between them."""
    joined: list[tuple[int, int]] = []
    for lower, upper in sorted(ranges):
        if joined and lower <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], upper))
        else:
            joined.append((lower, upper))
    return tuple(joined)


def rounded(parts: Iterable[LivePart], unit: int) -> tuple[LivePart, ...]:
    """Return `parts` with their bytes rounded outwards to multiples of `unit`."""
    return union(part._replace(start=part.start // unit * unit, end=-(-part.end // unit) * unit) for part in parts)


def by_steps(parts: Iterable[LivePart]) -> Iterator[LivePart]:
    """Yield the same bytes and steps, cut by steps: as many bytes in a row as are live together, for as long as they are.

    >>> [tuple(part) for part in by_steps([LivePart(0, 4, 1, 3), LivePart(4, 8, 0, 3)])]
    [(4, 8, 0, 1), (0, 8, 1, 3)]
    """
    parts = sorted(parts)
    steps = sorted({step for part in parts for step in (part.lower, part.upper)})
    open_: dict[tuple[int, int], int] = {}
    for step in steps:
        runs: list[tuple[int, int]] = []
        for part in parts:
            if part.lower <= step < part.upper:
                is_next = bool(runs) and runs[-1][1] == part.start
                runs.append((runs.pop()[0] if is_next else part.start, part.end))
        for run in [run for run in open_ if run not in runs]:
            yield LivePart(*run, open_.pop(run), step)
        open_.update((run, step) for run in runs if run not in open_)


class LiveChange(NamedTuple):
    """A change of the live bytes in the steps [lower, upper)."""

    bytes: int
    lower: int
    upper: int


def live_sums(lower: Ints, upper: Ints, sizes: Ints, end: int) -> Ints:
    """Return the sum of `sizes` that are live in each step before `end`: each in the steps [lower, upper). They may have further axes."""
    change = np.zeros((end + 1, *sizes.shape[1:]), np.int64)
    np.add.at(change, lower, sizes)
    np.subtract.at(change, upper, sizes)
    return np.cumsum(change, axis=0)[:-1]


class LiveSums:
    """The live bytes of each step before `end`, of all changes added so far. A change takes two additions, however long it lasts."""

    def __init__(self, end: int) -> None:
        self._change: Ints = np.zeros(end + 2, np.int64)
        self._known: Ints | None = None

    def add(self, changes: Iterable[LiveChange], sign: int = 1) -> None:
        """Add `changes`, or remove them with a `sign` of -1."""
        for size, lower, upper in changes:
            self._change[lower] += sign * size
            self._change[upper] -= sign * size
        self._known = None

    @property
    def in_steps(self) -> Ints:
        """The live bytes of each step."""
        if self._known is None:
            self._known = np.cumsum(self._change)
        return self._known

    def with_known(self, known: Ints) -> None:
        """Say that the live bytes are `known`, since what was added to these has been removed."""
        self._known = known


# The live ranges of the tensors of a graph.


def live_ranges(graph: KernelGraph, schedule: Schedule) -> dict[int, LiveRange]:
    """Return the live range of each input in the arena, then of each tensor that a kernel makes, in the order of kernels.

    It starts with the step that makes the tensor, and ends after the last step that reads it, or after its own if none does. Inputs are
    live from the first step on, kept tensors to the last. Tensors that share bytes with nothing are live in all steps.
    """
    lives: dict[int, LiveRange] = dict.fromkeys(graph.given, (0, 1))
    for number, step in schedule.steps.items():
        kernel = graph.kernels[number]
        for tensor, _ in kernel.reads:
            if tensor in lives:
                lives[tensor] = (lives[tensor][0], step + 1)
        lives.update(dict.fromkeys(kernel.makes, (step, step + 1)))
    for tensor in graph.kept & lives.keys():
        first = 0 if tensor in graph.apart else lives[tensor][0]
        lives[tensor] = (first, max(schedule.end, 1))
    return lives


def with_states(ranges: Mapping[int, LiveRange], graph: KernelGraph, schedule: Schedule) -> dict[int, LiveRange]:
    """Return `ranges` in which the inputs of states keep their bytes in all steps: the next run reads these, too."""
    whole = (0, max(schedule.end, 1))
    return {**ranges, **{state.input: whole for state in graph.states if state.input in ranges}}


def live_parts(
    graph: KernelGraph, schedule: Schedule, ranges: Mapping[int, LiveRange]
) -> dict[int, tuple[LivePart, ...]]:
    """Return the live ranges of the bytes of each tensor that dies part by part: the last to read it read only some of its bytes.

    Bytes that no kernel reads are live in the step that makes them.
    """
    reads: dict[int, list[tuple[int, tuple[ByteSpan, ...] | None]]] = {read.tensor: [] for read in graph.partial_reads}
    for number, step in schedule.steps.items() if reads else ():
        for tensor, spans in graph.kernels[number].reads:
            if tensor in reads:
                reads[tensor].append((step + 1, spans))
    parts_of = {}
    for tensor, ends in reads.items():
        size = graph.tensors[tensor].bytes
        if tensor not in ranges or tensor in graph.kept or not size:
            continue
        lower = ranges[tensor][0]
        whole = max((end for end, spans in ends if spans is None), default=lower + 1)
        parts = [LivePart(0, size, lower, whole)]
        parts += (LivePart(*span, lower, end) for end, spans in ends for span in spans or () if end > whole)
        if len(joined := union(parts)) > 1:
            parts_of[tensor] = joined
    return parts_of


# Precedence: whether all uses of one tensor come before another tensor is made.


class Precedence(Protocol):
    """The questions about two tensors that may share bytes."""

    def before(self, a: int, b: int) -> bool:
        """Return whether every use of `a` comes before `b` is made."""
        ...

    def before_in(self, span: ByteSpan, a: int, b: int) -> bool:
        """Return whether every use of the bytes `span` of `a` comes before `b` is made."""
        ...

    def until(self, a: int, b: int) -> bool:
        """Return whether the kernel that makes `b` is the last to use `a`, and the only one in its step."""
        ...

    def made_before(self, a: int, b: int) -> bool:
        """Return whether `a` is made before `b` is."""
        ...


class InSteps:
    """Precedence in one schedule with known live ranges; `parts` has those of tensors that die part by part."""

    def __init__(
        self,
        graph: KernelGraph,
        schedule: Schedule,
        ranges: Mapping[int, LiveRange],
        parts: Mapping[int, Sequence[LivePart]] | None = None,
    ) -> None:
        self._ranges = ranges
        self._parts = parts or {}
        self._readers: Counter[tuple[int, int]] = Counter()
        if schedule.numbers:
            steps = schedule.steps.items()
            self._readers.update((read.tensor, step) for number, step in steps for read in graph.kernels[number].reads)

    def before(self, a: int, b: int) -> bool:
        """Return whether the live range of `a` ends before the one of `b` begins."""
        return self._ranges[a][1] <= self._ranges[b][0]

    def before_in(self, span: ByteSpan, a: int, b: int) -> bool:
        """Return whether the live ranges of the bytes `span` of `a` end before the one of `b` begins."""
        if a not in self._parts:
            return self.before(a, b)
        start = self._ranges[b][0]
        return all(p.upper <= start for p in self._parts[a] if p.start < span.end and span.start < p.end)

    def until(self, a: int, b: int) -> bool:
        """Return whether `a` is read last in the step that makes `b`, and by no other kernel of that step."""
        step = self._ranges[b][0]
        return self._ranges[a][1] == step + 1 and self._readers[a, step] <= 1

    def made_before(self, a: int, b: int) -> bool:
        """Return whether the live range of `a` begins before the one of `b`."""
        return self._ranges[a][0] < self._ranges[b][0]
