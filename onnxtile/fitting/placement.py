"""The buffers of a schedule in the order in which it would be written: its arena is known before a node of it is made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from onnxtile.fitting.live_bytes import ALIGNMENT, LiveCount, PieceOp, RegionTrace
from onnxtile.fitting.network import FitKernel, FitTensor
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.strips import FitSchedule, PatchRange
from onnxtile.kernels.liveness import LivePart, union
from onnxtile.planning.offsets.problem import Buffer, Problem


def placing_problem(regions: Regions, schedule: FitSchedule) -> Problem:
    """Return the buffers of a schedule, one step for each operation, as the planner places those of the written model.

    A join of consecutive bytes is one buffer with its operands as parts. Raises PaddingOnly.
    """
    kernels, trace = _joined_traces(regions, schedule)
    ranges = _LiveRanges(trace, kernels, regions.all_tensors, regions.network.given)
    problem = Problem(tuple(ranges.buffers()), ALIGNMENT)
    # Buffers without parts are placed much sooner.
    return problem.bounding if problem.bounding.lower_bound == problem.lower_bound else problem


def _joined_traces(regions: Regions, schedule: FitSchedule) -> tuple[list[FitKernel], RegionTrace]:
    """Return the kernels of all regions, and their operations one after the other; of the results, the outputs of the network live on."""
    kernels, joined = list[FitKernel](), RegionTrace()
    for cost in schedule.regions:
        trace, numbers = regions.trace(cost), dict[int, int]()
        for tensor, patch in trace.whole.items():
            if tensor in joined.whole:
                numbers[patch] = joined.whole[tensor]
        for tensor, pieces in trace.pieces.items():
            numbers.update(zip(pieces, joined.pieces.get(tensor, ()), strict=False))
        for patch, about in enumerate(trace.patches):
            if patch not in numbers:
                numbers[patch] = len(joined.patches)
                joined.patches.append(about)
        joined.whole.update((tensor, numbers[patch]) for tensor, patch in trace.whole.items())
        joined.pieces.update((tensor, [numbers[patch] for patch in pieces]) for tensor, pieces in trace.pieces.items())
        for op in trace.ops:
            reads, makes = (tuple([numbers[patch] for patch in ends]) for ends in (op.reads, op.makes))
            joined.ops.append(PieceOp(None if op.kernel is None else op.kernel + len(kernels), reads, makes))
        kernels += regions.cut(cost).kernels
    made = regions.makers
    joined.whole = {
        tensor: patch
        for tensor, patch in joined.whole.items()
        if tensor not in made or regions.network.tensors[tensor].is_kept
    }
    return kernels, joined


class _LiveRanges(LiveCount):
    """Notes the steps in which the bytes of each patch live, and the places of joined operands in their result."""

    def __init__(
        self, trace: RegionTrace, kernels: Sequence[FitKernel], tensors: Sequence[FitTensor], given: Collection[int]
    ) -> None:
        self.step, self.is_joining = 0, False
        self.born, self.died = dict[int, int](), dict[int, int]()
        self.shared = set[int]()
        """The patches whose bytes other patches have, too."""
        self.operands: dict[int, list[tuple[int, int]]] = {}
        """The patches whose bytes a join takes over, with their places in bytes, by its result."""
        super().__init__(trace, kernels, tensors, given)
        self.run()

    def _place(self, at: int, op: PieceOp) -> int:
        joins = self._is_join(op)
        self.step, self.is_joining = at, joins or self._is_split(op)
        owners = [self.owner.get(patch, -1) for patch in op.reads]
        live = super()._place(at, op)
        self.is_joining = False
        if joins:
            places = accumulate((self._raw_size(patch) for patch in op.reads), initial=0)
            taken = [(owner, place) for owner, place in zip(owners, places, strict=False) if owner in self.died]
            self.operands[op.makes[0]] = taken
        return live

    def _raw_size(self, patch: int) -> int:
        tensor, (start, stop) = self.trace.patches[patch]
        return self.tensors[tensor].bytes_of(stop - start)

    def _allocate(self, patch: int, size: int) -> None:
        super()._allocate(patch, size)
        self.born[patch] = self.step

    def _share(self, patch: int, operand: int) -> None:
        super()._share(patch, operand)
        self.shared.add(self.owner[operand])

    def _free(self, patch: int) -> None:
        owner = self.owner[patch]
        super()._free(patch)
        if not self.users[owner]:
            self.died[owner] = self.step if self.is_joining else self.step + 1

    def buffers(self) -> Iterator[Buffer]:
        """Yield the buffers; operands of a join are parts of its result, and rows of few planes die after their last read.

        Steps in which no buffer begins are left out.
        """
        inner = {patch for operands in self.operands.values() for patch, _ in operands}
        for patch in self.born:
            parts = () if patch in inner else union(self._parts(patch, 0))
            if parts:
                size, lower = max(part.end for part in parts), min(part.lower for part in parts)
                outline = parts if len(parts) > 1 else ()
                yield Buffer(str(patch), size, lower, max(part.upper for part in parts), outline=outline)

    def _parts(self, patch: int, place: int) -> Iterator[LivePart]:
        """Yield the parts of the buffer of a patch that begins at a place in bytes."""
        lower, upper = self._steps[self.born[patch]], self._steps[self.died.get(patch, len(self.trace.ops))]
        size = min(self.bytes[patch], self._raw_size(patch))
        for part in self._by_rows(patch) if size and patch in self._reads else (LivePart(0, size, lower, upper),):
            yield LivePart(part.start + place, part.end + place, part.lower, part.upper)
        for operand, start in self.operands.get(patch, ()):
            yield from self._parts(operand, place + start)

    @cached_property
    def _steps(self) -> list[int]:
        """The step of each operation among those in which a buffer begins."""
        count = len(self.trace.ops) + 1
        begins = {born for patch, born in self.born.items() if self.bytes[patch]}
        return list(accumulate((step - 1 in begins or step == count - 1 for step in range(1, count)), initial=0))

    @cached_property
    def _reads(self) -> dict[int, list[tuple[int, PatchRange | None]]]:
        """The last steps at which each patch of few planes is read, and the rows that are read; None for all rows."""
        patches = self.trace.patches
        abouts = ((patch, self.tensors[patches[patch].tensor]) for patch in self.died)
        reads: dict[int, list[tuple[int, PatchRange | None]]] = {
            patch: []
            for patch, about in abouts
            if about.has_few_planes and (about.is_given or patch not in self.shared)
        }
        for at, op in enumerate(self.trace.ops):
            is_slice = op.kernel is None and len(op.reads) == 1
            for patch in op.reads:
                if patch in reads:
                    reads[patch].append((self._steps[at + 1], patches[op.makes[0]].rows if is_slice else None))
        return reads

    def _by_rows(self, patch: int) -> Iterator[LivePart]:
        """Yield the parts of a patch of few planes: each row lives until the last step that reads it."""
        tensor, (first, last) = self.trace.patches[patch]
        about, lower, reads = self.tensors[tensor], self._steps[self.born[patch]], self._reads[patch]
        row = about.row_bytes // about.planes
        whole = max((end for end, rows in reads if rows is None), default=lower + 1)
        yield LivePart(0, self._raw_size(patch), lower, whole)
        for end, rows in reads:
            if rows is not None and end > whole:
                starts = (plane * (last - first) - first for plane in range(about.planes))
                yield from (LivePart((at + rows[0]) * row, (at + rows[1]) * row, lower, end) for at in starts)
