"""Run two models and compare every output."""

from __future__ import annotations

from onnxtile.model.dims import bind
from onnxtile.model.load import Source, load
from onnxtile.verbs.stage import Dims, InputShapes, Progress, silent
from onnxtile.verify import Verdict, compare_with, run_original


def verify(
    model: Source,
    other: Source,
    *,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    progress: Progress = silent,
) -> Verdict:
    """Run both models on the same random inputs and compare every output; a difference is in the result, not an error."""
    progress("reading the models")
    pair = [load(model), load(other)]
    for one in pair:
        bind(one, dims or {}, shapes or {})
    progress("running")
    trials, assigned = run_original(pair[0])
    return compare_with(trials, pair[1], assigned)
