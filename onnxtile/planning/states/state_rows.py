"""The rows of a result that tell where its states are."""

from __future__ import annotations

from collections.abc import Iterator

from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.result import PlannedState
from onnxtile.planning.rows import Addresses
from onnxtile.planning.states.find_states import States
from onnxtile.planning.states.state_layout import strides
from onnxtile.planning.states.state_pair import StatePair


def planned_states(states: States, layout: Layout, facts: LayoutFacts, places: Addresses) -> tuple[PlannedState, ...]:
    """Return the states kept in the arena of `layout` at the addresses `places`, then those that are only listed."""
    kept = (_kept(pair, layout, facts, places) for pair in states.taken)
    return (*kept, *_listed(states))


def _listed(states: States) -> Iterator[PlannedState]:
    for pair in states.listed:
        yield PlannedState(pair.input.name or "", pair.output.name or "", pair.source, pair.axis)


def _kept(pair: StatePair, layout: Layout, facts: LayoutFacts, places: Addresses) -> PlannedState:
    alias_sets = layout.sharing.alias_sets
    before, after = alias_sets.of[pair.input], alias_sets.of[pair.output]
    is_same = before is after and alias_sets.start(pair.input) == alias_sets.start(pair.output)
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
