"""The time of a plan with copies, from a given bandwidth and speed of the kernels, and the steps between which copies may run.

Kernels run one after the other, and so do copies; both run side by side. A kernel or copy starts when it has come to its turn, and all
earlier ones are done that write bytes which it reads, or touch bytes which it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxtile.planning.movement.copies import TransferTime


@dataclass(frozen=True)
class Speeds:
    """Bytes per second of the slow memory, and MACs per second of the kernels (None: not given)."""

    bandwidth: int
    macs_per_second: int | None = None


class ByteAccess(NamedTuple):
    """The bytes from `start` to `end` of `memory` are read, or written."""

    memory: str
    start: int
    end: int
    is_write: bool


@dataclass(frozen=True)
class TimedStep:
    """A step: the bytes that it copies (None for a kernel), its MACs, and the bytes in arenas that it touches."""

    copied: int | None
    macs: int
    accesses: tuple[ByteAccess, ...]


def transfer_time(steps: Sequence[TimedStep], speeds: Speeds, *, knows_macs: bool = True) -> TransferTime:
    """Return the times of `steps` in their order. Without `knows_macs`, the MACs of a kernel are not known, nor times that need them."""
    copying = sum(step.copied or 0 for step in steps) / speeds.bandwidth
    if speeds.macs_per_second is None or not knows_macs:
        return TransferTime(speeds.bandwidth, copying, speeds.macs_per_second)
    computing = sum(step.macs for step in steps) / speeds.macs_per_second
    starts, ends = _side_by_side(steps, speeds.bandwidth, speeds.macs_per_second)
    given = (speeds.bandwidth, copying, speeds.macs_per_second)
    return TransferTime(*given, computing, copying + computing, max(ends, default=0.0), starts, ends)


def _side_by_side(
    steps: Iterable[TimedStep], bandwidth: int, macs_per_second: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds at which each step starts, and those at which it ends."""
    clocks = {True: 0.0, False: 0.0}
    open_: list[tuple[float, ByteAccess]] = []
    starts, ends = [], []
    for step in steps:
        is_copy = step.copied is not None
        seconds = step.copied / bandwidth if step.copied is not None else step.macs / macs_per_second
        waits = (end for end, other in open_ if any(_conflict(one, other) for one in step.accesses))
        starts.append(max(clocks[is_copy], *waits, 0.0))
        clocks[is_copy] = starts[-1] + seconds
        ends.append(clocks[is_copy])
        # Nothing that starts later waits for what was done before both come to their turn.
        done = min(clocks.values())
        open_ = [known for known in open_ if known[0] > done]
        open_ += ((clocks[is_copy], access) for access in step.accesses)
    return tuple(starts), tuple(ends)


class CopyWindow(NamedTuple):
    """The steps between which a copy may run: see MemoryCopy."""

    target_free: int
    source_ready: int
    source_until: int | None


def copy_windows(steps: Sequence[TimedStep]) -> dict[int, CopyWindow]:
    """Return the window of each copy of `steps`, by its step. Copies are made in their order, one at a time."""
    numbers = {memory: n for n, memory in enumerate(dict.fromkeys(a.memory for step in steps for a in step.accesses))}
    rows = [
        (number, numbers[one.memory], one.start, one.end, one.is_write)
        for number, step in enumerate(steps)
        if step.copied is None
        for one in step.accesses
    ]
    step, memory, start, end, is_write = np.array(rows, np.int64).reshape(-1, 5).T
    found = {}
    for number, copy in enumerate(steps):
        if copy.copied is None:
            continue
        touched, written, following = -1, -1, None
        for one in copy.accesses:
            shares = (memory == numbers[one.memory]) & (start < one.end) & (one.start < end)
            if one.is_write:
                touched = max(touched, int(step[shares & (step < number)].max(initial=-1)))
                continue
            writes = step[shares & (is_write == 1)]
            written = max(written, int(writes[writes < number].max(initial=-1)))
            following = min((int(later) for later in writes[writes > number][:1]), default=following)
        found[number] = CopyWindow(touched + 1, written + 1, None if following is None else following - 1)
    return found


def _conflict(one: ByteAccess, other: ByteAccess) -> bool:
    shares = one.memory == other.memory and one.start < other.end and other.start < one.end
    return shares and (one.is_write or other.is_write)
