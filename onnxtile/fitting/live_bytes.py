"""The bytes that live at once while a region runs, as the planner counts them: aligned, with views and results written in place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from onnxtile.fitting.network import COLUMNS, ROWS, FitKernel, FitTensor
from onnxtile.fitting.region_tracer import Patch, PieceOp, RegionTrace

ALIGNMENT = 64
"""Bytes: the default of plan."""


def aligned(size: int) -> int:
    """Return the bytes that a buffer of `size` bytes takes."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class LiveBytes:
    """The largest sum of live bytes, the tensors alive there by number, and the bytes that Slice and Concat copy.

    `first` are the bytes that live before the first operation, `loads` those of each operation, `sizes` those of each patch.
    """

    peak: int
    tensors: frozenset[int]
    copied: int
    first: int = 0
    loads: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


def live_bytes(
    trace: RegionTrace,
    kernels: Sequence[FitKernel],
    tensors: Sequence[FitTensor],
    dying: Collection[int],
    given: Sequence[int] = (),
    left: Sequence[int] = (),
    above: int = -1,
) -> LiveBytes:
    """Return the live bytes of the operations of `trace`; the tensors alive at the peak only where it is `above` so many bytes.

    Whole tensors of `dying` live until their last read here; other tensors from outside of the region are not counted. Results live on.
    So do patches that are `left`; those that are `given` live from the start.
    """
    return _Count(trace, kernels, tensors, dying, given, left).run(above)


