"""The rows of a result that tell where its states are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.result import PlannedBuffer, PlannedState
from onnxtile.planning.rows import Addresses
from onnxtile.planning.states.find_states import States
from onnxtile.planning.states.state_layout import Strides, spread_strides, strides
from onnxtile.planning.states.state_pair import StatePair


def planned_states(states: States, layout: Layout, facts: LayoutFacts, places: Addresses) -> tuple[PlannedState, ...]:
    """Return the states kept in the arena of `layout` at the addresses `places`, then those that are only listed."""
    kept = (_kept(pair, layout, facts, places) for pair in states.taken)
    return (*kept, *_listed(states))


def with_strides(
    rows: Sequence[PlannedBuffer], states: States, layout: Layout, facts: LayoutFacts
) -> tuple[PlannedBuffer, ...]:
    """Return `rows` with the strides of those that are not contiguous: growing states at one address, and their views there."""
    of = layout.sharing.alias_sets.of
    found: dict[str, Strides] = {}
    for pair in states.taken:
        if _is_same(pair, layout):
            spread = spread_strides(pair, facts).items()
            found |= {value.name or "": one for value, one in spread if of.get(value) is of[pair.input]}
    return tuple(
        replace(
            row, strides=found[row.name].sizes, strides_formula=found[row.name].formulas if row.shape_formula else None
        )
        if row.name in found
        else row
        for row in rows
    )


def _is_same(pair: StatePair, layout: Layout) -> bool:
    """Return whether both ends of `pair` have one address."""
    alias_sets = layout.sharing.alias_sets
    is_together = alias_sets.of[pair.input] is alias_sets.of[pair.output]
    return is_together and alias_sets.start(pair.input) == alias_sets.start(pair.output)


def _listed(states: States) -> Iterator[PlannedState]:
    for pair in states.listed:
        yield PlannedState(pair.input.name or "", pair.output.name or "", pair.source, pair.axis)


def _kept(pair: StatePair, layout: Layout, facts: LayoutFacts, places: Addresses) -> PlannedState:
    alias_sets = layout.sharing.alias_sets
    before, is_same = alias_sets.of[pair.input], _is_same(pair, layout)
    place = places[before.owner.name or ""]
    sizes = alias_sets.size(pair.input), alias_sets.size(pair.output)
    return PlannedState(
        pair.input.name or "",
        pair.output.name or "",
        pair.source,
        pair.axis,
        arena=place.arena,
        offset=place.offset + alias_sets.start(pair.input),
        size=max(sizes) if is_same else sizes[0],
        copied=0 if is_same else sizes[0],
        strides=strides(pair, facts) if is_same else None,
    )
