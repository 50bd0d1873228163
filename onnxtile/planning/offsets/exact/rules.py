"""The rules of the exact search, each a named switch: tests/bench/ablations.py measures what each is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchRules:
    """Which rules the exact search follows. Switching one off changes the time, never which problems have a solution.

    Rules that cut branches of the search tree:

    - `symmetry`: of two interchangeable buffers, only one order on top of each other is tried.
    - `barred`: a branch ends when no unplaced buffer can raise a barred one any more.
    - `section_bound`: a branch ends when some section cannot hold its unplaced bytes above the floor. Without it a branch ends only
      when a single buffer exceeds the capacity.
    - `fewest_branches`: a search node branches on the section with the fewest branches; without it, on the first section of its buffer.
    - `decomposition`: sections that no unplaced buffer connects are searched one after the other.

    Rules that choose the order of buffers and the lengths of searches:

    - `learning`: buffers that made a section overfull are tried earlier in the next search.
    - `forgetting`: failure counts are cleared now and then, with other weights.
    - `weights`: a buffer with a longer live range is tried earlier; without it all weigh the same at first.
    - `long_searches`: now and then a search is long, without learning. It proves that a size is impossible.
    """

    symmetry: bool = True
    barred: bool = True
    section_bound: bool = True
    fewest_branches: bool = True
    decomposition: bool = True
    learning: bool = True
    forgetting: bool = True
    weights: bool = True
    long_searches: bool = True

    def flags(self) -> list[int]:
        """Return the rules that `descent` reads, by SYMMETRY to DECOMPOSITION: 1 where on, else 0."""
        cuts = (self.symmetry, self.barred, self.section_bound, self.fewest_branches, self.decomposition)
        return [int(rule) for rule in cuts]


SYMMETRY, BARRED, SECTION_BOUND, FEWEST_BRANCHES, DECOMPOSITION = range(5)
"""Places in `SearchRules.flags`."""

ALL_RULES = SearchRules()
"""Every rule is on."""
