"""The step `inspect`: what the model is made of where the step stands; the model stays as it is."""

from __future__ import annotations

from onnxtile import api
from onnxtile.pipeline.emitted import asked_for
from onnxtile.pipeline.options import SizedOptions, Texts
from onnxtile.pipeline.step import Done, State, Step
from onnxtile.report import inspect_csv, inspect_json

_RENDERERS = {".csv": inspect_csv.render, ".json": inspect_json.render}


class _Options(SizedOptions):
    """`emit` lists endings: "csv" writes NAME.inspect.csv beside the model."""

    training: bool = False
    tree: bool = False
    emit: Texts = ()


def _files(options: _Options) -> dict[str, str]:
    return asked_for(options.emit, "inspect", _RENDERERS)


def _apply(options: _Options, state: State) -> Done:
    result = api.inspect(
        state.model,
        dims=options.dims,
        shapes=options.shapes,
        training=options.training,
        tree=options.tree,
        progress=state.progress,
    )
    content = result.to_dict()
    files = {ending: _RENDERERS[form](content) for ending, form in _files(options).items()}
    return Done(content, files=files)


INSPECT = Step("inspect", _Options, _apply, _files, _files)
