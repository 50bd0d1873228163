"""The layout with the smallest arena, of several layouts of one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.offsets.problem import OverCapacity, Problem


class _Sized(Protocol):
    @property
    def size(self) -> int:
        """The bytes of all arenas together."""
        ...


Placed = TypeVar("Placed", bound=_Sized)


def smallest(layouts: Sequence[Layout], place: Callable[[Problem], Placed]) -> tuple[Layout, Placed]:
    """Return the layout with the smallest arena and the result of `place` for its problem; of equals, the first.

    A layout whose lower bound is no smaller is not placed. Outlines are left out where the arena is as small without them. Buffers with
    outlines may leave gaps that cost more than their outlines save: where the arena is above the lower bound of such a layout, it is also
    placed with whole buffers. Raises OverCapacity where no arena fits its capacity.
    """
    # A smaller peak need not be a smaller arena: gaps between buffers may cost more than the order saves.
    ranked = layouts if len(layouts) == 1 else sorted(layouts, key=lambda layout: layout.problem.lower_bound)
    race = _Race(place)
    for layout in ranked:
        race.enter(layout)
    for layout in ranked:
        if layout.problem.has_outlines and race.is_open(layout):
            race.enter(layout.make_whole())
    if race.best is None:
        assert race.over is not None
        raise race.over
    return race.best


@dataclass
class _Race(Generic[Placed]):
    """The `best` layout so far; `over` is the first that did not fit."""

    place: Callable[[Problem], Placed]
    best: tuple[Layout, Placed] | None = None
    over: OverCapacity | None = None

    def is_open(self, layout: Layout) -> bool:
        """Return whether an arena of the lower bound of `layout` would be the smallest."""
        return self.best is None or layout.problem.lower_bound < self.best[1].size

    def enter(self, layout: Layout) -> None:
        """Place `layout`, if it may be the best: first without outlines, where their lower bound is no smaller."""
        if layout.problem.has_outlines and layout.bounding.problem.lower_bound == layout.problem.lower_bound:
            with suppress(OverCapacity):
                self._try(layout.bounding)
        if not self.is_open(layout):
            return
        try:
            self._try(layout)
        except OverCapacity as error:
            self.over = self.over or error

    def _try(self, layout: Layout) -> None:
        placed = self.place(layout.problem)
        if self.best is None or placed.size < self.best[1].size:
            self.best = (layout, placed)
