"""When the copies of a published plan may run, and when they do, derived from its rows alone.

The bytes of each arena are cut where a row begins or ends. A walk over the schedule keeps for each piece who touched it last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.planning.proof.published.claims import ClaimedRow
from onnxtile.planning.proof.published.placing import Holder, Placing
from onnxtile.planning.proof.published.timeline import RunOrder


class Allowed(NamedTuple):
    """The steps between which a copy may run: see planning.movement.copies.MemoryCopy."""

    target_free: int
    source_ready: int
    source_until: int | None


class Clocked(NamedTuple):
    """The seconds at which the nodes of a schedule start and end."""

    starts: list[float]
    ends: list[float]


class _Touch(NamedTuple):
    pieces: slice
    is_write: bool


@dataclass(frozen=True)
class Transfers:
    """The run of the nodes of `line`, of which `copies` copy between memories, at the addresses of `placing`."""

    line: RunOrder
    placing: Placing
    copies: Collection[ir.Node]

    @cached_property
    def allowed(self) -> dict[ir.Node, Allowed]:
        """When each copy may run. Copies run in their order, so that only kernels are in their way."""
        following = self._writes_after()
        touched, written = self._never(), self._never()
        found = {}
        for number, node in enumerate(self.line.nodes):
            step = self.line.steps[number]
            if node in self.copies:
                free = max((int(touched[t.pieces].max()) for t in self._touches[number] if t.is_write), default=-1)
                ready = max((int(written[t.pieces].max()) for t in self._touches[number] if not t.is_write), default=-1)
                found[node] = Allowed(free + 1, max(ready, self._made(node)) + 1, following[number])
                continue
            for touch in self._touches[number]:
                touched[touch.pieces] = step
                if touch.is_write:
                    written[touch.pieces] = step
        return found

    def clocked(self, seconds: Sequence[float]) -> Clocked:
        """Return when each node starts and ends that takes so many `seconds`: kernels in turn, and copies in turn beside them.

        Each waits for what wrote the bytes that it reads, and for all that touched the bytes that it writes.
        """
        used, made = self._never(float), self._never(float)
        turns = {True: 0.0, False: 0.0}
        found = Clocked([], [])
        for number, node in enumerate(self.line.nodes):
            start = turns[node in self.copies]
            for touch in self._touches[number]:
                last = (used if touch.is_write else made)[touch.pieces].max()
                start = max(start, float(last))
            end = turns[node in self.copies] = start + seconds[number]
            for touch in self._touches[number]:
                used[touch.pieces] = np.maximum(used[touch.pieces], end)
                if touch.is_write:
                    made[touch.pieces] = np.maximum(made[touch.pieces], end)
            found.starts.append(start)
            found.ends.append(end)
        return found

    def _writes_after(self) -> dict[int, int | None]:
        """Return for each copy, by its place, the step before the first kernel after it that writes over its source."""
        end = self.line.end + 1
        upcoming, found = np.full(len(self._never()), end), {}
        for number in reversed(range(len(self.line.nodes))):
            touches = self._touches[number]
            if self.line.nodes[number] in self.copies:
                first = min((int(upcoming[t.pieces].min()) for t in touches if not t.is_write), default=end)
                found[number] = None if first == end else first - 1
                continue
            for touch in touches:
                if touch.is_write:
                    upcoming[touch.pieces] = self.line.steps[number]
        return found

    def _made(self, copy: ir.Node) -> int:
        """Return the step of the kernel that makes the source of `copy`, which may be a constant without a row; -1 for another."""
        source = copy.inputs[0]
        maker = None if source is None else source.producer()
        return -1 if maker is None or maker in self.copies else self.line.step_of.get(maker, -1)

    def _never(self, kind: type = int) -> np.typing.NDArray[np.generic]:
        return np.full(max(len(self._cuts), 1), -1, kind)

    @cached_property
    def _cuts(self) -> list[tuple[str, int]]:
        """The ends of rows, by arena and byte: each begins a piece."""
        rows = [*self.placing.rows.values(), *(holder.row for holder in self._workspaces)]
        return sorted({(row.arena, at) for row in rows for at in (row.offset, row.end)})

    @cached_property
    def _workspaces(self) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.placing.holders if not holder.members and holder.row.size)

    @cached_property
    def _touches(self) -> list[list[_Touch]]:
        """The pieces that each node touches: operands, results, and the workspaces that are held in its step."""
        number_of = {cut: number for number, cut in enumerate(self._cuts)}
        return [list(self._touched_by(node, number_of)) for node in self.line.nodes]

    def _touched_by(self, node: ir.Node, number_of: Mapping[tuple[str, int], int]) -> Iterator[_Touch]:
        def pieces(row: ClaimedRow) -> slice:
            return slice(number_of[row.arena, row.offset], number_of[row.arena, row.end])

        rows = self.placing.rows
        read = node.inputs[:1] if node in self.copies else self.line.reads[node]
        for values, is_write in ((read, False), (node.outputs, True)):
            for value in values:
                if value is not None and value in rows and rows[value].size:
                    yield _Touch(pieces(rows[value]), is_write)
        if node not in self.copies:
            step = self.line.step_of[node]
            for holder in self._workspaces:
                if holder.first <= step <= holder.last:
                    yield _Touch(pieces(holder.row), True)
