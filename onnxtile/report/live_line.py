"""The live bytes of a plan over its steps, in a line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from onnxtile.report.format import PlanJson
from onnxtile.report.layout import arenas, first_step, steps
from onnxtile.report.shown import shown

_BLOCKS = " ▁▂▃▄▅▆▇█"


def live_line(sizes: Sequence[int], top: int) -> str:
    """Return a bar for each of `sizes` (bytes), the highest for `top`; none is for 0 only."""
    return "".join(_BLOCKS[-(-size * (len(_BLOCKS) - 1) // top) if top else 0] for size in sizes)


def live_sizes(plan: PlanJson, count: int) -> list[int]:
    """Return the most live bytes of all arenas in each of `count` spans of the steps of `plan`, those that only make constants left out."""
    counted = shown(plan)
    start, end = first_step(counted), max(steps(counted), 1)
    edges = [start + (end - start) * i // count for i in range(count + 1)]
    changes: dict[int, int] = {}
    for arena in arenas(counted):
        before = 0
        for step, live in arena.live:
            changes[step] = changes.get(step, 0) + live - before
            before = live
    sums, live = [], 0
    for step in sorted(changes):
        live += changes[step]
        sums.append((step, live))
    return [_most(sums, first, max(last, first + 1)) for first, last in pairwise(edges)]


def _most(sums: Sequence[tuple[int, int]], first: int, end: int) -> int:
    """Return the largest of the sums that hold from their steps on, from the step `first` to before `end`."""
    before = max((at for at, (step, _) in enumerate(sums) if step <= first), default=0)
    return max((live for step, live in sums[before:] if step < end), default=0)
