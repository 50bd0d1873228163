"""The planning problem as plain data: buffers with sizes and live ranges, and the offsets that a planner gives them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from onnxtile.kernels.kernel_graph import Ints, LivePart, distinct, live_sums, rounded
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible, UsageError

_LISTED = 20
"""The most live buffers in a message."""

MOST_ALIGNMENT = 2**21
"""In bytes: a large page of x86 and Arm."""
DEFAULT_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register in use."""


@dataclass(frozen=True)
class Buffer:
    """A buffer of `size` bytes that is live in the steps [`lower`, `upper`).

    `outline` has the parts of its bytes that are live in fewer steps; other bytes are never live. Without an outline all bytes are live in
    all steps. `alignment` in bytes replaces the alignment of the problem. `moved` is the number of bytes read and written in it in a run
    (None: its size); of several arenas, the fastest takes the buffers that move the most. A `pin` is the offset that it must have, in
    bytes, and `memory` the name of the arena that it must be in.
    """

    name: str
    size: int
    lower: int
    upper: int
    alignment: int | None = None
    moved: int | None = None
    outline: tuple[LivePart, ...] = ()
    pin: int | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise UsageError(f"the buffer {self.name!r} has a negative size: {self.size}")
        if self.lower >= self.upper:
            raise UsageError(f"the buffer {self.name!r} has an empty live range: [{self.lower}, {self.upper})")
        if self.alignment is not None:
            require_alignment(self.alignment)
        if self.moved is not None and self.moved < 0:
            raise UsageError(f"the buffer {self.name!r} moves a negative number of bytes: {self.moved}")
        if self.pin is not None and self.pin < 0:
            raise UsageError(f"the buffer {self.name!r} has a negative pin: {self.pin}")
        for part in self.outline:
            if not (0 <= part.start < part.end <= self.size and self.lower <= part.lower < part.upper <= self.upper):
                raise UsageError(
                    f"the buffer {self.name!r} has a part outside of its bytes and live range: {tuple(part)}"
                )

    @property
    def live_parts(self) -> tuple[LivePart, ...]:
        """The parts of its bytes with their live ranges: its outline, or all of it."""
        return self.outline or (LivePart(0, self.size, self.lower, self.upper),)

    def bytes_at(self, step: int) -> int:
        """Return the number of its bytes that are live at `step`."""
        return sum(part.end - part.start for part in self.live_parts if part.lower <= step < part.upper)


class PartTable(NamedTuple):
    """The parts of buffers: those of buffer i are the rows from `first[i]` to `first[i + 1]`, and `owner` has the buffer of each row.

    The bytes from `start` to `end`, counted from the start of the buffer, are live in the steps from `lower` to `upper`.
    """

    first: Ints
    owner: Ints
    start: Ints
    end: Ints
    lower: Ints
    upper: Ints