class _Count:
    def __init__(
        self,
        trace: RegionTrace,
        kernels: Sequence[FitKernel],
        tensors: Sequence[FitTensor],
        dying: Collection[int],
        given: Sequence[int],
        left: Sequence[int],
    ) -> None:
        self.trace, self.kernels, self.tensors = trace, kernels, tensors
        self.sizes = [self._size(patch) for patch in trace.patches]
        made = {one for op in trace.ops for one in op.makes}
        self.last = {one: at for at, op in enumerate(trace.ops) for one in (*op.makes, *op.reads)}
        self.later: dict[int, list[int]] = {}
        if any(tensors[patch.tensor].is_inside for patch in trace.patches):
            self._extend()
        end = len(trace.ops)
        for tensor, patch in trace.whole.items():
            if patch in made:
                self.last[patch] = end
            elif tensor not in dying:
                self.sizes[patch] = 0
                self.last[patch] = end
        self.last.update((patch, end) for patch in left)
        self.owner: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.bytes: dict[int, int] = {}
        self.live = 0
        for patch in trace.whole.values():
            if patch not in made and patch in self.last:
                self._allocate(patch, self.sizes[patch])
        for patch in given:
            self._allocate(patch, self.sizes[patch])
            self.last.setdefault(patch, 0)

    def _extend(self) -> None:
        """Let operands of several nodes that run as one kernel live until the last of these nodes."""
        for op in reversed(self.trace.ops):
            if op.kernel is not None and all(
                self.tensors[self.trace.patches[one].tensor].is_inside for one in op.makes
            ):
                until = max(self.last[one] for one in op.makes)
                for one in op.reads:
                    if self.last[one] < until:
                        self.last[one] = until
                        self.later.setdefault(until, []).append(one)

    def _size(self, patch: Patch) -> int:
        tensor, rows, columns = patch
        about = self.tensors[tensor]
        size = about.grain * (rows[1] - rows[0]) * (columns[1] - columns[0])
        if about.is_outside and patch == (patch.tensor, (0, about.extent(ROWS)), (0, about.extent(COLUMNS))):
            return 0
        return aligned(size)

    def run(self, above: int) -> LiveBytes:
        """Count the live bytes while each operation runs."""
        first = peak = self.live
        place, copied = -1, 0
        loads: list[int] = []
        last, owner, later = self.last, self.owner, self.later
        for at, op in enumerate(self.trace.ops):
            held = self._place(at, op)
            loads.append(held)
            if op.kernel is None:
                copied += sum(self.sizes[one] for one in op.makes)
            if held > peak:
                peak, place = held, at
            ending = (*op.reads, *op.makes, *later[at]) if at in later else op.reads + op.makes
            for one in ending:
                if last[one] == at and one in owner:
                    self._free(one)
        return LiveBytes(
            peak, self._alive(place) if peak > above else frozenset(), copied, first, tuple(loads), tuple(self.sizes)
        )

    def _place(self, at: int, op: PieceOp) -> int:
        """Place the results of an operation; return the bytes that live while it runs."""
        shared = self._shared(at, op)
        if shared is not None:
            self._share(op.makes[0], shared)
            for one in op.makes[1:]:
                if self._is_split(op):
                    self._share(one, shared)
                else:
                    self._allocate(one, self.sizes[one])
            return self.live
        if self._is_join(op) or self._is_split(op):
            # The operands become the results, byte for byte.
            for one in dict.fromkeys((*op.reads, *self.later.get(at, ()))):
                if self.last[one] == at and one in self.owner:
                    self._free(one)
        for one in op.makes:
            self._allocate(one, self.sizes[one])
        return self.live

    def _shared(self, at: int, op: PieceOp) -> int | None:
        """Return the operand whose bytes the result takes; None where it has its own."""
        if op.kernel is None:
            return op.reads[0] if len(op.reads) == 1 and self._is_contiguous(op) else None
        kernel = self.kernels[op.kernel]
        if kernel.is_view:
            return op.reads[0]
        if kernel.is_split:
            # Parts of an operand that lives on lie in it.
            return op.reads[0] if self.last[op.reads[0]] > at or not self.sizes[op.reads[0]] else None
        size = self.sizes[op.makes[0]]
        for place in sorted(kernel.overwrites):
            one = op.reads[place]
            if self.last[one] == at and self.sizes[one] == size and self.users.get(self.owner.get(one, -1)) == 1:
                return one
        return self._over_operand_of_island(at, kernel, size) if kernel.island_overwrites else None

    def _over_operand_of_island(self, at: int, kernel: FitKernel, size: int) -> int | None:
        """Return the operand of a quantised island that the result of its last node is written over; None for none."""
        for one in self.later.get(at, ()):
            is_allowed = self.trace.patches[one].tensor in kernel.island_overwrites and self.last[one] == at
            if is_allowed and self.sizes[one] == size and self.users.get(self.owner.get(one, -1)) == 1:
                return one
        return None

    def _is_contiguous(self, op: PieceOp) -> bool:
        source, patch = self.trace.patches[op.reads[0]], self.trace.patches[op.makes[0]]
        about = self.tensors[patch.tensor]
        return source.columns == patch.columns and about.is_contiguous(ROWS)

    def _is_join(self, op: PieceOp) -> bool:
        if op.kernel is not None:
            return self.kernels[op.kernel].is_join or self.kernels[op.kernel].is_island_join
        return len(op.reads) > 1 and self._is_contiguous(op)

    def _is_split(self, op: PieceOp) -> bool:
        return op.kernel is not None and self.kernels[op.kernel].is_split

    def _allocate(self, patch: int, size: int) -> None:
        self.owner[patch] = patch
        self.users[patch] = 1
        self.bytes[patch] = size
        self.live += size

    def _share(self, patch: int, operand: int) -> None:
        owner = self.owner[operand]
        self.owner[patch] = owner
        self.users[owner] += 1

    def _free(self, patch: int) -> None:
        owner = self.owner.pop(patch)
        self.users[owner] -= 1
        if not self.users[owner]:
            self.live -= self.bytes[owner]

    def _alive(self, place: int) -> frozenset[int]:
        """Return the tensors that live while the operation at `place` runs."""
        found: set[int] = set()
        made: set[int] = set()
        for at, op in enumerate(self.trace.ops[: place + 1]):
            made.update(op.makes)
            if at == place:
                found.update(self.trace.patches[one].tensor for one in (*op.reads, *op.makes))
        found.update(self.trace.patches[one].tensor for one in made if self.last[one] >= place)
        return frozenset(found)


__all__ = ["ALIGNMENT", "COLUMNS", "LiveBytes", "live_bytes"]
