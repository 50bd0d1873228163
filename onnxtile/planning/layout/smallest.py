"""The layout with the smallest arena, of several layouts of one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

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

    A layout whose lower bound is no smaller is not placed. Raises OverCapacity where no arena fits its capacity.
    """
    # A smaller peak need not be a smaller arena: gaps between buffers may cost more than the order saves.
    ranked = layouts if len(layouts) == 1 else sorted(layouts, key=lambda layout: layout.problem.lower_bound)
    best: tuple[Layout, Placed] | None = None
    over: OverCapacity | None = None
    for layout in ranked:
        if best is not None and layout.problem.lower_bound >= best[1].size:
            break
        try:
            placed = place(layout.problem)
        except OverCapacity as error:
            over = over or error
            continue
        if best is None or placed.size < best[1].size:
            best = (layout, placed)
    if best is None:
        assert over is not None
        raise over
    return best
