"""Shakes a plan: all buffers rise as far as they can, then fall as far as they can, so that holes come together or are filled."""

from __future__ import annotations

from collections.abc import Sequence

from onnxtile.plan.fit import Fitter, lowest
from onnxtile.plan.problem import Problem, size_of


def shaken(problem: Problem, offsets: Sequence[int]) -> Sequence[int]:
    """Return sound offsets that take no more bytes than the sound `offsets`.

    Taken from below, each buffer that is placed anew finds the place it had still free, or a lower one. Where some buffers have an
    alignment of their own, what is aligned is not upside down: then nothing is done.
    """
    if any(problem.alignment_of(buffer) != problem.granule for buffer in problem.buffers):
        return offsets
    fitter = Fitter(problem)
    for _ in ("up", "down"):
        turned = _turned(problem, offsets)
        offsets = fitter.place(sorted(range(len(turned)), key=turned.__getitem__), lowest)
    return offsets


def _turned(problem: Problem, offsets: Sequence[int]) -> list[int]:
    """Return the offsets upside down."""
    top = size_of(problem, offsets)
    return [top - offset - size for offset, size in zip(offsets, problem.footprints, strict=True)]
