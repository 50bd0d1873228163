"""The trade of a model's arena against multiply-accumulates, nodes and copied bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxtile.fitting.result import ModelCost
from onnxtile.fitting.search import FitTarget, search
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.fit_drafts import FitSubject, written
from onnxtile.verbs.flows.fitted_model import CurvePoint, FitCurve
from onnxtile.verbs.flows.fitting import cost, extra_left, read_subject, unblocked_subject

if TYPE_CHECKING:
    from onnxtile.verbs.options.fit import CurveOptions


_RATIO = 0.75
"""The capacity of a point as a share of the peak of the point before."""
_PLANNED = 3_000
"""Kernels of the largest schedule that is written and planned; the arena of a larger one is an estimate."""


def fit_curve(options: CurveOptions) -> FitCurve:
    """Return the trade as `onnxtile.fit_curve` says."""
    return curve_of(read_subject(options), options)


def curve_of(subject: FitSubject, options: CurveOptions) -> FitCurve:
    """Return the trade of a model that was read."""
    points = [CurvePoint(subject.before, False)]
    unblocked, _ = unblocked_subject(subject, options)
    wanted = FitTarget(None, max(extra_left(subject, unblocked, options), 0.0), options.max_nodes)
    for point in _points(unblocked, wanted, options.progress):
        # Gaps between buffers may make an arena larger than its peak.
        if point.cost.arena < points[-1].cost.arena:
            points.append(point)
    return FitCurve(tuple(points))


def _points(subject: FitSubject, wanted: FitTarget, progress: Progress) -> Iterator[CurvePoint]:
    """Yield the cheapest schedule within each capacity; the last is the one with the least peak."""
    peak = subject.before.arena
    while peak:
        capacity = int(_RATIO * peak)
        schedule = search(subject.regions, FitTarget(capacity, wanted.extra_macs, wanted.nodes), progress)
        if schedule.peak >= peak:
            return
        peak = schedule.peak if schedule.peak <= capacity else 0
        if schedule.nodes > _PLANNED:
            copied = sum(region.copied for region in schedule.regions)
            yield CurvePoint(ModelCost(schedule.peak, schedule.peak, schedule.macs, schedule.nodes, copied), True)
        else:
            found = written(subject, schedule, progress)
            yield CurvePoint(cost(schedule, found.planned, found.nodes), False)
