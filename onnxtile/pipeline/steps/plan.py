"""The step `plan`."""

from __future__ import annotations

from typing import Any

import pydantic

from onnxtile import api
from onnxtile.errors import UsageError
from onnxtile.pipeline.emitted import asked_for
from onnxtile.pipeline.options import Count, File, InputOptions, Texts, bytes_or_several
from onnxtile.pipeline.step import Done, State, Step
from onnxtile.planning.layout.scope import PLACINGS
from onnxtile.planning.layout.workspaces import WorkspaceRules
from onnxtile.planning.offsets.effort import Effort, parse_effort
from onnxtile.planning.order import find_order
from onnxtile.planning.planner import find_planner
from onnxtile.registry import discover
from onnxtile.report.format import Format, RenderOptions
from onnxtile.report.plan_file import read_plan


class _Options(InputOptions):
    """`emit` lists endings: "json" writes NAME.plan.json beside the model, "before.json" NAME.before.json."""

    alignment: Count = 64
    capacity: Any = pydantic.Field(default=None, validate_default=False)
    io: str = "outputs"
    overwrite_inputs: bool = False
    bounds: dict[str, Count] = pydantic.Field(default_factory=dict)
    workspaces: dict[str, str] = pydantic.Field(default_factory=dict)
    share_workspaces: bool = False
    planner: str = "best"
    effort: str | Count | None = None
    time: str | None = None
    order: str = "model"
    streams: Count = 1
    emit: Texts = ()
    names: bool | None = None
    compare: File | None = None
    verify: bool = True

    _capacity = pydantic.field_validator("capacity")(bytes_or_several)


def _formats() -> dict[str, Format]:
    return {form.suffix: form for form in discover("onnxtile.report.formats", Format).values()}


def _files(options: _Options) -> dict[str, Format]:
    known = _formats()
    return {ending: known[form] for ending, form in asked_for(options.emit, "plan", known).items()}


def _effort(options: _Options) -> Effort:
    return parse_effort(None if options.effort is None else str(options.effort), options.time)


def _require(options: _Options) -> None:
    find_planner(options.planner)
    find_order(options.order)
    _effort(options)
    WorkspaceRules.of(options.workspaces, options.share_workspaces)
    if options.io not in PLACINGS:
        raise UsageError(f"io = {options.io!r} is not known", hint=f"there is {', '.join(PLACINGS)}")
    pictures = any(form.picture for form in _files(options).values())
    for name in ("names", "compare"):
        if getattr(options, name) is not None and not pictures:
            raise UsageError(f"{name} is about pictures, and none is asked for", hint='emit = ["html"] asks for one')
    if options.compare is not None:
        read_plan(options.compare)


def _apply(options: _Options, state: State) -> Done:
    result = api.plan(
        state.model,
        dims=options.dims,
        shapes=options.shapes,
        bounds=options.bounds,
        alignment=options.alignment,
        planner=options.planner,
        order=options.order,
        streams=options.streams,
        effort=_effort(options),
        capacity=options.capacity,
        io=options.io,
        overwrite_inputs=options.overwrite_inputs,
        workspaces=options.workspaces,
        share_workspaces=options.share_workspaces,
        inputs=options.inputs,
        ranges=options.ranges,
        verify=options.verify,
        progress=state.progress,
    )
    content = result.plan.to_dict()
    before = None if options.compare is None else read_plan(options.compare)
    how = RenderOptions(state.source.stem, options.names, before)
    return Done(
        result.to_dict(), result.model, {ending: form.render(content, how) for ending, form in _files(options).items()}
    )


PLAN = Step("plan", _Options, _apply, _require, _files)
