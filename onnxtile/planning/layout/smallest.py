"""The layout with the smallest arena, of several layouts of one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Protocol, TypeVar

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
    smallest, and no further layout is made. Raises OverCapacity where no arena fits its capacity.
    """
    rest = iter(layouts)
    first = next(rest)
    # A smaller peak need not be a smaller arena: gaps between buffers may cost more than the order saves.
    if first.problem.lower_bound > least:
        rest = iter(sorted((first, *rest), key=lambda layout: layout.problem.lower_bound))
        first = next(rest)
    best: tuple[Layout, Placed] | None = None
    over: OverCapacity | None = None
    for layout in chain((first,), rest):
        if best is not None and layout.problem.lower_bound >= best[1].size:
            continue
        try:
            placed = place(layout.problem)
        except OverCapacity as error:
            over = over or error
            continue
        if best is None or placed.size < best[1].size:
            best = (layout, placed)
        if best[1].size <= least:
            break
    if best is None:
        assert over is not None
        raise over
    return best
