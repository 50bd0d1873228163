"""The largest size of one dimension with which a plan fits a capacity: a search of few plans, led by the formulas of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from onnxtile.declare.verb import JsonFields
from onnxtile.model.formula import SizeFormula, read_size
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.result import PlanResult
from onnxtile.system.dataclass import dataclass

MOST_SIZE = 2**62
"""No dimension is searched beyond this size."""
_GUIDED = 6
"""After so many plans each further one halves the sizes that are left."""


@dataclass(frozen=True)
class NeededBytes(JsonFields):
    """The bytes that a plan up to one size takes: of its `weights`, its `state`, and the rest of its `arena`.

    `state` has the states that stay in the arena between runs, and the inputs outside the arena that are states not kept. `total` is the
    sum of the three.
    """

    weights: int
    state: int
    arena: int
    total: int


@dataclass(frozen=True)
class RefusedSize(JsonFields):
    """A size for which no plan fits: with the best that was found, or by a lower bound, at least `total` bytes are needed.

    `size` is in elements.
    """

    size: int
    total: int


@dataclass(frozen=True)
class LargestSize(JsonFields):
    """The largest `size` of `dimension` for which the plan of all sizes from `least` on fits the `capacity`, all in bytes.

    `needed` are the bytes at this size, `apart` those of inputs and outputs outside the arena, which do not count. `refused` is the next
    size; None where the range of sizes ends with `size`.
    """

    dimension: str
    least: int
    size: int
    needed: NeededBytes
    apart: int
    capacity: int
    refused: RefusedSize | None


# The search.

Growth = Callable[[int], float]
"""Returns an estimate of the bytes that are needed at a size."""


@dataclass(frozen=True)
class SizeTrial:
    """A plan up to `size` that was made: it takes `total` bytes, or at least these where none that fits was found.

    `growth` estimates the bytes at other sizes; None where no plan tells.
    """

    size: int
    total: int
    fits: bool
    growth: Growth | None = None


def largest_fitting(
    trial_at: Callable[[int], SizeTrial], start: SizeTrial, least: int, most: int | None, capacity: int
) -> tuple[int | None, SizeTrial | None]:
    """Return the largest size from `least` to `most` (None: no limit) that fits `capacity` bytes, and the trial of the next size.

    No size is returned where `least` does not fit, no trial where `most` fits. Every size that fits is taken to fit with all smaller ones.
    `start` has the first estimate; `trial_at` makes a plan. Where estimates are exact, two plans are made.
    """
    fit: int | None = None
    over: SizeTrial | None = None
    growth, latest, count = start.growth, start, 0
    while True:
        low = least if fit is None else fit + 1
        high = most if over is None else over.size - 1
        if high is not None and low > high:
            return fit, over
        if high is not None and count >= _GUIDED:
            latest = trial_at((low + high) // 2)
        else:
            latest = trial_at(_estimated(growth, latest, low, high, capacity))
        count += 1
        growth = latest.growth or growth
        if latest.fits:
            fit = latest.size
        else:
            over = latest


def _estimated(growth: Growth | None, latest: SizeTrial, low: int, high: int | None, capacity: int) -> int:
    """Return the largest size from `low` to `high` that fits by an estimate through the bytes of `latest`; `low` where none does."""
    assert growth is not None
    beside = latest.total - growth(latest.size)

    def fits(size: int) -> bool:
        return growth(size) + beside <= capacity

    largest, step = low, 1
    top = MOST_SIZE if high is None else high
    while largest + step <= top and fits(largest + step):
        largest, step = largest + step, 2 * step
    while step:
        if largest + step <= top and fits(largest + step):
            largest += step
        step //= 2
    return largest


# The estimate.


def growth_of(plan: PlanResult, name: str, others: Iterable[tuple[SizeFormula, int]] = ()) -> Growth:
    """Return the largest sum of live bytes of `plan` as an estimate for other sizes of the dimension `name`.

    `others` are bytes that live throughout, with their sizes in the plan: those outside the arena. Other dimensions have their largest
    sizes. A buffer without a formula counts as it is. No formula of a plan holds beyond its ranges: another order or other shared bytes
    may be better there.
    """
    largest = {dimension: high for dimension, (_, high) in plan.ranges.items()}
    rows: dict[SizeFormula, dict[int, float]] = {}

    def live(formula: SizeFormula, size: int, first: int, last: int) -> None:
        whole = formula.at(largest)
        changes = rows.setdefault(formula if whole > 0 else SizeFormula.number(1), {})
        share = size / whole if whole > 0 else float(size)
        changes[first] = changes.get(first, 0.0) + share
        changes[last + 1] = changes.get(last + 1, 0.0) - share

    for row in plan.buffers:
        if row.alias is None:
            formula = read_size(row.size_formula or row.size, plan.ranges) or SizeFormula.number(row.size)
            if not row.parts:
                live(formula, align(row.size, plan.alignment), row.first, row.last)
            for part in row.parts or ():
                live(formula, part.size, part.first, part.last)
    last = max((row.last for row in plan.buffers), default=0)
    for formula, size in others:
        live(formula, size, 0, last)
    counts = np.array([_running(changes, last) for changes in rows.values()], np.float64).reshape(len(rows), last + 1)
    counts = np.unique(counts, axis=1)
    formulas = list(rows)

    def growth(size: int) -> float:
        sizes = {**largest, name: size}
        return float((np.array([float(formula.at(sizes)) for formula in formulas]) @ counts).max(initial=0.0))

    return growth


def _running(changes: Mapping[int, float], last: int) -> list[float]:
    """Return the sum of `changes` up to each step from 0 to `last`."""
    sums = np.zeros(last + 2)
    for step, change in changes.items():
        sums[step] += change
    return [float(total) for total in sums.cumsum()[:-1]]
