"""The step `plan`."""

from __future__ import annotations

from pathlib import Path

from onnxtile import api
from onnxtile.pipeline.step import Bytes, Count, Done, SizedOptions, State, Step, Texts
from onnxtile.report.format import Format, format_of
from onnxtile.report.format import Options as FormatOptions


class _Options(SizedOptions):
    """`emit` lists endings: "json" writes NAME.plan.json beside the model."""

    alignment: Count = 64
    planner: str = "best"
    capacity: Bytes | None = None
    emit: Texts = ()
    verify: bool = True


def _formats(options: _Options) -> dict[str, Format]:
    endings = {ending: f".plan.{ending.removeprefix('.')}" for ending in options.emit}
    return {name: format_of(Path(f"model{name}")) for name in endings.values()}


def _apply(options: _Options, state: State) -> Done:
    result = api.plan(
        state.model,
        dims=options.dims,
        shapes=options.shapes,
        alignment=options.alignment,
        planner=options.planner,
        capacity=options.capacity,
        verify=options.verify,
        progress=state.progress,
    )
    content = result.plan.to_dict()
    title = FormatOptions(title=state.source.stem)
    files = {ending: form.render(content, title) for ending, form in _formats(options).items()}
    return Done(result.to_dict(), result.model, files)


PLAN = Step("plan", _Options, _apply, _formats)
