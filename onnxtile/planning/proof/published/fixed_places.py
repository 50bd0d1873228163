"""Checks pins, places and kept tensors: those that the plan names, and those in the metadata of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.claims import Claims


@dataclass(frozen=True)
class FixedPlaces:
    """The offset of each pinned row in bytes, the arena of each placed one, and the names of tensors that share bytes with nothing.

    Offsets are texts, as metadata have them.
    """

    pins: Mapping[str, str]
    places: Mapping[str, str]
    keeps: frozenset[str]

    @classmethod
    def of(cls, claims: Claims, graph: ir.Graph) -> FixedPlaces:
        """Return those in the metadata of the values of `graph`, and those of `claims`, which come first."""
        values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
        marked = ((value.name or "", value.metadata_props) for value in values if value.metadata_props)
        marks = [(_row_of(name, found, claims), found) for name, found in marked]
        pins = {name: found[keys.PIN] for name, found in marks if keys.PIN in found}
        places = {name: found[keys.PLACE_IN] for name, found in marks if keys.PLACE_IN in found}
        keeps = {name for name, found in marks if found.get(keys.KEEP) == "true"}
        pins |= {name: str(offset) for name, offset in claims.pins.items()}
        return cls(pins, places | dict(claims.places), frozenset(keeps.union(claims.keeps)))

    def failures(self, claims: Claims) -> Iterator[PlanFailure]:
        """Yield each row of `claims` that is at another address or in another arena, and each that shares the bytes of a kept tensor."""
        rows = {row.name: row for row in claims.buffers}
        for name in dict.fromkeys((*self.pins, *self.places, *sorted(self.keeps))):
            if name not in rows:
                yield PlanFailure(f"{name!r} is pinned, placed or kept, and has no address", (name,))
        for name, offset in self.pins.items():
            if name in rows and str(rows[name].offset) != offset:
                yield PlanFailure(f"{name!r} is at {rows[name].offset}, not at its pin {offset}", (name,))
        for name, arena in self.places.items():
            if name in rows and rows[name].arena != arena:
                yield PlanFailure(f"{name!r} is in {rows[name].arena!r}, not in {arena!r}", (name,))
        for row in claims.buffers:
            if row.alias is not None and not self.keeps.isdisjoint((row.name, row.alias)):
                kept, other = (row.name, row.alias) if row.name in self.keeps else (row.alias, row.name)
                yield PlanFailure(f"{other!r} shares the bytes of {kept!r}, which is kept", (kept, other))


def _row_of(name: str, marks: Mapping[str, str], claims: Claims) -> str:
    """Return the name of the row that `marks` of the tensor `name` are for: with copies, the one in its memory, by default the slow one."""
    if claims.movement is None:
        return name
    place = marks.get(keys.PLACE_IN, claims.movement.slow)
    copies = [copy.result for copy in claims.movement.copies or () if copy.tensor == name and copy.memory == place]
    arenas = {row.name: row.arena for row in claims.buffers}
    return next((found for found in (name, *copies) if arenas.get(found) == place), name)
