"""How often fit does better within a smaller capacity or budget.

python -m tests.bench.measure monotone MODEL ...
"""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import dataclass
from itertools import product

from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject, unblocked_subject
from tests.bench.tables import Rows, Table
from tests.fitting.networks import search_within

_SHARES = (0.8, 0.65, 0.55, 0.5, 0.46, 0.42, 0.38, 0.34, 0.3, 0.25, 0.21, 0.17)
"""Capacities as shares of the arena of the model as it is."""
_BUDGETS = (0.0, 0.05, 0.25)
_SLIGHT = 1.01


@dataclass(frozen=True)
class _Point:
    """The schedule that one search finds within a share of the arena and a budget, by its time over that of the model; None for none."""

    share: float
    budget: float
    time: float | None

    def is_worse(self, other: _Point, factor: float = 1.0) -> bool:
        """Return whether the schedule of `other`, with no more bytes and no larger budget, takes less time by a factor, or only it fits."""
        has_more = self.share >= other.share and self.budget >= other.budget
        return has_more and other.time is not None and (self.time is None or self.time > factor * other.time)


def monotone(given: Namespace) -> Rows:
    """Yield a row for each model: searches within twelve capacities and three budgets, and how many a search within less of both beats.

    Each begins anew, on the model after the rewrites that let more of it be cut. Nothing is placed, written or planned.
    """
    for subject in given.models:
        options = FitOptions(subject.path, capacity=1, verify=False, budget=f"{100 * _BUDGETS[-1]}%")
        about = unblocked_subject(read_subject(options))
        network, started = about.regions.network, time.process_time()
        points: list[_Point] = []
        for share, budget in product(_SHARES, _BUDGETS):
            wanted = FitTarget(int(share * about.before.arena), budget, prices=about.prices)
            found = search_within(Regions(network, about.regions.groups), wanted)
            points.append(_Point(share, budget, None if found is None else about.estimate(found) / about.seconds))
        beaten = {factor: sum(any(p.is_worse(o, factor) for o in points) for p in points) for factor in (1.0, _SLIGHT)}
        times = [point.time for point in points if point.time is not None]
        unfit = sum(point.time is None and any(map(point.is_worse, points)) for point in points)
        yield (
            *(subject.name, len(points), len(times), unfit, beaten[1.0] - unfit, beaten[_SLIGHT] - unfit),
            *(sum(times) / max(len(times), 1), time.process_time() - started),
        )


TABLES = {
    "monotone": Table(
        "searches of fit that one within a smaller capacity and budget beats",
        (
            *("model", "searches", "that fit", "only less fits", "less is quicker", "by over 1%"),
            *("mean time, estimated", "seconds"),
        ),
        monotone,
    ),
}
