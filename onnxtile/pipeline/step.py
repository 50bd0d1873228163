"""What a step of a pipeline is: a command with its options, applied to the model as the steps before left it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pydantic

from onnxtile.api import Progress, Source
from onnxtile.errors import UsageError
from onnxtile.model.dims import parse_shape
from onnxtile.sizes import bytes_of


class Options(pydantic.BaseModel):
    """The options of one step, as a pipeline file gives them; what it does not name is an error."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    do: str


def _bytes(value: object) -> object:
    size = bytes_of(value) if isinstance(value, str) else value
    if size is None:
        raise ValueError(f"{value!r} is not a size in bytes: write 262144, 256KiB or 8MiB")
    return size


def _shape(value: object) -> object:
    try:
        return parse_shape(value) if isinstance(value, str) else value
    except UsageError as error:
        raise ValueError(str(error)) from None


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Bytes = Annotated[int, pydantic.Field(ge=1), pydantic.BeforeValidator(_bytes)]
"""Bytes: a number, or text such as "256KiB"."""
Count = Annotated[int, pydantic.Field(ge=1)]
Dims = dict[str, Count]
Shapes = dict[str, Annotated[tuple[Count, ...], pydantic.BeforeValidator(_tuple), pydantic.BeforeValidator(_shape)]]
"""Whole shapes of inputs: "1x3x224x224", or a list."""


class SizedOptions(Options):
    """Options of a step whose dimensions may be bound, and its inputs given whole shapes."""

    dims: Dims = pydantic.Field(default_factory=dict)
    shapes: Shapes = pydantic.Field(default_factory=dict)


Texts = Annotated[tuple[str, ...], pydantic.BeforeValidator(_tuple)]


@dataclass(frozen=True)
class State:
    """Where a pipeline stands: the file it reads, the model as it is now, and who hears of progress."""

    source: Path
    model: Source
    progress: Progress


@dataclass(frozen=True)
class Done:
    """What a step did: its JSON, the model it made (None: the one it was given), and files to write beside it, by their ending.

    Where the step is a check that said no, `reason` says so in a line.
    """

    result: Mapping[str, Any]
    model: Source | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    reason: str | None = None


@dataclass(frozen=True)
class Step:
    """A kind of step: its name, the schema of its options, and what it does.

    `require` says at once, before any model is read, what is wrong with options that the schema alone cannot judge.
    """

    name: str
    options: type[Options]
    apply: Callable[[Any, State], Done]
    require: Callable[[Any], object] = lambda _options: None
