"""The memory of the tensors and workspaces of one graph in a run, at the addresses in the rows of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxtile.errors import CheckFailed
from onnxtile.model.shapes import Shapes
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.proof.memory import ArenaMemory, ByteArray, TensorMemory
from onnxtile.planning.result import PlannedBody, PlannedBuffer

_CANARY = 0xC3
"""The byte that fills a workspace while its node runs."""
_UNIQUE = "(unique workspace)"
"""The end of the name of a workspace that is kept for the whole run: no node at all writes in it."""


def planned_sites(
    graph: ir.Graph, buffers: Iterable[PlannedBuffer], blocks: Mapping[str, ArenaMemory], shapes: Shapes
) -> dict[ir.Value, TensorMemory]:
    """Return the memory of the values of `graph`, at the addresses in `buffers`.

    Raises CheckFailed for a buffer outside its arena, with another size than the tensor, or of a value that is not in the graph.
    """
    made = (value for node in graph for value in node.outputs)
    by_name = {value.name: value for value in (*graph.inputs, *made) if value.name}
    sites: dict[ir.Value, TensorMemory] = {}
    for buffer in buffers:
        if buffer.kind == "workspace":
            continue
        value = by_name.get(buffer.name)
        if value is None:
            raise CheckFailed(f"the plan has a place for {buffer.name!r}, which is not a tensor of its graph")
        dtype, shape = shapes.dtype(value), shapes.sizes(value)
        if dtype is None or shape is None or tensor_bytes(value, shapes) != buffer.size:
            raise CheckFailed(f"the plan gives {buffer.name!r} {buffer.size} bytes, but the tensor has another size")
        if not buffer.size:
            sites[value] = TensorMemory.empty(dtype, shape, 0)
            continue
        data = _bytes(buffer, blocks)
        sites[value] = TensorMemory(data, blocks[buffer.arena].address + buffer.offset, dtype, shape)
    return sites


def _bytes(buffer: PlannedBuffer, blocks: Mapping[str, ArenaMemory]) -> ByteArray:
    block = blocks.get(buffer.arena)
    data = None if block is None else block.part(buffer.offset, buffer.size)
    if data is None:
        raise CheckFailed(f"the plan places {buffer.name!r} outside of the arena")
    return data


@dataclass(frozen=True)
class Workspace:
    """The workspace of a node while it runs; its bodies write in the ranges `used_by_bodies`."""

    name: str
    data: ByteArray
    used_by_bodies: tuple[tuple[int, int], ...] = ()

    def fill(self) -> None:
        """Fill the workspace with canaries."""
        self.data[:] = _CANARY

    @property
    def is_intact(self) -> bool:
        """Whether all canaries outside the ranges of bodies are intact."""
        found = self.data == _CANARY
        for start, end in self.used_by_bodies:
            found[start:end] = True
        return bool(np.all(found))


def workspaces(
    schedule: Sequence[str],
    steps: Sequence[int],
    buffers: Iterable[PlannedBuffer],
    bodies: Mapping[str, Sequence[PlannedBody]],
    blocks: Mapping[str, ArenaMemory],
) -> dict[int, list[Workspace]]:
    """Return the workspaces in use at each place of `schedule`, whose nodes run in `steps`; a shared one in all steps of its live range.

    Raises CheckFailed for a workspace outside its arena, or a tensor of `bodies` outside the workspace of its node.
    """
    rows = [buffer for buffer in buffers if buffer.kind == "workspace"]
    own = {row.node: row for row in rows if row.node is not None and not row.name.endswith(_UNIQUE)}
    for node, inside in bodies.items():
        _require_inside_workspace(node, own.get(node), inside)
    found: dict[int, list[Workspace]] = {}
    for row in rows:
        used_by_bodies = tuple(_ranges(row, bodies.get(row.node or "", ()))) if own.get(row.node or "") is row else ()
        workspace = Workspace(row.name, _bytes(row, blocks), used_by_bodies)
        for place, step in enumerate(steps):
            is_held = row.node is None or row.name.endswith(_UNIQUE)
            if schedule[place] == row.node or (is_held and row.first <= step <= row.last):
                found.setdefault(place, []).append(workspace)
    return found


def _require_inside_workspace(node: str, workspace: PlannedBuffer | None, bodies: Iterable[PlannedBody]) -> None:
    for body in bodies:
        for row in _tensors(body):
            # At one size of a range, the size of a body is not said.
            size = 0 if workspace is None else min(workspace.size, body.size) if body.size >= 0 else workspace.size
            end = 0 if workspace is None else workspace.offset + size
            if (
                workspace is None
                or row.arena != workspace.arena
                or not workspace.offset <= row.offset <= end - row.size
            ):
                raise CheckFailed(f"the plan places {row.name!r} outside of the workspace of {node!r}")


def _ranges(workspace: PlannedBuffer, bodies: Iterable[PlannedBody]) -> Iterator[tuple[int, int]]:
    for body in bodies:
        yield from ((row.offset - workspace.offset, row.offset - workspace.offset + row.size) for row in _tensors(body))


def _tensors(body: PlannedBody) -> Iterator[PlannedBuffer]:
    """Yield the tensors with bytes of `body` and of the bodies in it."""
    yield from (row for row in body.tensors if row.size)
    for inner in body.bodies:
        yield from _tensors(inner)
