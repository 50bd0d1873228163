"""The step `unfuse`."""

from __future__ import annotations

from onnxtile import api
from onnxtile.pipeline.options import Options
from onnxtile.pipeline.step import Done, State, Step


class _Options(Options):
    verify: bool = True


def _apply(options: _Options, state: State) -> Done:
    result = api.unfuse(state.model, verify=options.verify, progress=state.progress)
    return Done(result.to_dict(), result.model)


UNFUSE = Step("unfuse", _Options, _apply)
