"""The step `verify`: the model as it is now beside the one that the pipeline read."""

from __future__ import annotations

from typing import Annotated

import pydantic

from onnxtile import api
from onnxtile.pipeline.options import Count, InputOptions
from onnxtile.pipeline.step import Done, State, Step


class _Options(InputOptions):
    runs: Count = 2
    seed: Annotated[int, pydantic.Field(ge=0)] = 0
    edge: bool = False
    bisect: bool = False


def _apply(options: _Options, state: State) -> Done:
    how = api.Comparing(
        inputs=options.inputs,
        runs=options.runs,
        seed=options.seed,
        ranges=options.ranges,
        edge=options.edge,
        bisect=options.bisect,
    )
    verdict = api.verify(
        state.source, state.model, dims=options.dims, shapes=options.shapes, how=how, progress=state.progress
    )
    reason = None if verdict.equal else f"the outputs differ, by {verdict.max_rel:.3g} of their range"
    return Done(verdict.to_dict(), reason=reason)


VERIFY = Step("verify", _Options, _apply)
