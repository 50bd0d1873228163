"""The layout with the smallest arena, of several layouts of one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Protocol, TypeVar

from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.offsets.problem import OverCapacity, Problem


class _Sized(Protocol):
    @property
    def size(self) -> int:
        """The bytes of all arenas together."""
        ...


Placed = TypeVar("Placed", bound=_Sized)


def smallest(layouts: Iterable[Layout], place: Callable[[Problem], Placed], least: int) -> tuple[Layout, Placed]:
    """Return the layout with the smallest arena and the result of `place` for its problem; of equals, the first.

    A layout whose lower bound is no smaller is not placed. Every layout needs at least `least` bytes: an arena of that size is the
    smallest, and no further layout is made. Buffers with outlines may leave gaps that cost more than their outlines save: where the
    arena is above the lower bound of such a layout, it is also placed with whole buffers. Raises OverCapacity where no arena fits its
    capacity.
    """
    rest = iter(layouts)
    first = next(rest)
    # A smaller peak need not be a smaller arena: gaps between buffers may cost more than the order saves.
    if first.problem.lower_bound > least:
        rest = iter(sorted((first, *rest), key=lambda layout: layout.problem.lower_bound))
        first = next(rest)
    found = _BestLayout(place)
    placed = []
    for layout in chain((first,), rest):
        found.enter(layout)
        placed.append(layout)
        if found.best is not None and found.best[1].size <= least:
            return found.best
    for layout in placed:
        if layout.problem.has_outlines and found.is_open(layout):
            found.enter(layout.make_whole())
    if found.best is None:
        assert found.over is not None
        raise found.over
    return found.best


@dataclass
class _BestLayout(Generic[Placed]):
    """The `best` layout so far; `over` is the first that did not fit."""

    place: Callable[[Problem], Placed]
    best: tuple[Layout, Placed] | None = None
    over: OverCapacity | None = None

    def is_open(self, layout: Layout) -> bool:
        """Return whether an arena of the lower bound of `layout` would be the smallest."""
        return self.best is None or layout.problem.lower_bound < self.best[1].size

    def enter(self, layout: Layout) -> None:
        """Place `layout`, if it may be the best."""
        if not self.is_open(layout):
            return
        try:
            placed = self.place(layout.problem)
        except OverCapacity as error:
            self.over = self.over or error
            return
        if self.best is None or placed.size < self.best[1].size:
            self.best = (layout, placed)
