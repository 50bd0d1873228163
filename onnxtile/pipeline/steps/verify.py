"""The step `verify`: the model as it is now beside the one that the pipeline read."""

from __future__ import annotations

from onnxtile import api
from onnxtile.pipeline.step import Done, SizedOptions, State, Step


def _apply(options: SizedOptions, state: State) -> Done:
    verdict = api.verify(state.source, state.model, dims=options.dims, shapes=options.shapes, progress=state.progress)
    reason = None if verdict.equal else f"the outputs differ, by {verdict.max_rel:.3g} of their range"
    return Done(verdict.to_dict(), reason=reason)


VERIFY = Step("verify", SizedOptions, _apply)
