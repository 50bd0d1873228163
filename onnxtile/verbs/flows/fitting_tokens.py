"""Tokens in pieces and heads one after the other, in as few pieces as fit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxtile.fitting.schedule import FitSchedule
from onnxtile.fitting.search import FitTarget
from onnxtile.fitting.unblocking.unblock import ModelRewrite, token_cuts
from onnxtile.fitting.uncut_peak import uncut_peak
from onnxtile.model.constants import Constants
from onnxtile.verbs.flows.fit_drafts import FitSubject, WrittenSchedule, regions_of, written
from onnxtile.verbs.flows.stage import Progress

_KERNELS = 60_000
"""Kernels of all numbers of pieces that are tried, at most."""


@dataclass(frozen=True)
class TokensCut:
    """The model with its heads apart and its tokens in pieces, and the rewrites."""

    subject: FitSubject
    rewrites: tuple[ModelRewrite, ...]

    @property
    def peak(self) -> int:
        """The largest sum of live bytes."""
        return self._schedule.peak

    @property
    def _schedule(self) -> FitSchedule:
        return FitSchedule(tuple(self.subject.regions.whole))

    def may_fit(self, wanted: FitTarget) -> bool:
        """Return whether the live bytes are within the capacity that is wanted, or the fewest are."""
        return wanted.capacity is None or self.peak <= wanted.capacity

    def written(self, progress: Progress) -> WrittenSchedule:
        """Return the model, planned."""
        return written(self.subject, self._schedule, progress)


def tokens_cut(subject: FitSubject, wanted: FitTarget) -> TokensCut | None:
    """Return the model with its heads apart and as few pieces of its tokens as fit, and its kernels as regions, of which none is cut.

    Where none fits, those of the least peak, if below the arena.
    """
    best: TokensCut | None = None
    least, left = subject.before.arena, _KERNELS
    before: tuple[int, int] | None = None
    for count, one in token_cuts(subject.model, subject.shapes):
        regions = regions_of(one.model, one.shapes, Constants(one.model), exact=True)
        kernels = len(regions.network.kernels)
        left -= kernels
        if wanted.nodes is not None and kernels > wanted.nodes:
            break
        peak = uncut_peak(regions.network)
        if wanted.capacity is None or peak <= wanted.capacity:
            peak = max(region.peak for region in regions.whole)
        if peak < least:
            edited = replace(subject, model=one.model, shapes=one.shapes, regions=regions)
            best, least = TokensCut(edited, one.rewrites), peak
        elif best is not None:
            break
        if left < kernels or _is_settled(before, (count, peak), wanted.capacity):
            break
        before = count, peak
    return best


def _is_settled(before: tuple[int, int] | None, found: tuple[int, int], capacity: int | None) -> bool:
    """Return whether so many pieces fit, or no number of them does, by those `before`."""
    if capacity is None:
        return False
    return found[1] <= capacity or (before is not None and _limit(before, found) > capacity)


def _limit(fewer: tuple[int, int], more: tuple[int, int]) -> float:
    """Return the bytes that live with any number of pieces, by the bytes of two numbers of them.

    The bytes are the most of several sums of a constant and a part for each token of a piece: none is below the line through two of them.
    """
    return (more[1] * more[0] - fewer[1] * fewer[0]) / (more[0] - fewer[0])
