"""The time of a plan with copies, from a given bandwidth and speed of the kernels.

Kernels run one after the other, and so do copies; both run side by side. A kernel or copy starts when it has come to its turn, and all
earlier ones are done that write bytes which it reads, or touch bytes which it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    together = _side_by_side(steps, speeds.bandwidth, speeds.macs_per_second)
    return TransferTime(speeds.bandwidth, copying, speeds.macs_per_second, computing, copying + computing, together)


def _side_by_side(steps: Iterable[TimedStep], bandwidth: int, macs_per_second: int) -> float:
    """Return the seconds until all is done."""
    clocks = {True: 0.0, False: 0.0}
    open_: list[tuple[float, ByteAccess]] = []
    for step in steps:
        is_copy = step.copied is not None
        seconds = step.copied / bandwidth if step.copied is not None else step.macs / macs_per_second
        waits = (end for end, other in open_ if any(_conflict(one, other) for one in step.accesses))
        clocks[is_copy] = max(clocks[is_copy], *waits, 0.0) + seconds
        # Nothing that starts later waits for what was done before both come to their turn.
        done = min(clocks.values())
        open_ = [known for known in open_ if known[0] > done]
        open_ += ((clocks[is_copy], access) for access in step.accesses)
    return max(clocks.values())


def _conflict(one: ByteAccess, other: ByteAccess) -> bool:
    shares = one.memory == other.memory and one.start < other.end and other.start < one.end
    return shares and (one.is_write or other.is_write)