@dataclass(frozen=True)
class Problem:
    """Buffers to be placed in one arena: offsets are multiples of `alignment`, no byte beyond `capacity` (None: no limit).

    Two buffers share no byte where the live ranges of their parts overlap, nor where `conflicts` has their names as a pair: another order
    of the graph needs both at the same time. The buffers named in `clique` are pairwise in conflict for either reason, so the sum of
    their bytes is a lower bound. A buffer with a pin has that offset.

    Raises UsageError for two buffers of one name, a negative capacity, or an alignment that is not a power of two. It does so, too, for a
    conflict of an unknown buffer, conflicts together with outlines, or a pin that is not aligned or leaves the capacity.
    """

    buffers: tuple[Buffer, ...]
    alignment: int = DEFAULT_ALIGNMENT
    capacity: int | None = None
    conflicts: frozenset[tuple[str, str]] = frozenset()
    clique: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        require_alignment(self.alignment)
        if self.capacity is not None and self.capacity < 0:
            raise UsageError(f"the capacity must not be negative: {self.capacity}")
        seen = {buffer.name for buffer in self.buffers}
        if len(seen) < len(self.buffers):
            counts = Counter(buffer.name for buffer in self.buffers)
            raise UsageError(f"two buffers are named {counts.most_common(1)[0][0]!r}")
        wrong = next((pair for pair in self.conflicts if pair[0] == pair[1]), None)
        if wrong is None and not seen.issuperset(chain.from_iterable(self.conflicts)):
            wrong = next(pair for pair in self.conflicts if not seen.issuperset(pair))
        if wrong is not None:
            raise UsageError(
                f"{wrong[0]!r} and {wrong[1]!r} are not two buffers of the problem, and cannot be in conflict"
            )
        if self.conflicts and self.has_outlines:
            raise UsageError("a problem with conflicts of every order cannot have buffers with outlines")
        for buffer in self.buffers:
            if buffer.pin is not None:
                self._require_address(buffer, buffer.pin)

    def _require_address(self, buffer: Buffer, pin: int) -> None:
        """Raise UsageError for a pin that is not aligned, or leaves the capacity."""
        unit, end = self.alignment_of(buffer), pin + buffer.size
        if pin % unit:
            raise UsageError(
                f"the pin {pin:,} of {buffer.name!r} is not aligned to {unit}", hint=f"pin it to {align(pin, unit):,}"
            )
        if self.capacity is not None and end > self.capacity:
            raise UsageError(
                f"{buffer.name!r} pinned at {pin:,} ends at {end:,}, beyond the capacity of {self.capacity:,} bytes"
            )

    def alignment_of(self, buffer: Buffer) -> int:
        """Return the alignment of `buffer` in bytes."""
        return buffer.alignment or self.alignment

    @cached_property
    def granule(self) -> int:
        """The smallest alignment of all buffers, in bytes: the unit of offsets."""
        return min(self.alignments, default=self.alignment)

    @cached_property
    def alignments(self) -> frozenset[int]:
        """The alignments of all buffers, in bytes."""
        return frozenset(b.alignment or self.alignment for b in self.buffers)

    def footprint(self, buffer: Buffer) -> int:
        """Return the bytes that `buffer` occupies: its size, rounded up to the next possible start of another."""
        return align(buffer.size, self.granule)

    @cached_property
    def footprints(self) -> tuple[int, ...]:
        """The footprint of each buffer."""
        unit, sizes = self.granule, np.array([b.size for b in self.buffers], np.int64)
        return tuple(((sizes + unit - 1) & -unit).tolist())

    @cached_property
    def pinned(self) -> tuple[int, ...]:
        """The numbers of the buffers with bytes that have a pin."""
        return tuple(i for i, b in enumerate(self.buffers) if b.pin is not None and b.size)

    @cached_property
    def pinned_end(self) -> int:
        """The end of the highest buffer with a pin, in bytes; 0 without one."""
        return max(((self.buffers[i].pin or 0) + self.footprints[i] for i in self.pinned), default=0)

    @cached_property
    def pin_overlap(self) -> tuple[Buffer, Buffer] | None:
        """Two buffers of one memory whose pins give them a byte in the same step, or in conflict; None where there are none."""
        pinned = [self.buffers[i] for i in self.pinned]
        conflicts = {frozenset(pair) for pair in self.conflicts}
        near: list[Buffer] = []
        for second in sorted(pinned, key=lambda b: (b.pin or 0, b.name)):
            near = [b for b in near if (b.pin or 0) + b.size > (second.pin or 0)]
            for first in near:
                in_conflict = frozenset((first.name, second.name)) in conflicts
                if first.memory == second.memory and self._collide(first, second, in_conflict):
                    return first, second
            near.append(second)
        return None

    def _collide(self, first: Buffer, second: Buffer, in_conflict: bool) -> bool:
        """Return whether parts of two buffers with pins have a byte and a step in common; bytes alone where they are `in_conflict`."""
        parts = [
            [
                (p.start + (b.pin or 0), p.end + (b.pin or 0), p.lower, p.upper)
                for p in rounded(b.live_parts, self.granule)
            ]
            for b in (first, second)
        ]
        return any(
            a[0] < b[1] and b[0] < a[1] and (in_conflict or (a[2] < b[3] and b[2] < a[3]))
            for a in parts[0]
            for b in parts[1]
        )

    @cached_property
    def has_outlines(self) -> bool:
        """Whether a buffer has parts with live ranges of their own."""
        return any(buffer.outline for buffer in self.buffers)

    @cached_property
    def bounding(self) -> Problem:
        """The problem with all bytes of each buffer live in its whole live range: its plans are plans of this problem."""
        return replace(self, buffers=tuple(replace(b, outline=()) if b.outline else b for b in self.buffers))

    @cached_property
    def parts(self) -> PartTable:
        """The parts of all buffers, in the order of buffers. They are rounded outwards to multiples of the granule."""
        lower, upper = self.live_ranges
        if not self.has_outlines:
            count = len(self.buffers)
            ends = np.array(self.footprints, np.int64)
            return PartTable(np.arange(count + 1), np.arange(count), np.zeros(count, np.int64), ends, lower, upper)
        parts_of = [rounded(buffer.live_parts, self.granule) for buffer in self.buffers]
        table = np.array([part for parts in parts_of for part in parts], np.int64).reshape(-1, 4)
        first = np.cumsum([0, *map(len, parts_of)])
        return PartTable(first, np.repeat(np.arange(len(parts_of)), np.diff(first)), *table.T)

    @cached_property
    def extra_conflicts(self) -> Mapping[int, tuple[int, ...]]:
        """The conflicts beyond overlapping live ranges: for each buffer that has any, the numbers of the others."""
        if not self.conflicts:
            return {}
        at = {buffer.name: i for i, buffer in enumerate(self.buffers)}
        pairs = np.fromiter(map(at.__getitem__, chain.from_iterable(self.conflicts)), np.int64).reshape(-1, 2)
        lower, upper = self.live_ranges
        first, second = pairs.T
        apart = pairs[(upper[first] <= lower[second]) | (upper[second] <= lower[first])]
        # Both directions, sorted, each once: as single numbers, which numpy sorts fastest.
        count = len(self.buffers)
        both = np.unique(np.concatenate((apart[:, 0] * count + apart[:, 1], apart[:, 1] * count + apart[:, 0])))
        owners, starts = np.unique(both // count, return_index=True)
        others = np.split(both % count, starts[1:])
        return {owner: tuple(numbers.tolist()) for owner, numbers in zip(owners.tolist(), others, strict=False)}

    @cached_property
    def live_ranges(self) -> tuple[Ints, Ints]:
        """The first step of each live range, and the step after its last."""
        buffers = self.buffers
        return np.array([b.lower for b in buffers], np.int64), np.array([b.upper for b in buffers], np.int64)

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The largest sum of live footprints in bytes, and the first step at which it is reached; (0, 0) without buffers."""
        parts = self.parts
        sizes = parts.end - parts.start
        times = distinct(parts.lower)
        if not len(times):
            return 0, 0
        live = live_sums(np.searchsorted(times, parts.lower), np.searchsorted(times, parts.upper), sizes, len(times))
        highest = int(live.argmax())
        return (int(live[highest]), int(times[highest])) if live[highest] > 0 else (0, 0)

    @cached_property
    def lower_bound(self) -> int:
        """The bytes that every plan needs: the peak, the bytes of the conflict clique, or the end of the highest pinned buffer."""
        clique = sum(size for b, size in zip(self.buffers, self.footprints, strict=True) if b.name in self.clique)
        return max(self.peak[0], clique, self.pinned_end)

    @property
    def bound(self) -> Bound:
        """The kind of proof of the lower bound."""
        if self.lower_bound == self.peak[0]:
            return "peak"
        return "pin" if self.lower_bound == self.pinned_end else "every order"

    def live_at(self, step: int) -> tuple[Buffer, ...]:
        """Return the buffers with live bytes at `step`, the largest first."""
        live = (b for b in self.buffers if b.lower <= step < b.upper and b.bytes_at(step) >= min(b.size, 1))
        return tuple(sorted(live, key=lambda b: (-b.bytes_at(step), b.name)))


Bound = Literal["peak", "parts", "bodies", "every order", "pin", "search"]
"""The kind of proof of a lower bound: the peak; a lower one where each byte of a buffer lives for its own steps ("parts"), or
where bodies have plans of the fewest bytes that are proved; the bytes that some order needs at the same time; the end of a pinned buffer;
or an exact search that found no smaller arena."""

Ended = Literal[
    "lower bound reached",
    "search ended",
    "effort",
    "time",
    "too many buffers",
    "several arenas",
    "heuristic",
    "unplanned tensors",
]
"""The reason why the search for a smaller arena ended: none exists ("search ended": by an exact search), the budget of steps or of time
was used up, the problem has too many buffers, several arenas were planned each by itself, the planner does not search, or tensors
without a size are missing from the plan."""


@dataclass(frozen=True)
class OptimalityProof:
    """A lower bound on the arena in bytes, the kind of its proof, and the reason why the search ended."""

    lower_bound: int
    bound: Bound
    ended: Ended


@dataclass(frozen=True)
class Placement:
    """An offset in bytes for each buffer of a problem, in its order, and a bound on the smallest arena."""

    offsets: tuple[int, ...]
    proof: OptimalityProof


@dataclass(frozen=True)
class OffsetPlan:
    """The offset of each buffer of a problem, by name, in bytes from the start of the arena; the size of the arena in bytes.

    `proof` bounds the smallest arena, where the planner gives one.
    """

    offsets: Mapping[str, int]
    size: int
    proof: OptimalityProof | None = None

    @classmethod
    def from_offsets(cls, problem: Problem, offsets: Sequence[int], proof: OptimalityProof | None = None) -> OffsetPlan:
        """Return the plan with these offsets of the buffers of `problem`, in the same order."""
        named = {b.name: int(offset) for b, offset in zip(problem.buffers, offsets, strict=True)}
        return cls(named, size_of(problem, offsets), proof)

    @property
    def optimal(self) -> bool:
        """Whether the plan is proved to have the smallest arena."""
        return self.proof is not None and self.size == self.proof.lower_bound


def size_of(problem: Problem, offsets: Sequence[int]) -> int:
    """Return the bytes of an arena in which the buffers of `problem` have these offsets, in the same order."""
    sizes = np.array(problem.footprints, np.int64)
    return int((np.array(offsets, np.int64) + sizes)[sizes > 0].max(initial=0))


class PinOverlap(UsageError):
    """Two buffers that are live together have pins that give them the same bytes."""

    def __init__(self, first: Buffer, second: Buffer) -> None:
        pins = " and ".join(f"{b.name!r} at {b.pin:,} ({b.size:,} bytes)" for b in (first, second))
        super().__init__(f"the pins of two tensors that are live together overlap: {pins}")


class OverCapacity(Infeasible):
    """The `arena` (None: the only one) exceeds its capacity by `shortfall` bytes; the buffers `live` at `step` are the reason."""

    def __init__(self, problem: Problem, plan: OffsetPlan, arena: str | None = None) -> None:
        assert problem.capacity is not None
        hopeless = problem.lower_bound > problem.capacity
        need = problem.lower_bound if hopeless else plan.size
        top = max(problem.buffers, key=lambda b: (plan.offsets[b.name] + problem.footprint(b), -b.lower))
        self.step = problem.peak[1] if hopeless else top.lower
        self.shortfall = need - problem.capacity
        self.arena = arena
        self.live = problem.live_at(self.step)
        listed = ", ".join(f"{b.name} ({b.bytes_at(self.step):,})" for b in self.live[:_LISTED])
        more = f", and {len(self.live) - _LISTED} smaller ones" if len(self.live) > _LISTED else ""
        name = "the arena" if arena is None else f"the arena {arena!r}"
        super().__init__(
            f"{name} {'needs at least' if hopeless else 'takes'} {need:,} bytes, {self.shortfall:,} more than its capacity of "
            f"{problem.capacity:,}; live at step {self.step}: {listed}{more}",
            hint=None if hopeless else f"no plan of this order takes less than {problem.lower_bound:,} bytes",
        )


def require_capacity(problem: Problem, plan: OffsetPlan, arena: str | None = None) -> None:
    """Raise OverCapacity, which names the `arena`, where `plan` takes more bytes than `problem` has."""
    if problem.capacity is not None and plan.size > problem.capacity:
        raise OverCapacity(problem, plan, arena)


def require_alignment(alignment: int) -> None:
    """Raise UsageError unless `alignment` is a power of two, up to that of a large page: every buffer takes at least as many bytes."""
    if alignment < 1 or alignment & (alignment - 1):
        raise UsageError(f"the alignment must be a power of two, not {alignment}")
    if alignment > MOST_ALIGNMENT:
        raise UsageError(f"the alignment must be at most {MOST_ALIGNMENT:,} bytes (2 MiB), not {alignment:,}")


def align(size: int, alignment: int) -> int:
    """Return the least multiple of `alignment` (a power of two) that is not below `size`.

    >>> align(65, 64)
    128
    """
    return (size + alignment - 1) & -alignment
