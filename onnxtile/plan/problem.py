"""The planning problem as plain data: buffers with sizes and lives, and the offsets that a planner gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from onnxtile.errors import Infeasible, UsageError

DEFAULT_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register in use."""


@dataclass(frozen=True)
class Buffer:
    """Memory of `size` bytes that is in use in the steps [`lower`, `upper`).

    `alignment` in bytes is its own, where the problem's does not apply.
    """

    name: str
    size: int
    lower: int
    upper: int
    alignment: int | None = None

    def __post_init__(self) -> None:
        if self.size < 0:
            raise UsageError(f"the buffer {self.name!r} has a negative size: {self.size}")
        if self.lower >= self.upper:
            raise UsageError(f"the buffer {self.name!r} has an empty life: [{self.lower}, {self.upper})")
        if self.alignment is not None:
            require_alignment(self.alignment)


@dataclass(frozen=True)
class Problem:
    """Buffers to be placed in one arena: offsets are multiples of `alignment`, no byte beyond `capacity` (None: no limit).

    Raises UsageError for two buffers of one name, a negative capacity, or an alignment that is no power of two.
    """

    buffers: tuple[Buffer, ...]
    alignment: int = DEFAULT_ALIGNMENT
    capacity: int | None = None

    def __post_init__(self) -> None:
        require_alignment(self.alignment)
        if self.capacity is not None and self.capacity < 0:
            raise UsageError(f"a capacity cannot be negative: {self.capacity}")
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.name in seen:
                raise UsageError(f"two buffers are named {buffer.name!r}")
            seen.add(buffer.name)

    def alignment_of(self, buffer: Buffer) -> int:
        """Return what the offset of `buffer` must be a multiple of, in bytes."""
        return buffer.alignment or self.alignment

    @cached_property
    def granule(self) -> int:
        """The smallest alignment of all buffers, in bytes: the unit in which bytes of the arena are given away."""
        return min(map(self.alignment_of, self.buffers), default=self.alignment)

    def footprint(self, buffer: Buffer) -> int:
        """Return the bytes that `buffer` takes from the others: its size, rounded up to where the next one can start."""
        return align(buffer.size, self.granule)

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The largest sum of live footprints in bytes, and the first step at which it is reached; (0, 0) without buffers."""
        events = [(b.lower, self.footprint(b)) for b in self.buffers]
        events += [(b.upper, -self.footprint(b)) for b in self.buffers]
        live, peak, at = 0, 0, 0
        for step, changes in groupby(sorted(events), key=lambda event: event[0]):
            live += sum(change for _, change in changes)
            if live > peak:
                peak, at = live, step
        return peak, at

    @property
    def lower_bound(self) -> int:
        """The bytes that no plan can do without: the peak."""
        return self.peak[0]

    def live_at(self, step: int) -> tuple[Buffer, ...]:
        """Return the buffers that are live at `step`, the largest first."""
        live = (b for b in self.buffers if b.lower <= step < b.upper)
        return tuple(sorted(live, key=lambda b: (-b.size, b.name)))


@dataclass(frozen=True)
class Plan:
    """Where each buffer of a problem starts, by name, in bytes from the start of the arena; the arena's size in bytes."""

    offsets: Mapping[str, int]
    size: int

    @classmethod
    def of(cls, problem: Problem, offsets: Sequence[int]) -> Plan:
        """Return the plan that gives the buffers of `problem` these offsets, in the same order."""
        placed = zip(problem.buffers, offsets, strict=True)
        size = max((offset + problem.footprint(b) for b, offset in placed if b.size), default=0)
        return cls({b.name: int(offset) for b, offset in zip(problem.buffers, offsets, strict=True)}, int(size))


class OverCapacity(Infeasible):
    """The arena would be larger than its capacity by `shortfall` bytes, because of the buffers `live` at `step`."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        assert problem.capacity is not None
        hopeless = problem.lower_bound > problem.capacity
        need = problem.lower_bound if hopeless else plan.size
        self.step = problem.peak[1] if hopeless else _step_of_the_top(problem, plan)
        self.shortfall = need - problem.capacity
        self.live = problem.live_at(self.step)
        listed = ", ".join(f"{b.name} ({b.size:,})" for b in self.live)
        needs = "needs at least" if hopeless else "takes"
        super().__init__(
            f"the arena {needs} {need:,} bytes, {self.shortfall:,} more than its capacity of {problem.capacity:,}; "
            f"live at step {self.step}: {listed}",
            hint=None if hopeless else f"no plan of this order takes less than {problem.lower_bound:,} bytes",
        )


def require_capacity(problem: Problem, plan: Plan) -> None:
    """Raise OverCapacity where `plan` takes more bytes than `problem` has."""
    if problem.capacity is not None and plan.size > problem.capacity:
        raise OverCapacity(problem, plan)


def require_alignment(alignment: int) -> None:
    """Raise UsageError unless `alignment` is a power of two."""
    if alignment < 1 or alignment & (alignment - 1):
        raise UsageError(f"an alignment is a power of two, not {alignment}")


def align(size: int, alignment: int) -> int:
    """Return the least multiple of `alignment` (a power of two) that is not below `size`.

    >>> align(65, 64)
    128
    """
    return (size + alignment - 1) & -alignment


def _step_of_the_top(problem: Problem, plan: Plan) -> int:
    return max(problem.buffers, key=lambda b: (plan.offsets[b.name] + problem.footprint(b), -b.lower)).lower
