"""The layout with the smallest arena, of several layouts of one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.offsets.problem import OptimalityProof, OverCapacity, PinOverlap, Problem

_MANY = 500
"""Buffers above which placing takes so long that a layout that can hardly be smaller is left out."""


class _Proved(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def size(self) -> int:
        """The bytes of all arenas together."""
        ...

    @property
    def proof(self) -> OptimalityProof | None:
        """The bound on these bytes."""
        ...


Placed = TypeVar("Placed", bound=_Proved)


def smallest(
    layouts: Iterable[Layout], places: Sequence[Callable[[Problem], Placed]], least: int
) -> tuple[Layout, Placed]:
    """Return the layout with the smallest arena and what the last of `places` that ran found for its problem; of equals, the first.

    Each of `places` plans a problem, the quickest first: all layouts are placed by one before any is placed by the next. A layout whose
    lower bound is no smaller is not placed. Every layout needs at least `least` bytes: an arena of that size is the smallest, and no
    further layout is made. Outlines are left out where the arena reaches the lower bound without them. Buffers with outlines may leave
    gaps that cost more than their outlines save: where the arena is above the lower bound of such a layout, it is also placed with whole
    buffers. Raises OverCapacity where no arena fits its capacity, PinOverlap where pinned tensors are live together in every layout.
    """
    found = _Smallest(places[0])
    made: list[Layout] = []
    higher: list[Layout] = []
    for layout in layouts:
        if layout.problem.lower_bound > least:
            higher.append(layout)
            continue
        made.append(layout)
        found.enter(layout)
        if found.has_reached(least):
            return found.result
    # A smaller peak need not be a smaller arena: gaps between buffers may cost more than the order saves.
    for layout in sorted(higher, key=lambda layout: layout.problem.lower_bound):
        made.append(layout)
        found.enter(layout)
    if len(made) > 1 or len(places) == 1:
        # A single layout is placed by the last of `places` anyway.
        found.enter_wholes(made)
    for place in places[1:]:
        found.place, found.over = place, None
        for layout in made:
            found.enter(layout)
            if found.has_reached(least):
                return found.result
        found.enter_wholes(made)
    return found.result


@dataclass
class _Smallest(Generic[Placed]):
    """The layout with the smallest arena so far; `over` is the error of the first that did not fit."""

    place: Callable[[Problem], Placed]
    best: tuple[Layout, Placed] | None = None
    over: OverCapacity | PinOverlap | None = None

    @property
    def result(self) -> tuple[Layout, Placed]:
        """The best layout and its arenas. Raises the error of the first layout where none fits its capacity."""
        if self.best is None:
            assert self.over is not None
            raise self.over
        return self.best

    def has_reached(self, least: int) -> bool:
        """Return whether the best arena takes `least` bytes."""
        return self.best is not None and self.best[1].size <= least

    def is_open(self, layout: Layout) -> bool:
        """Return whether an arena of the lower bound of `layout` would be the smallest."""
        return self.best is None or layout.problem.lower_bound < self.best[1].size

    def enter(self, layout: Layout) -> None:
        """Place `layout`, if its arena may be the smallest: first without outlines, where their lower bound is no smaller."""
        if not self.is_open(layout):
            return
        least = layout.problem.lower_bound
        if layout.problem.has_outlines and layout.problem.bounding.lower_bound == least:
            with suppress(OverCapacity, PinOverlap):
                placed = self.place(layout.bounding.problem)
                if placed.size == least:
                    self.best = (layout.bounding, placed)
                    return
        try:
            self._keep(layout, self.place(layout.problem))
        except (OverCapacity, PinOverlap) as error:
            self.over = self.over or error

    def enter_wholes(self, layouts: Iterable[Layout]) -> None:
        """Enter with whole buffers those of `layouts` with outlines whose arenas may yet be smaller."""
        for layout in layouts:
            if layout.problem.has_outlines and self.is_open(layout):
                self.enter_whole(layout)

    def enter_whole(self, layout: Layout) -> None:
        """Place `layout` with parts only where they lower the peak, then with whole buffers: these prove nothing of outlines."""
        whole = layout.make_whole()
        if not _is_large_and_tight(layout):
            loose = layout.make_loose()
            self.enter(loose)
            if whole.buffers == loose.buffers:
                return
        if not self.is_open(whole):
            return
        with suppress(OverCapacity, PinOverlap):
            placed = self.place(whole.problem)
            proof = placed.proof
            if proof is not None and layout.problem.lower_bound < proof.lower_bound:
                ended = None if self.best is None or self.best[1].proof is None else self.best[1].proof.ended
                bound = OptimalityProof(layout.problem.lower_bound, layout.problem.bound, ended or "effort")
                placed = replace(placed, proof=bound)
            self._keep(whole, placed)

    def _keep(self, layout: Layout, placed: Placed) -> None:
        if self.best is None or _worth(placed) < _worth(self.best[1]):
            self.best = (layout, placed)


def _is_large_and_tight(layout: Layout) -> bool:
    """Return whether `layout` has many buffers, and parts do not lower its peak: then parts that do would save nothing."""
    problem = layout.problem
    return problem.bounding.lower_bound == problem.lower_bound and len(problem.buffers) > _MANY


def _worth(placed: _Proved) -> tuple[int, int]:
    """Return a key that is least for the smallest arenas, of equals for those with the highest bound."""
    return placed.size, -placed.proof.lower_bound if placed.proof is not None else 0
