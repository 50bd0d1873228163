"""The steps in which each byte of a buffer is live, by the graph: found from the tensors over it and the nodes that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import onnx_ir as ir

from onnxtile.planning.proof.published.evidence import GraphFacts
from onnxtile.planning.proof.published.links import held
from onnxtile.planning.proof.published.operators import TAKES_PARTS
from onnxtile.planning.proof.published.timeline import RunOrder


class HeldBytes(NamedTuple):
    """The bytes from `start` to `end` are live from step `first` to step `last` inclusive."""

    start: int
    end: int
    first: int
    last: int


def bytes_read(node: ir.Node, value: ir.Value, known: GraphFacts) -> list[tuple[int, int]] | None:
    """Return the bytes of `value` that `node` reads; None for all. A node that takes parts reads no other bytes than these."""
    if node.op_type not in TAKES_PARTS or not known.is_standard(node) or sum(v is value for v in node.inputs) != 1:
        return None
    taken = {link.result: link.at for link in held(node, known) if link.operand is value and link.rule == "part"}
    if set(taken) != {result for result in node.outputs if result.name}:
        return None
    return [(at, at + (known.bytes(result) or 0)) for result, at in taken.items()]


def lives_of(value: ir.Value, offset: int, line: RunOrder, known: GraphFacts) -> Iterator[HeldBytes]:
    """Yield the live bytes of the tensor `value` at `offset`; they may overlap."""
    end, first, last = offset + (known.bytes(value) or 0), line.first(value), line.last(value)
    if value in line.throughout:
        yield HeldBytes(offset, end, 0, line.end)
        return
    if value in line.kept or value in line.apart:
        yield HeldBytes(offset, end, first, last)
        return
    yield HeldBytes(offset, end, first, first)
    for node in line.readers.get(value, ()):
        for start, stop in bytes_read(node, value, known) or [(0, end - offset)]:
            yield HeldBytes(offset + start, offset + stop, first, line.step_of[node])


def disjoint(held_bytes: Iterable[HeldBytes]) -> list[HeldBytes]:
    """Return disjoint pieces of the same bytes and steps, by bytes: equal lists hold equal bytes in equal steps."""
    events: dict[int, list[tuple[int, HeldBytes]]] = {}
    for piece in held_bytes:
        if piece.start < piece.end and piece.first <= piece.last:
            events.setdefault(piece.start, []).append((1, piece))
            events.setdefault(piece.end, []).append((-1, piece))
    open_: dict[HeldBytes, int] = {}
    found: list[HeldBytes] = []
    before: Sequence[tuple[int, int]] = ()
    since = None
    for byte in sorted(events):
        if since is not None:
            lives = _together(open_)
            if lives == before and found and found[-1].end == since:
                found[-len(lives) :] = [piece._replace(end=byte) for piece in found[-len(lives) :]]
            else:
                found += (HeldBytes(since, byte, *live) for live in lives)
            before = lives
        for sign, piece in events[byte]:
            open_[piece] = open_.get(piece, 0) + sign
            if not open_[piece]:
                del open_[piece]
        since = byte if open_ else None
    return found


def _together(pieces: Iterable[HeldBytes]) -> list[tuple[int, int]]:
    """Return the steps of `pieces` as ranges, inclusive, with steps between them."""
    found: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=attrgetter("first")):
        if found and piece.first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], piece.last))
        else:
            found.append((piece.first, piece.last))
    return found


def in_blocks(pieces: Sequence[HeldBytes], unit: int) -> list[HeldBytes]:
    """Return disjoint `pieces` of one buffer in whole blocks of `unit` bytes, which count from its start at 0."""
    whole = [HeldBytes(-(-p.start // unit) * unit, p.end // unit * unit, p.first, p.last) for p in pieces]
    found = [piece for piece in whole if piece.start < piece.end]
    shared = [HeldBytes(block, block + unit, p.first, p.last) for p in pieces for block in _cut_blocks(p, unit)]
    for block, together in groupby(sorted(shared), key=attrgetter("start")):
        found += (HeldBytes(block, block + unit, *live) for live in _together(together))
    return found


def _cut_blocks(piece: HeldBytes, unit: int) -> set[int]:
    """Return the starts of the blocks that `piece` has bytes of, but not all."""
    first, last = piece.start // unit * unit, (piece.end - 1) // unit * unit
    return ({first} if first < piece.start else set()) | ({last} if piece.end < last + unit else set())
