"""Orders of nodes for a plan over ranges of sizes: of those with the smallest arena at the largest sizes, the best at others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from onnxtile.model.formula import SizeRanges
from onnxtile.planning.layout import Layout
from onnxtile.planning.offsets.memories import Allocation
from onnxtile.planning.offsets.problem import Ints, Problem
from onnxtile.planning.offsets.range_formulas import sample_sizes
from onnxtile.planning.ordering.order_search import OrderSearch
from onnxtile.planning.ranges import buffer_sizes
from onnxtile.planning.schedule import Schedule
from onnxtile.planning.workspaces import Needs
from onnxtile.system.errors import Infeasible

_SEARCHED = 4
"""Sizes at which orders are searched, at most."""
_MANY = 2000
"""Nodes above which no further orders are searched: each search takes a second."""
_BETTER = 0.98
"""A peak below so much of that of the present order is worth another order."""


class RangeOrders:
    """Looks for orders that are better at other sizes in `ranges` than at the largest, where `search` has searched all orders."""

    def __init__(self, search: OrderSearch, ranges: SizeRanges, share: frozenset[str], needs: Needs) -> None:
        self._search = search
        self._ranges = ranges
        self._terms = (share, needs)
        self._points = sample_sizes(ranges)

    def better(
        self,
        found: tuple[Layout, Allocation],
        layouts: Callable[[Sequence[Schedule]], Iterator[Layout]],
        place: Callable[[Problem], Allocation],
    ) -> tuple[Layout, Allocation]:
        """Return the layout and its arenas, no larger than `found`, with the smallest peaks at all sizes; `found` itself where none has.

        `layouts` returns the layouts of schedules, `place` the arenas of one.
        """
        layout, allocation = found
        if self._search.is_wide or len(layout.schedule.nodes) > _MANY or layout.problem.has_outlines:
            return found
        schedules = list(self._schedules(self._peaks(layout)))
        others = [layout, *(one.bounding for one in layouts(schedules))] if schedules else [layout]
        peaks = np.array([self._peaks(one) for one in others], np.float64)
        ratios = peaks / np.maximum(peaks.min(axis=0), 1)
        worth = ratios.mean(axis=1) + ratios.max(axis=1)
        for place_in_list in np.argsort(worth, kind="stable").tolist():
            chosen = others[place_in_list]
            if place_in_list == 0:
                return found
            if chosen.problem.lower_bound > allocation.size:
                continue
            try:
                placed = place(chosen.problem)
            except Infeasible:
                continue
            if placed.size <= allocation.size:
                return chosen, placed
        return found

    def _schedules(self, peaks: Ints) -> Iterator[Schedule]:
        """Yield orders that are searched at other sizes, where they have a smaller peak than the present one."""
        facts = self._search.facts
        largest = {name: high for name, (_, high) in self._ranges.items()}
        sided = [place for place, sizes in enumerate(self._points) if self._is_sided(sizes, largest)]
        for place in sided[:_SEARCHED]:
            at = replace(facts, shapes=facts.shapes.at(self._points[place]))
            search = OrderSearch(at, self._search.scope, self._search.alignment)
            orders = list(islice(search.orders(*self._terms), 2))
            if search.known_peak(*self._terms) < _BETTER * peaks[place]:
                yield from orders

    def _is_sided(self, sizes: Mapping[str, int], largest: Mapping[str, int]) -> bool:
        """Return whether all dimensions are at their least size, or all but one that is at its largest."""
        above = [name for name, (low, _) in self._ranges.items() if sizes[name] > low]
        return len(above) < 2 and all(sizes[name] == largest[name] for name in above)

    def _peaks(self, layout: Layout) -> Ints:
        """Return the largest sum of live bytes at each of the sizes."""
        sizes = buffer_sizes(layout, self._search.facts.shapes, self._ranges)
        buffers, unit = layout.problem.buffers, layout.problem.granule
        lower, upper = layout.problem.live_ranges
        live = np.zeros((int(upper.max(initial=0)) + 1, len(self._points)), np.int64)
        at = [[-(-sizes[b.name].at(point) // unit) * unit for point in self._points] for b in buffers]
        footprints = np.array(at, np.int64).reshape(len(buffers), len(self._points))
        np.add.at(live, lower, footprints)
        np.add.at(live, upper, -footprints)
        found: Ints = np.cumsum(live, axis=0).max(axis=0)
        return found
