"""The buffers of a schedule in the order in which it would be written: its arena is known before a node of it is made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from onnxtile.fitting.live_bytes import ALIGNMENT, LiveCount, PieceOp, RegionTrace
from onnxtile.fitting.network import FitKernel, FitTensor
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.strips import FitSchedule
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

    def _free(self, patch: int) -> None:
        owner = self.owner[patch]
        super()._free(patch)
        if not self.users[owner]:
            self.died[owner] = self.step if self.is_joining else self.step + 1

    def buffers(self) -> Iterator[Buffer]:
        """Yield the buffers; operands of a join are parts of its result, and rows of inputs die after their last read.

        Steps in which no buffer begins, such as those inside of quantised islands, are left out.
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
        about = self.tensors[self.trace.patches[patch].tensor]
        parts = self._rows_of_input(patch, about) if about.dies_by_rows and patch in self._inputs else None
        if parts is None:
            parts = [LivePart(0, min(self.bytes[patch], self._raw_size(patch)), lower, upper)]
        for part in parts:
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
    def _inputs(self) -> dict[int, list[tuple[int, int]]]:
        """The steps that read rows of each graph input in the arena, and the first of these rows."""
        reads: dict[int, list[tuple[int, int]]] = {patch: [] for patch in self.trace.whole.values()}
        for at, op in enumerate(self.trace.ops):
            for patch in op.reads:
                if patch in reads:
                    first = self.trace.patches[op.makes[0]].rows[0] if op.kernel is None else 0
                    reads[patch].append((at, first))
        return reads

    def _rows_of_input(self, patch: int, about: FitTensor) -> list[LivePart]:
        """Return the parts of an input: each row lives until the last step that reads it or a row before it."""
        plane, row = about.row_bytes * about.rows // about.planes, about.row_bytes // about.planes
        end, parts = about.rows, list[LivePart]()
        for at, first in reversed(self._inputs[patch]):
            if first < end:
                parts += [
                    LivePart(start + first * row, start + end * row, 0, self._steps[at + 1])
                    for start in range(0, plane * about.planes, plane)
                ]
                end = first
        return parts
