"""A plan read back from its JSON, with a check of the fields that a picture needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from onnxtile.errors import UsageError
from onnxtile.paths import require_readable
from onnxtile.report.format import PlanJson

_HINT = "write one by: onnxtile plan MODEL --emit before.json"

_Bytes = Annotated[int, pydantic.Field(ge=0, le=2**53)]
"""No larger, as steps: so far a page counts exactly."""
_Step = Annotated[int, pydantic.Field(ge=0, le=2**53)]


class _StrictJson(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)


class _PartJson(_StrictJson):
    start: _Bytes
    size: _Bytes
    first: _Step
    last: _Step


class _BufferRowJson(_StrictJson):
    name: str
    arena: str
    offset: _Bytes
    size: _Bytes
    first: _Step
    last: _Step
    kind: str
    alias: str | None = None
    node: str | None = None
    dtype: str | None = None
    shape: list[int] | None = None
    parts: list[_PartJson] | None = None

    @pydantic.model_validator(mode="after")
    def _lives(self) -> Self:
        if self.last < self.first:
            raise ValueError("the last step of its life is before the first")
        return self


class _ArenaJson(_StrictJson):
    name: str
    size: _Bytes
    capacity: _Bytes | None = None


class _ScheduledJson(_StrictJson):
    buffers: list[_BufferRowJson]
    schedule: list[str] | None = None
    steps: list[_Step] | None = None
    operators: list[str] | None = None
    constant_nodes: list[str] | None = None
    bodies: list[_BodyJson] | None = None

    @pydantic.model_validator(mode="after")
    def _has_a_step_and_an_operator_for_each_node(self) -> Self:
        for name, entries in (("steps", self.steps), ("operators", self.operators)):
            if entries is not None and len(entries) != len(self.schedule or ()):
                raise ValueError(f"{name} and schedule have different lengths")
        return self

    @pydantic.model_validator(mode="after")
    def _has_the_nodes_of_its_bodies(self) -> Self:
        for body in self.bodies or ():
            if body.node not in (self.schedule or ()):
                raise ValueError(f"a body belongs to the node {body.node!r}, which is not in the schedule")
        return self


class _BodyJson(_ScheduledJson):
    node: str
    attribute: str | None


class _WholePlanJson(_ScheduledJson):
    arenas: list[_ArenaJson]
    alignment: Annotated[int, pydantic.Field(ge=1, le=2**53)] | None = None


def read_plan(path: Path) -> PlanJson:
    """Return the plan in the JSON file `path`. Raises UsageError with the first field that is wrong."""
    require_readable(path, UsageError, hint=_HINT)
    try:
        found: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}", hint=_HINT) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=_HINT) from error
    try:
        _WholePlanJson.model_validate(found)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path} is no plan: {field + ': ' if field else ''}{first['msg']}", hint=_HINT) from None
    plan: PlanJson = found
    return plan
