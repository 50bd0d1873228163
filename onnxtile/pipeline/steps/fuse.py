"""The step `fuse`."""

from __future__ import annotations

from typing import Literal

from onnxtile import api
from onnxtile.pipeline.options import Options, Texts
from onnxtile.pipeline.step import Done, State, Step


class _Options(Options):
    patterns: Texts = ()
    lower: Literal["none", "onnx", "ort"] = "none"
    verify: bool = True


def _apply(options: _Options, state: State) -> Done:
    result = api.fuse(
        state.model, options.patterns, lower=options.lower, verify=options.verify, progress=state.progress
    )
    return Done(result.to_dict(), result.model)


def _require(options: _Options) -> None:
    api.chosen_patterns(options.patterns)


FUSE = Step("fuse", _Options, _apply, _require)
