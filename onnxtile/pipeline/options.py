"""The options of steps: named as on the command line, `_` for `-`, and of types that TOML has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import pydantic

from onnxtile.errors import UsageError
from onnxtile.model.dims import parse_shape
from onnxtile.model.ranges import parse_range
from onnxtile.paths import require_possible
from onnxtile.sizes import bytes_of


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


def _range(value: object) -> object:
    try:
        return parse_range(value if isinstance(value, str) else _range_text(value))
    except UsageError as error:
        raise ValueError(f'{error}: write "0:100", [0, 100] or a number') from None


def _range_text(value: object) -> str:
    return ":".join(map(str, value)) if isinstance(value, list) else str(value)


def bytes_or_several(value: object) -> object:
    """Return the bytes of one capacity, or of each of several by name, the first the fastest. Raises ValueError."""
    sizes = value if isinstance(value, dict) else {"": value}
    found = {name: _at_least_one(size) for name, size in sizes.items()}
    return found if isinstance(value, dict) else found[""]


def _at_least_one(value: object) -> int:
    size = _bytes(value)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f'{value!r} is not a size in bytes: write 262144, 256KiB or {{sram = "256KiB"}}')
    return size


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _path(value: object) -> object:
    if isinstance(value, str):
        try:
            require_possible(Path(value), UsageError)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return Path(value)
    return value


Bytes = Annotated[int, pydantic.Field(ge=1), pydantic.BeforeValidator(_bytes)]
"""Bytes: a number, or text such as "256KiB"."""
Count = Annotated[int, pydantic.Field(ge=1, le=2**53)]
Dims = dict[str, Count]
Shapes = dict[str, Annotated[tuple[Count, ...], pydantic.BeforeValidator(_tuple), pydantic.BeforeValidator(_shape)]]
"""Whole shapes of inputs: "1x3x224x224", or a list."""
Texts = Annotated[tuple[str, ...], pydantic.BeforeValidator(_tuple)]
File = Annotated[Path, pydantic.BeforeValidator(_path)]
"""A file, named from the folder of the pipeline file."""
InputRanges = dict[str, Annotated[tuple[float, float], pydantic.BeforeValidator(_range)]]
"""What numbers random inputs have: "0:100", [0, 100], or one number."""


class Options(pydantic.BaseModel):
    """The options of one step, as a pipeline file gives them; what it does not name is an error."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    do: str

    def placed(self, folder: Path) -> Self:
        """Return the options with files named from `folder`: paths, and texts that end as TOML files do."""
        return self.model_copy(update={name: _placed(value, folder) for name, value in self})


class SizedOptions(Options):
    """Options of a step whose dimensions may be bound, and its inputs given whole shapes."""

    dims: Dims = pydantic.Field(default_factory=dict)
    shapes: Shapes = pydantic.Field(default_factory=dict)


class InputOptions(SizedOptions):
    """Options of a step that runs the model: on what."""

    inputs: File | None = None
    ranges: InputRanges = pydantic.Field(default_factory=dict)


def _placed(value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, tuple):
        return tuple(_placed(one, folder) for one in value)
    if isinstance(value, str) and value.endswith(".toml"):
        return str(folder / value)
    return value
